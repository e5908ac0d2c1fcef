"""Cuts a graph into contiguous stages for given devices.

Decides which nodes share a stage. It is given a split problem of nodes, wires and kinds of devices,
and returns the split whose slowest stage is fastest, with a proven bound.
"""
