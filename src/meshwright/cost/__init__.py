"""What things cost: compute on a device, transfers and collectives on a cluster."""
