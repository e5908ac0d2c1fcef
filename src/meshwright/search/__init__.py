"""Searches for the fastest plan of a training step on a cluster.

A search is given a `Problem` (graph, cluster, limits, clock) and an `Incumbent` (the best plan and
the best bound so far), and offers plans and bounds; `portfolio` turns what was found into an
Answer.
"""
