"""Maximum flows through ops of limited capacity, that grow as ends are added.

By the theorem of Ford and Fulkerson the flow is the cheapest set of ops that cuts all paths from
the starts to the ends. Knows nothing of splits.
"""

from collections import deque

from solver.latency.problem import Floats

_START, _END = -1, -2
_LEAST = 1e-12
"""Milliseconds; less is rounding."""


class Flow:
    """A flow from starts to ends. Starts and ops in the middle pass on at most their capacity."""

    def __init__(self, capacity: Floats) -> None:
        self._capacity = capacity
        self._spare: dict[int, dict[int, float]] = {_START: {}, _END: {}}
        self.value = 0.0
        """What flows so far; call `fill` after adding."""

    def join(self, source: int, target: int, *, is_start: bool) -> None:
        """Let flow pass from an op to another."""
        self._add(source, is_start)
        self._add(target, is_start=False)
        self._spare[2 * source + 1][2 * target] = float("inf")
        self._spare[2 * target].setdefault(2 * source + 1, 0.0)

    def end(self, op: int, *, is_start: bool) -> None:
        """Let flow end after an op."""
        self._add(op, is_start)
        self._spare[2 * op + 1][_END] = float("inf")
        self._spare[_END].setdefault(2 * op + 1, 0.0)

    def fill(self) -> None:
        """Augment along shortest paths until none is left (Edmonds and Karp, 1972)."""
        while (came_from := self._find_path()) is not None:
            path = [_END]
            while path[-1] != _START:
                path.append(came_from[path[-1]])
            steps = list(zip(path[1:], path[:-1], strict=True))
            amount = min(self._spare[a][b] for a, b in steps)
            for a, b in steps:
                self._spare[a][b] -= amount
                self._spare[b][a] += amount
            self.value += amount

    def _add(self, op: int, is_start: bool) -> None:
        """An op is two nodes, in and out, with its capacity between."""
        enter, leave = 2 * op, 2 * op + 1
        if enter not in self._spare:
            self._spare[enter] = {leave: float(self._capacity[op])}
            self._spare[leave] = {enter: 0.0}
        if is_start and enter not in self._spare[_START]:
            self._spare[_START][enter] = float("inf")
            self._spare[enter][_START] = 0.0

    def _find_path(self) -> dict[int, int] | None:
        came_from = {_START: _START}
        queue = deque([_START])
        while queue:
            at = queue.popleft()
            for following, spare in self._spare[at].items():
                if spare > _LEAST and following not in came_from:
                    came_from[following] = at
                    if following == _END:
                        return came_from
                    queue.append(following)
        return None
