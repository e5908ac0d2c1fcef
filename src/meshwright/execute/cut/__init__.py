"""Turns a call on whole tensors into the call that one member of a tensor team makes on its shards.

Given an op, its arguments and how each of them is cut over the team, `table.cut_call` returns the
local call and how its results are cut. No rule communicates, and none decides a cut by itself.
"""
