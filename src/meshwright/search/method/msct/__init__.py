"""Baechi's m-SCT: list scheduling that keeps favourite children beside their parents.

Decides the device of each op. It is given an Instance and returns a placement within memory.
"""
