"""Joins nodes that some best free split keeps together.

Two rules, each an exchange that raises no device's load (u on device a, v on another, b):

- A node v that takes no time anywhere and whose wires all reach u can join u: a pays for these
  wires already, as v is elsewhere.
- Where the wires between u and v alone cost at least as much as v's seconds and its wires that do
  not reach u, v can join u if a pays for wires, or if v takes no time where wires are free. Else u
  has to join v, so the same must hold for u, and no second device may be free of charge.

Memory: where it may bind, only nodes that hold nothing may move to join another.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints
from meshwright.search.method.pipeline.stage.problem import DeviceKind, SplitProblem, make_problem
from meshwright.search.method.pipeline.stage.reduce import memory_may_bind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reduced:
    """A smaller problem with the same best value."""

    problem: SplitProblem
    node_of: Ints
    """The smaller problem's node of each node."""


def reduce_problem(problem: SplitProblem) -> Reduced:
    """Join nodes until no rule applies; order plays no role in free splits and is dropped."""
    node_of = np.arange(problem.num_nodes, dtype=np.int32)
    small = _contract(problem, node_of)
    while True:
        joined = _join(small)
        if joined is None:
            return Reduced(problem=small, node_of=node_of)
        small = _contract(small, joined)
        node_of = joined[node_of]


def _contract(problem: SplitProblem, node_of: Ints) -> SplitProblem:
    num_nodes = int(node_of.max()) + 1 if len(node_of) else 0

    def sums(values: Floats) -> Floats:
        return np.bincount(node_of, weights=values, minlength=num_nodes).astype(np.float64)

    kinds = [
        DeviceKind(
            name=kind.name,
            count=kind.count,
            seconds=sums(kind.seconds),
            memory_bytes=kind.memory_bytes,
            wire_share=kind.wire_share,
        )
        for kind in problem.kinds
    ]
    return make_problem(
        kinds=kinds,
        num_bytes=sums(problem.bytes),
        saved_bytes=sums(problem.saved_bytes),
        in_flight=problem.in_flight,
        edges=(),
        wires=[
            (node_of[problem.pins(wire)].tolist(), float(problem.wire_seconds[wire]))
            for wire in range(problem.num_wires)
        ],
    )


def _join(problem: SplitProblem) -> Ints | None:
    """New numbers of the nodes after disjoint pairs were joined; none where no pair is."""
    rules = _Rules(problem)
    partner = np.full(problem.num_nodes, -1, dtype=np.int64)
    for v in range(problem.num_nodes):
        u = rules.partner(v, partner) if partner[v] < 0 else -1
        if u >= 0:
            partner[u], partner[v] = v, u
    if (partner < 0).all():
        return None
    leader = np.where(
        partner < 0, np.arange(len(partner)), np.minimum(partner, range(len(partner)))
    )
    _, numbers = np.unique(leader, return_inverse=True)
    return numbers.astype(np.int32)


class _Rules:
    """Which node a node can join."""

    def __init__(self, problem: SplitProblem) -> None:
        self._pins = [problem.pins(wire) for wire in range(problem.num_wires)]
        self._cost = problem.wire_seconds.tolist()
        self._wires_of: list[list[int]] = [[] for _ in range(problem.num_nodes)]
        for wire, pins in enumerate(self._pins):
            for node in pins:
                self._wires_of[node].append(wire)
        holds_nothing = problem.bytes + problem.saved_bytes == 0
        self._can_move = np.asarray(holds_nothing | (not memory_may_bind(problem)))
        kinds = [kind for kind in problem.kinds if kind.count]
        seconds: Floats = np.array([kind.seconds for kind in kinds])
        self._takes_time: npt.NDArray[np.bool_] = np.greater(seconds.max(axis=0), 0)
        paying = [kind for kind in kinds if kind.wire_share > 0]
        free = [kind for kind in kinds if kind.wire_share <= 0]
        self._has_one_free = sum(kind.count for kind in free) <= 1
        self._is_slow_there = np.zeros(problem.num_nodes, dtype=bool)
        for kind in free:
            self._is_slow_there |= kind.seconds > 0
        # Seconds of a node in seconds of wires, on the kind where they weigh most.
        self._weight = (
            np.max([kind.seconds / kind.wire_share for kind in paying], axis=0) if paying else None
        )

    def partner(self, v: int, taken: npt.NDArray[np.int64]) -> int:
        """A node that is not taken and that v can join, or -1."""
        if not self._can_move[v]:
            return -1
        near = {u for wire in self._wires_of[v] for u in self._pins[wire] if u != v}
        if not near:
            near = set(range(min(2, len(taken)))) - {v}
        for u in sorted(near):
            if taken[u] < 0 and (self._follows(v, u) or self._is_tied(v, u)):
                return u
        return -1

    def _follows(self, v: int, u: int) -> bool:
        if self._takes_time[v]:
            return False
        return all(u in self._pins[wire] for wire in self._wires_of[v])

    def _is_tied(self, v: int, u: int) -> bool:
        if not self._leans(v, u):
            return False
        if not self._is_slow_there[v]:
            return True
        return bool(self._has_one_free and self._can_move[u] and self._leans(u, v))

    def _leans(self, v: int, u: int) -> bool:
        if self._weight is None:
            return False
        between = math.fsum(
            self._cost[w]
            for w in self._wires_of[v]
            if len(self._pins[w]) == 2 and u in self._pins[w]
        )
        others = math.fsum(self._cost[w] for w in self._wires_of[v] if u not in self._pins[w])
        return bool(between >= self._weight[v] + others)
