"""A plain PyTorch script that trains by a plan: given a plan and the outline of its model, decides
which of PyTorch's own ways of dividing a model say the same, and writes a script that its readers
can edit. Returns files, and what those ways have no words for."""
