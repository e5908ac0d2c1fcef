"""The search for placements: which op runs on which device, and in which order.

Decides devices of units and one order of all ops. It is given an Instance and returns the best
placement that the simulator confirms; steps of a dozen ops are searched exhaustively.
"""
