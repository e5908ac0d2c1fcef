"""Where independent work of a search is evaluated: this process, local processes, or Ray.

A pool is given a pure function, a context and items, and returns the results in the order of items,
so that any number of workers gives the same plan.
"""
