"""Placement and bandwidth together (Wang's thesis).

Decides which op runs where and what each pair of hosts may send. It is given an Instance and the
rates that pairs may have, and returns a plan with allocations, at least as fast as uniform rates.
"""
