"""Searches: from a graph and a cluster to an Answer."""
