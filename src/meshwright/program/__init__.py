"""Programs: what every device does in one step, and how a plan becomes one."""
