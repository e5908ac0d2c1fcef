"""Models by name: what there is, as data, and a graph of each. Needs no torch."""
