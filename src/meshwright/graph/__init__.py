"""Training steps as graphs: the Graph, its files, builders and the zoo."""
