"""Bandwidth for the transfers of a plan: how much of every host's links each destination gets."""
