"""Coarsening: fewer ops that stand for many, each with the exact way back."""
