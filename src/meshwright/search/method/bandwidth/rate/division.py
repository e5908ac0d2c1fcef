"""Whole amounts of pairs of hosts on the ways between them, within what links carry.

Where every pair's k-th way takes its hosts' k-th links, amounts can be moved between two ways along
chains of pairs, so that room of one host's exit and room of another's entry on different ways come
together. So, if links of a host are equal and its amounts are within all of them together, all have
room (Konig's theorem on colouring the edges of bipartite graphs, for amounts in place of edges).
"""

from collections import deque
from collections.abc import Mapping, Sequence
from itertools import permutations

from meshwright.search.method.bandwidth.rate.room import Pair, find_ends

Ways = Mapping[Pair, Sequence[tuple[int, ...]]]
Step = tuple[Pair, int, int]
"""A pair, and from which of its ways to which a part of it moves."""


class Division:
    """Amounts by pair and way, and what is left of links."""

    def __init__(self, ways: Ways, left: Mapping[int, int]) -> None:
        self.ways = ways
        self.left = dict(left)
        self.placed: dict[Pair, list[int]] = {}
        self.lost = 0
        """What had no room."""
        self.fixed: frozenset[Pair] = frozenset()
        """Pairs that stay where they are."""
        self._width = dict(left)
        self._is_aligned = find_ends(ways) is not None
        self._leaving: dict[int, list[Pair]] = {}
        self._entering: dict[int, list[Pair]] = {}
        for pair in sorted(ways):
            self._leaving.setdefault(pair[0], []).append(pair)
            self._entering.setdefault(pair[1], []).append(pair)

    def copied(self, fixed: frozenset[Pair]) -> "Division":
        """The same, to be changed apart from this."""
        other = Division.__new__(Division)
        other.ways, other.fixed, other.lost = self.ways, fixed, self.lost
        other.left = dict(self.left)
        other.placed = {pair: list(parts) for pair, parts in self.placed.items()}
        other._width, other._is_aligned = self._width, self._is_aligned
        other._leaving, other._entering = self._leaving, self._entering
        return other

    def num_parts(self) -> int:
        """How many ways pairs stand on, in all."""
        return sum(amount > 0 for parts in self.placed.values() for amount in parts)

    def room(self, pair: Pair, way: int) -> int:
        """What a pair can get more of on one of its ways."""
        return min(self.left[link] for link in self.ways[pair][way])

    def width(self, pair: Pair, way: int) -> int:
        """What the way carries when nothing else does."""
        return min(self._width[link] for link in self.ways[pair][way])

    def put(self, pair: Pair, way: int, amount: int) -> None:
        """More (or less) of a pair on a way."""
        if amount:
            self.placed.setdefault(pair, [0] * len(self.ways[pair]))[way] += amount
            for link in self.ways[pair][way]:
                self.left[link] -= amount

    def pour(self, pair: Pair, amount: int, spare: int) -> None:
        """Over the ways with most room first; where none has any, after moving others.

        The last `spare` of it are given up where others would have to move for them.
        """
        ways = range(len(self.ways[pair]))
        while amount > spare:
            way = max(ways, key=lambda way: (self.room(pair, way), -way))
            moved = min(amount, self.room(pair, way))
            if moved == 0:
                moved, way = self._make_room(pair, amount)
            if moved == 0:
                self.lost += amount
                return
            self.put(pair, way, moved)
            amount -= moved

    def merge(self) -> None:
        """Put pairs that stand on several ways on fewer where there is room by now."""
        for pair, parts in self.placed.items():
            if pair in self.fixed:
                continue
            for way in sorted(range(len(parts)), key=lambda way: (parts[way], way)):
                others = [k for k in range(len(parts)) if k != way and parts[k] > 0]
                goal = next((k for k in others if self.room(pair, k) >= parts[way] > 0), None)
                if goal is not None:
                    self._move((pair, way, goal), parts[way])

    def _move(self, step: Step, amount: int) -> None:
        pair, source, target = step
        self.put(pair, source, -amount)
        self.put(pair, target, amount)

    def _make_room(self, pair: Pair, amount: int) -> tuple[int, int]:
        """Move others so that a way of the pair has room: how much, and which; (0, 0): no way.

        For all of it if that can be had, else for half, and so on: single units would take for
        ever.
        """
        least = amount if self._is_aligned else 0
        while least > 0:
            for way, other in permutations(range(len(self.ways[pair])), 2):
                here = self.left[self.ways[pair][way][0]]
                there = self.left[self.ways[pair][other][1]]
                if min(here, there) < least:
                    continue
                steps = self._find_chain(pair[1], way, other, least)
                if steps:
                    for step in steps:
                        self._move(step, least)
                    return least, way
            least //= 2
        return 0, 0

    def _find_chain(self, host: int, way: int, other: int, least: int) -> list[Step]:
        """Moves from a way to another and back, in turn, that leave so much room at a host's entry
        on the way; the shortest such chain.

        Each frees what the one before it has filled, and the last fills what has room.
        """
        came: dict[tuple[int, bool], Step | None] = {(host, True): None}
        waiting = deque(came)
        while waiting:
            state = waiting.popleft()
            at, is_entry = state
            source, target = (way, other) if is_entry else (other, way)
            for pair in (self._entering if is_entry else self._leaving).get(at, ()):
                if pair in self.fixed or pair not in self.placed:
                    continue
                if self.placed[pair][source] < least:
                    continue
                step = pair, source, target
                if self.left[self.ways[pair][target][0 if is_entry else 1]] >= least:
                    return [*_steps_to(came, state), step]
                following = pair[0 if is_entry else 1], not is_entry
                if following not in came:
                    came[following] = step
                    waiting.append(following)
        return []


def _steps_to(came: Mapping[tuple[int, bool], Step | None], state: tuple[int, bool]) -> list[Step]:
    """The moves that lead to a state, the first one first."""
    steps: list[Step] = []
    step = came[state]
    while step is not None:
        steps.append(step)
        # A move away from an entry led to an exit, that of the same pair, and the other way round.
        state = (step[0][0], False) if state[1] else (step[0][1], True)
        step = came[state]
    return steps[::-1]
