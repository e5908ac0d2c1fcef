"""Runs a Program with costs and gives a Timeline."""
