"""The command line: wires the stages together, holds no logic of its own."""

from meshwright.cli.entry import main

__all__ = ["main"]
