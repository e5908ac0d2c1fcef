"""What one device of a plan runs: the planned step with shards, collectives and repeated ops."""
