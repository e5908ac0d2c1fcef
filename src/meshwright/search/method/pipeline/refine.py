"""Moves single nodes over the boundaries of stages, after stages were cut from clusters of them.

Parmesan's refinement: of the moves that keep every stage convex and within its memory the best is
taken, whether or not it gains at once, one hundred times. Moves are compared by

1. the distance to the nearest reconverging op on the way that the boundary moves: within a branch
   no cut is cheaper before the branch ends, so that branches are to be finished;
2. the bytes that all stages exchange;
3. the time of the slowest stage.

`BY_TIME` compares them the other way round; of 132 cuts of real models it ended with a faster
slowest stage in 31, the published order in 19 (`benchmarks/pipeline.py`, 2026-11-15). `BY_BOTH`
walks one way and then the other. Whatever the order, the best stages on the way count: the result
is never slower than what it began with. A node that has moved rests for some steps, unless no other
can move.
"""

import math
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.array import Ints
from meshwright.search.method.pipeline.stage.lattice import (
    predecessors,
    successors,
    wires_of_nodes,
)
from meshwright.search.method.pipeline.stage.problem import SplitProblem

STEPS = 100
_REST = 25
"""Steps in which a node that has moved does not move back."""
BY_DISTANCE = "distance"
"""As published."""
BY_TIME = "time"
BY_BOTH = "both"

Gain = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class _Move:
    node: int
    target: int


def refine_split(
    problem: SplitProblem,
    stage_of_node: Ints,
    kind_of_stage: Sequence[int],
    *,
    steps: int = STEPS,
    order: str = BY_BOTH,
) -> Ints:
    """The best stages on a walk of so many moves, or on two of `BY_BOTH`."""
    if order == BY_BOTH:
        for each in (BY_TIME, BY_DISTANCE):
            stage_of_node = refine_split(
                problem, stage_of_node, kind_of_stage, steps=steps, order=each
            )
        return stage_of_node
    walk = _Walk(problem, stage_of_node, kind_of_stage)
    best, best_value = list(walk.stage), walk.value()
    rests: dict[int, int] = {}
    for step in range(steps):
        moves = list(walk.moves())
        awake = [move for move in moves if rests.get(move.node, 0) <= step]
        if not moves:
            break
        chosen = min(awake or moves, key=lambda move: walk.gain(move, order))
        walk.apply(chosen)
        rests[chosen.node] = step + _REST
        if walk.value() < best_value:
            best, best_value = list(walk.stage), walk.value()
    return np.array(best, dtype=np.int32)


class _Walk:
    """Stages, with the loads that they make."""

    def __init__(
        self, problem: SplitProblem, stage_of_node: Ints, kind_of_stage: Sequence[int]
    ) -> None:
        self.stage: list[int] = np.asarray(stage_of_node).tolist()
        count = len(kind_of_stage)
        kinds = [problem.kinds[kind] for kind in kind_of_stage]
        self._seconds = [kind.seconds.tolist() for kind in kinds]
        self._share = [kind.wire_share for kind in kinds]
        self._memory = [kind.memory_bytes for kind in kinds]
        flights = problem.in_flight or (0,) * count
        bytes_, saved = problem.bytes.tolist(), problem.saved_bytes.tolist()
        self._held_by = [
            [held + flights[stage] * more for held, more in zip(bytes_, saved, strict=True)]
            for stage in range(count)
        ]
        self._pins = [problem.pins(wire) for wire in range(problem.num_wires)]
        self._cost = problem.wire_seconds.tolist()
        self._after, self._before, self._wires = (
            [near[node].tolist() for node in range(problem.num_nodes)]
            for near in (successors(problem), predecessors(problem), wires_of_nodes(problem))
        )
        self._ahead = _distances(self._after, self._before)
        self._behind = _distances(self._before, self._after)
        self._load, self._held, self._size = [0.0] * count, [0.0] * count, [0] * count
        for node, stage in enumerate(self.stage):
            self._size[stage] += 1
            self._load[stage] += self._seconds[stage][node]
            self._held[stage] += self._held_by[stage][node]
        self._cut = 0.0
        for wire in range(len(self._pins)):
            self._count_wire(wire, 1.0)
        self._last: set[int] = set()
        self._first: set[int] = set()
        self._look_at(range(problem.num_nodes))

    def _look_at(self, nodes: Iterable[int]) -> None:
        """Whether each is followed, or preceded, by none of its own stage."""
        for node in nodes:
            stage = self.stage[node]
            for ends, neighbours in ((self._last, self._after), (self._first, self._before)):
                if any(self.stage[each] == stage for each in neighbours[node]):
                    ends.discard(node)
                else:
                    ends.add(node)

    def _count_wire(self, wire: int, sign: float) -> None:
        holders = {self.stage[node] for node in self._pins[wire]}
        if len(holders) > 1:
            for stage in holders:
                part = sign * self._share[stage] * self._cost[wire]
                self._load[stage] += part
                self._cut += part

    def value(self) -> tuple[float, float]:
        """The slowest stage's load, and what is exchanged."""
        return max(self._load), self._cut

    def moves(self) -> Iterator[_Move]:
        """Every node that may join the stage before or after its own."""
        for step, ends in ((1, self._last), (-1, self._first)):
            for node in sorted(ends):
                stage = self.stage[node]
                target = stage + step
                is_stage = 0 <= target < len(self._load)
                if is_stage and self._size[stage] > 1 and self._fits(node, target):
                    yield _Move(node, target)

    def _fits(self, node: int, target: int) -> bool:
        held = self._held[target] + self._held_by[target][node]
        return held <= self._memory[target] and math.isfinite(self._seconds[target][node])

    def gain(self, move: _Move, order: str) -> Gain:
        """What a move is picked by: the smallest first."""
        back = _Move(move.node, self.stage[move.node])
        kept = list(self._load), self._cut
        self._shift(move)
        slowest, cut = self.value()
        self._shift(back)
        # Sums that are undone are not what they were to the last bit.
        self._load, self._cut = kept
        is_later = move.target > back.target
        distance = (self._behind if is_later else self._ahead)[move.node]
        return (slowest, cut, distance) if order == BY_TIME else (distance, cut, slowest)

    def apply(self, move: _Move) -> None:
        """Move a node for good."""
        self._shift(move)
        node = move.node
        self._look_at((node, *self._after[node], *self._before[node]))

    def _shift(self, move: _Move) -> None:
        node, stage, target = move.node, self.stage[move.node], move.target
        for wire in self._wires[node]:
            self._count_wire(wire, -1.0)
        self.stage[node] = target
        for wire in self._wires[node]:
            self._count_wire(wire, 1.0)
        for place, sign in ((stage, -1), (target, 1)):
            self._size[place] += sign
            self._load[place] += sign * self._seconds[place][node]
            self._held[place] += sign * self._held_by[place][node]


def _distances(following: list[list[int]], preceding: list[list[int]]) -> list[float]:
    """Of each node how many steps away the nearest one is where branches meet; infinite: none."""
    distance = [math.inf] * len(following)
    queue = deque(node for node, before in enumerate(preceding) if len(before) > 1)
    for node in queue:
        distance[node] = 0.0
    while queue:
        node = queue.popleft()
        for each in preceding[node]:
            if distance[each] == math.inf:
                distance[each] = distance[node] + 1
                queue.append(each)
    return distance
