"""Plans anew after devices or links have changed, starting from the plan that was there.

Given what was asked, the plan and the changed cluster, returns the plan that is best there, what it
changes, which bytes of state have to move for it, and whether that pays. Runs nothing.
"""
