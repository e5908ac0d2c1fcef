"""Finds degrees, stages and devices for models of repeated layers on networks of several tiers."""
