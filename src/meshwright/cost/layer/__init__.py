"""What one layer costs one device of a team that runs it together."""
