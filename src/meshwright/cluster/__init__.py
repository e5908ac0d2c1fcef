"""Devices and the network between them."""
