"""Trains the network that guides `search.deploy`; the only part of it that needs torch."""
