"""Chakra execution traces of a plan: given a timeline, decides what each rank computes, sends and
waits for, in the words that ASTRA-sim reads. Returns a file a rank, and the groups of ranks."""
