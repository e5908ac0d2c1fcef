"""Deploys groups of ops on mixed devices: replicated, placed and synchronised (after TAG)."""
