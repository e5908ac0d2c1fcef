"""The search for placements: which op runs on which device, and in which order."""
