"""Lowers plans with teams, ZeRO or recomputation from what their stages cost."""
