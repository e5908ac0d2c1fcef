"""Monte-Carlo tree search over strategies, guided by a graph network (TAG, section 4.2).

Decides which strategies are simulated next. It is given a prior over actions and returns the best
strategy found; the shipped prior is a file that NumPy alone evaluates.
"""
