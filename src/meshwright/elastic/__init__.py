"""Keeps training going when hosts are lost: plans for those that are left and starts these.

Is told how an attempt of ranks has ended; returns what to start next, and what each loss has cost.
"""
