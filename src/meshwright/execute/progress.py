"""What a rank is at, told to those who watch it."""

from dataclasses import dataclass
from typing import Protocol


class Progress(Protocol):
    """What the rank is at, for those who watch it."""

    doing: object
    count: int
    waits_for: int | tuple[int, ...]
    """The rank that it waits for; -1: none."""


def note(watch: Progress | None, doing: str) -> None:
    """Say what is begun, to those who watch."""
    if watch is not None:
        watch.doing = doing
        watch.count += 1


@dataclass(slots=True)
class Unwatched:
    """Progress that nobody looks at."""

    doing: object = ""
    count: int = 0
    waits_for: int | tuple[int, ...] = -1
