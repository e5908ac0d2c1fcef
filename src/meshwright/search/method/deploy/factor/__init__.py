"""Sufficient factor broadcasting: which gradients every replica computes whole (TAG, section 4.4).

Decides the ops that are duplicated on all replicas. It is given a plan of parts and returns one in
which sending factors replaces the gradient synchronisations that take longer.
"""
