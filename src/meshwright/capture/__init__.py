"""From a PyTorch training step to a Graph. Needs torch, the `torch` extra."""
