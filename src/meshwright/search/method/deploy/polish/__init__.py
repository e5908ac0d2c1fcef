"""Local search over strategies, from the best that the tree search found.

Decides which single changes of a strategy are simulated. It is given starts and returns the fastest
strategy that fits, with the layout that produced it.
"""
