"""Splits of a graph over devices, contiguous (pipeline stages) or free."""
