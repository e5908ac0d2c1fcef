"""Paths of modules, as "transformer.h.5.attn"."""


def encloses(module: str, other: str) -> bool:
    """Whether a module is another one, or has it within; the model itself, "", has all."""
    return not module or f"{other}.".startswith(f"{module}.")
