"""The integer programme of placement, makespan and memory, as CP-SAT solves it.

It is given an Instance and a first placement, and returns the best placement found and a bound.
"""
