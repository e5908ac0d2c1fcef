"""The pool of workers that evaluate items for a search: this process, local processes, or Ray.

A pool is given a pure function, a context and items. `run` returns the results in the order of
items; `take` returns one result while workers look at items that may be asked for next. What comes
of an item depends on the context and the item alone, so any number of workers gives the same plan.
"""
