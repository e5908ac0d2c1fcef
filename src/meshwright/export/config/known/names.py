"""Reads the names of settings that a program knows."""

from functools import cache
from importlib import resources


@cache
def known_names(program: str) -> frozenset[str]:
    """The names in the file of a program, a line each; those in mappings with what they are in."""
    text = resources.files(__package__).joinpath(f"{program}.txt").read_text(encoding="utf-8")
    return frozenset(line for line in text.splitlines() if line and not line.startswith("#"))
