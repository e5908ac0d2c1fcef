"""What may come next on a command line that is being typed, and the shells' scripts that ask."""
