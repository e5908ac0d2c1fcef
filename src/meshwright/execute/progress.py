"""What a rank is at, told to those who watch it."""

from dataclasses import dataclass

NOBODY = -1


@dataclass(slots=True, eq=False)
class Progress:
    """What the rank is at, for those who watch it, if there are any."""

    doing: object = ""
    """Its text is made only when it is posted."""
    count: int = 0
    waits_for: int | tuple[int, ...] = NOBODY
    """The rank, or the ranks, that it waits for."""


def note(watch: Progress | None, doing: str) -> None:
    """Say what is begun, to those who watch."""
    if watch is not None:
        watch.doing = doing
        watch.count += 1
