"""Times a placement under a rule that orders ops: list scheduling, HEFT, gap filling.

A rule is given an Instance and the devices of ops, and returns when each op starts.
"""
