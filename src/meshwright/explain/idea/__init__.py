"""Ideas of plans that differ in one decision: of stages, degrees, placements and replicas.

Each module is given a plan with its graph and cluster and lists ideas. None simulates anything."""
