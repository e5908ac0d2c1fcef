"""Degrees, ZeRO and recomputation for models of repeated layers on networks of several tiers.

Decides degrees, stages and devices. It is given a stack of layers on a network of several tiers and
returns drafts, the best of which are simulated op by op.
"""
