"""Piper's problem (Tarnawski, Narayanan, Phanishayee, NeurIPS 2021), solved exactly."""
