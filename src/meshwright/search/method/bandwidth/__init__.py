"""Bandwidth for the transfers of a plan: how much of every host's links each destination gets.

`rate` decides the rates for a given plan; `joint` decides the placement together with the rates.
"""
