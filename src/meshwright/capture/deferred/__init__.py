"""Builds a workload without memory, by recording the calls that its factory makes.

Given a function that builds a workload and a seed; returns a `DeferredWorkload`, whose tensors
each rank makes real for itself with values that no plan changes.
"""
