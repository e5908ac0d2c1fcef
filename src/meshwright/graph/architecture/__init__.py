"""Training steps of named architectures from formulas, op for op as `capture` records them."""
