"""Standard output: tables for people, one JSON object for programs.

All that a command prints passes through here, so that a name from a file is shown and never obeyed:
neither as an escape sequence by the terminal nor as markup by rich.
"""

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import msgspec
from rich.console import Console
from rich.style import Style
from rich.text import Text

from meshwright.errors import is_visible, printable

WIDTH = 100
"""Columns where there is no terminal to ask."""
Cell = str | Text
"""What stands in a table."""
MAX_SHOWN = 2000
"""Characters of one piece of text; the longest of our own, notes of a search, have some hundred."""


class Words(Text):
    """Text with a style, made printable."""

    def __init__(self, text: str = "", style: str | Style = "", **options: Any) -> None:
        super().__init__(printable(text, MAX_SHOWN), style, **options)

    def append(self, text: Text | str, style: str | Style | None = None) -> "Text":
        """Add text, or a string that is made printable."""
        return super().append(printable(text, MAX_SHOWN) if isinstance(text, str) else text, style)


class _Console(Console):
    """Makes strings printable before they are laid out, and leaves a closed pipe to `main`."""

    def render_str(self, text: str, **options: Any) -> Text:
        """Called by rich for every string that it prints, measures or puts into a table."""
        return super().render_str(printable(text, MAX_SHOWN), **options)

    def on_broken_pipe(self) -> None:
        """Called by rich when the reader of standard output has gone; its own would exit with 1."""
        raise BrokenPipeError


def make_console(*, is_error: bool = False) -> Console:
    """Standard output or standard error: as wide as the terminal, or a fixed width elsewhere."""
    stream = sys.stderr if is_error else sys.stdout
    return _Console(
        stderr=is_error,
        width=None if stream.isatty() else WIDTH,
        highlight=False,
        markup=False,
        emoji=False,
    )


def print_line(text: str = "") -> None:
    """Print one line as it is."""
    sys.stdout.write(printable(text, MAX_SHOWN) + "\n")


def print_json(document: Mapping[str, Any]) -> None:
    """Print exactly one JSON object, on one line."""
    try:
        text = msgspec.json.encode(document).decode()
    except UnicodeEncodeError:  # a file's name that is no Unicode has halves of surrogate pairs
        text = json.dumps(msgspec.to_builtins(document))
    # JSON itself escapes the control characters of ASCII only; the others stand in texts, too.
    shown = text if is_visible(text) else _NOT_ASCII.sub(_json_escaped, text)
    sys.stdout.write(f"{shown}\n")


_NOT_ASCII = re.compile(r"[^ -~]")


def _json_escaped(found: re.Match[str]) -> str:
    return found[0] if is_visible(found[0]) else json.dumps(found[0])[1:-1]
