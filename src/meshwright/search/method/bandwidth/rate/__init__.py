"""The best rates between hosts for a plan whose orders are fixed (Wang's thesis).

Decides how each host's links are divided over its destinations. It is given a simulated program and
returns whole rates on ways, with a proven gap to the best rates.
"""
