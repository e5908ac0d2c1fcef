"""What an export consists of: the files, and what they could not say. Knows no target."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from meshwright.files import write_bytes
from meshwright.plan.plan import Plan

Writer = Callable[[Path], None]
"""Writes one file at the path that it is given."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """The files that a target is given in place of a plan."""

    files: Mapping[str, Writer]
    """By name in the folder, what writes each; a name may have folders before it."""
    left_out: tuple[str, ...] = ()
    """What of the plan the target has no words for, and what it does in its place: a sentence
    each."""
    plan: Plan | None = None
    """What the target will do, read back from these files; None: the files hold the plan as it
    is, or nothing that reads as a plan."""
    start: tuple[str, ...] = ()
    """Lines of a shell that start it, each with what stands before it in a comment."""


def text_writer(text: str) -> Writer:
    """What writes a text, ending in one line break."""
    return partial(write_bytes, data=(text.rstrip("\n") + "\n").encode())


def bytes_writer(content: bytes) -> Writer:
    """What writes a file with this content."""
    return partial(write_bytes, data=content)
