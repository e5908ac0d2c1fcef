"""Trains the network that guides `search.method.deploy`; the only part of it that needs torch."""
