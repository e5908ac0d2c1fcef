"""Proven lower bounds on the time of a step: work, paths, windows, branching.

A bound is given an Instance and returns seconds that no plan in its scope can be faster than.
"""
