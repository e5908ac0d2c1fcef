"""Latency of one sample on accelerators of tight memory, as Tarnawski et al. define it."""
