"""Program -> torch.distributed: runs a plan and measures it."""
