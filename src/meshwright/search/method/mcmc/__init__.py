"""FlexFlow's Metropolis walk over placements (Jia et al., MLSys 2019).

Decides the device of each unit. It is given an Instance and returns the best placement that it met.
"""
