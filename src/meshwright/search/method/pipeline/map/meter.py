"""Counts work against a budget, so that the same budget gives the same answer on any machine."""

from time import perf_counter


class Meter:
    """A budget in seconds of work as estimated, and the clock as a last resort."""

    def __init__(self, seconds: float, parent: "Meter | None" = None, slack: float = 1.0) -> None:
        self.left = seconds * slack  # with much slack only the clock counts
        self._parent = parent
        self._until: float = parent._until if parent is not None else perf_counter() + seconds

    def part(self, share: float) -> "Meter":
        """A share of what is left, which is charged here too."""
        return Meter(self.left * share, self)

    def charge(self, seconds: float) -> None:
        """Charge work, in estimated seconds, to this budget and to those it is part of."""
        self.left -= seconds
        if self._parent is not None:
            self._parent.charge(seconds)

    @property
    def clock_left(self) -> float:
        """How many seconds are left on the clock."""
        return max(0.0, self._until - perf_counter())

    def is_late(self) -> bool:
        """Whether the clock has run out."""
        return perf_counter() >= self._until

    def is_over(self) -> bool:
        """Whether the budget, or the clock, has run out."""
        return self.left <= 0 or self.is_late()
