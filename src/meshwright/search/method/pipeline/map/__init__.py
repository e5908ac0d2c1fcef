"""Maps stages and their replicas onto devices whose links differ.

Decides which device runs which slot. It is given a MappingProblem of compute, transfers and
all-reduces, and returns an assignment with a proven bound on the slowest slot.
"""
