"""Random numbers that are a function of what they are for, on every device the same."""
