"""Commands as data: what a testbed is built by. Runs nothing."""

from collections.abc import Sequence
from dataclasses import dataclass

ROUTE_OPTIONS = "congctl cubic initcwnd 64 initrwnd 64 rto_min 20ms"
"""Cubic, because BBR hovers around the rate it measures; a first window that fills any link here,
so that neither a new connection nor an idle one starts slowly. As options of a route these need no
setting of the machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program with its arguments, and lines for its standard input."""

    argv: tuple[str, ...]
    lines: tuple[str, ...] = ()


def batch(program: str, namespace: str, lines: Sequence[str]) -> Command:
    """Lines for `ip` or `tc` about one namespace."""
    return Command(argv=(program, "-n", namespace, "-batch", "-"), lines=tuple(lines))


def inside(namespace: str, *argv: str, lines: Sequence[str] = ()) -> Command:
    """A program that runs in a namespace."""
    return Command(argv=("ip", "netns", "exec", namespace, *argv), lines=tuple(lines))
