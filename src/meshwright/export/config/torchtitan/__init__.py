"""torchtitan's configuration, written from a setup and read into one: a Python module whose
function returns `Trainer.Config`, as it takes now, and the TOML that it took until February 2026.
Modules are parsed and never executed."""
