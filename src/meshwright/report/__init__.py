"""Holds predictions against measured runs, and learns from the difference."""
