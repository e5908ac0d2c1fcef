"""Standard output: tables for people, one JSON object for programs."""

import math
import sys
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH = 100
"""Columns where there is no terminal to ask."""


class _Console(Console):
    """Leaves a closed pipe to `main`; rich's own hook would exit with code 1."""

    def on_broken_pipe(self) -> None:
        """Called by rich when the reader of standard output has gone."""
        raise BrokenPipeError


def make_console() -> Console:
    """Standard output: as wide as the terminal, or a fixed width elsewhere."""
    return _Console(width=None if sys.stdout.isatty() else WIDTH, highlight=False)


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table; the last column wraps, the others do not."""
    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for place, head in enumerate(heads):
        table.add_column(head, no_wrap=place < len(heads) - 1)
    for row in rows:
        table.add_row(*map(Text, row))  # as Text: brackets in names are no markup
    make_console().print(table)


def print_json(document: Mapping[str, Any]) -> None:
    """Print exactly one JSON object, on one line."""
    sys.stdout.write(msgspec.json.encode(document).decode() + "\n")


def finite(value: float) -> float | None:
    """The number, or None: infinity and NaN are no JSON."""
    return float(value) if math.isfinite(value) else None
