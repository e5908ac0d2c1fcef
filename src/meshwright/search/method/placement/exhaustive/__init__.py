"""Every placement and every order of a step of a dozen ops.

Decides nothing by rule of thumb: bounds leave out what cannot be best, the simulator judges the
rest, so that the best plan found is proven to be the best placement.
"""
