"""Plans and timelines in the formats of other tools."""
