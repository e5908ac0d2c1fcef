"""Lines up the nodes of a problem so that few wires are open at a time, and numbers the states.

A state at a place of the line says of every wire open there whether its nodes so far are all in a
set, all outside or on both sides. Where states become too many, wires are left out: a split costs
less without them, so a bound stays a bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.search.method.pipeline.stage.problem import SplitProblem
from solver.free.price import TURN

_OUT, _IN, _BOTH = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Line:
    """Nodes in a line with the states between them."""

    nodes: npt.NDArray[np.int64]
    num_states: npt.NDArray[np.int64]
    """Before the first node, before the second, ..., after the last."""
    turns: npt.NDArray[np.void]
    first_turn: npt.NDArray[np.int64]
    """The turns at a place, by target: from here to the next place's."""
    num_left_out: int = 0
    """Wires that do not count, from some place on."""


def line_up(problem: SplitProblem, starts: int = 8) -> list[int]:
    """The best of several lines: each time the node that opens the fewest wires and closes the
    most, then the one whose wire has been open the longest."""
    wires_of = node_wires(problem)
    candidates = [list(range(problem.num_nodes))]
    lonely = sorted(range(problem.num_nodes), key=lambda node: (len(wires_of[node]), node))
    candidates += [_grow(problem, wires_of, first) for first in lonely[:starts]]
    return min(candidates, key=lambda line: _width(problem, line))


def node_wires(problem: SplitProblem) -> list[list[int]]:
    """The wires of each node."""
    found: list[list[int]] = [[] for _ in range(problem.num_nodes)]
    for wire in range(problem.num_wires):
        for node in problem.pins(wire):
            found[node].append(wire)
    return found


def _grow(problem: SplitProblem, wires_of: list[list[int]], first: int) -> list[int]:
    left = np.diff(problem.wire_start)
    total = left.copy()
    opened: dict[int, int] = {}
    line: list[int] = []
    remaining = set(range(problem.num_nodes))
    node = first
    while True:
        line.append(node)
        remaining.discard(node)
        for wire in wires_of[node]:
            opened.setdefault(wire, len(line))
            left[wire] -= 1
            if left[wire] == 0:
                del opened[wire]
        if not remaining:
            return line
        near = {v for wire in opened for v in problem.pins(wire) if v in remaining}
        node = min(
            near or remaining,
            key=lambda v: (
                sum(int(left[w] == total[w]) - int(left[w] == 1) for w in wires_of[v]),
                min((opened[w] for w in wires_of[v] if w in opened), default=0),
                v,
            ),
        )


def _width(problem: SplitProblem, line: Sequence[int]) -> float:
    """About the number of states: two for every wire that is open, over the line."""
    place = np.empty(problem.num_nodes, dtype=np.int64)
    place[np.array(line, dtype=np.int64)] = np.arange(problem.num_nodes)
    change = np.zeros(problem.num_nodes + 1)
    for wire in range(problem.num_wires):
        places = place[problem.pins(wire)]
        change[places.min()] += 1
        change[places.max()] -= 1
    return float((2.0 ** np.minimum(np.cumsum(change), 60)).sum())


def make_line(
    problem: SplitProblem,
    nodes: Sequence[int],
    wire_load: npt.NDArray[np.int64],
    most_states: int,
) -> Line:
    """States and turns of a line; where states are too many, the cheapest open wire is left out
    from there on."""
    numbering = _Numbering(problem, wire_load, most_states)
    for node in nodes:
        numbering.append(node)
    return Line(
        nodes=np.array(nodes, dtype=np.int64),
        num_states=np.array(numbering.num_states, dtype=np.int64),
        turns=np.array(numbering.turns, dtype=TURN),
        first_turn=np.array(numbering.first_turn, dtype=np.int64),
        num_left_out=numbering.num_left_out,
    )


class _Numbering:
    """Numbers the states place by place."""

    def __init__(
        self, problem: SplitProblem, wire_load: npt.NDArray[np.int64], most_states: int
    ) -> None:
        self._wires_of = node_wires(problem)
        self._load = wire_load.tolist()
        self._most_states = most_states
        self._left = np.diff(problem.wire_start).tolist()
        self._counts = [load > 0 for load in self._load]
        self._open: list[int] = []
        self._states: dict[tuple[int, ...], int] = {(): 0}
        self.num_states, self.first_turn = [1], [0]
        self.turns: list[tuple[int, int, int, int]] = []
        self.num_left_out = 0

    def append(self, node: int) -> None:
        """The states after one more node, and the turns to them."""
        here = [wire for wire in self._wires_of[node] if self._counts[wire]]
        for wire in here:
            self._left[wire] -= 1
        wires = self._open + [wire for wire in here if wire not in self._open]
        touched = [wire in here for wire in wires]
        stays = [self._left[wire] > 0 for wire in wires]
        fresh = len(wires) - len(self._open)
        after: dict[tuple[int, ...], int] = {}
        turns = []
        for state, source in self._states.items():
            for is_in in (_OUT, _IN):
                new, cost = [], 0
                for wire, touch, stay, status in zip(
                    wires, touched, stays, state + (is_in,) * fresh, strict=True
                ):
                    if touch and status not in (is_in, _BOTH):
                        cost += self._load[wire]
                    if stay:
                        new.append(_BOTH if touch and status != is_in else status)
                target = after.setdefault(tuple(new), len(after))
                turns.append((source, target, is_in, cost))
        self._open = [wire for wire, stay in zip(wires, stays, strict=True) if stay]
        self._keep(after, turns)

    def _keep(
        self, after: dict[tuple[int, ...], int], turns: list[tuple[int, int, int, int]]
    ) -> None:
        number = list(range(len(after)))
        while len(after) > self._most_states:
            place = min(range(len(self._open)), key=lambda i: (self._load[self._open[i]], i))
            fewer: dict[tuple[int, ...], int] = {}
            joined = [
                fewer.setdefault(state[:place] + state[place + 1 :], len(fewer)) for state in after
            ]  # states stand in the order of their numbers
            number = [joined[each] for each in number]
            after = fewer
            self._counts[self._open.pop(place)] = False
            self.num_left_out += 1
        moved = [(source, number[target], is_in, cost) for source, target, is_in, cost in turns]
        self.turns += sorted(moved, key=lambda turn: turn[1])
        self._states = after
        self.num_states.append(len(after))
        self.first_turn.append(len(self.turns))
