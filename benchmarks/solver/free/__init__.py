"""Splits of any nodes onto any devices, and bounds on them."""
