"""Deploys groups of ops on mixed devices: replicated, placed and synchronised (after TAG).

Decides one action for each group of ops: its devices, shares of the batch and synchronisation. It
is given an Analysis of the step and returns a strategy, which `compile` turns into a plan.
"""
