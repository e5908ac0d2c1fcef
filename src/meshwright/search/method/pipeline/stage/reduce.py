"""Makes a problem of contiguous splits smaller without changing its optimum.

- A node v joins its only predecessor or only successor u where that makes no device busier: v's
  seconds, and the wires of v without u that may be cut instead, are at most the wire between the
  two alone. Whatever the split, moving v to u's stage then adds at most that to u's stage, whose
  wire to v is no longer cut, and v's old stage loses its seconds and that wire.
- A node without seconds and wires leaves; its predecessors still come before its successors.

Both move bytes between stages, so only nodes without bytes take part unless memory cannot bind.
The authors of the benchmark do a little of this (nodes without seconds and with one neighbour).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np

from meshwright.array import Ints, places_in
from meshwright.search.method.pipeline.stage.cycle import number_components
from meshwright.search.method.pipeline.stage.lattice import predecessors
from meshwright.search.method.pipeline.stage.problem import SplitProblem, make_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reduced:
    """Node `node` joined `into`, or left (-1) when these were its neighbours."""

    node: int
    into: int
    before: tuple[int, ...] = ()
    after: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reduction:
    """A smaller problem and the way back."""

    problem: SplitProblem
    node_of: Ints
    """The smaller problem's node of each node that stayed; -1 of the others."""
    steps: tuple[_Reduced, ...]

    def restore(self, stage_of_node: Ints) -> Ints:
        """Stages of all nodes from stages of the smaller problem's."""
        stage = np.where(self.node_of >= 0, stage_of_node[self.node_of], -1).astype(np.int32)
        for step in reversed(self.steps):
            if step.into >= 0:
                stage[step.node] = stage[step.into]
            elif step.before:
                stage[step.node] = stage[list(step.before)].max()
            else:
                stage[step.node] = stage[list(step.after)].min() if step.after else 0
        return stage


def memory_may_bind(problem: SplitProblem) -> bool:
    """Whether all nodes together are too large for some device."""
    flights = max(problem.in_flight, default=0)
    total = problem.bytes.sum() + flights * problem.saved_bytes.sum()
    return any(total > kind.memory_bytes for kind in problem.kinds if kind.count)


def reduce_problem(problem: SplitProblem, *, heavy: Iterable[int] = ()) -> Reduction:
    """Join and drop nodes until no rule applies.

    `heavy`: nodes with bytes that may join others although memory may bind. The smaller problem's
    nodes then hold the bytes of what joined them, and its optimum may be above the original's.
    """
    work = _Work(problem)
    bytes_matter = memory_may_bind(problem)
    may_join = (problem.bytes + problem.saved_bytes == 0) | (not bytes_matter)
    may_join[list(heavy)] = True
    waiting = set(range(problem.num_nodes))
    while waiting:  # rounds over what changed, in the order of numbers
        near: set[int] = set()
        for node in sorted(waiting):
            may_leave = not bytes_matter or work.is_light(node)
            if may_leave and work.can_leave(node):
                near |= work.drop(node)
            elif may_join[node]:
                near |= work.try_join(node)
        waiting = near & work.alive
    return work.finish()


class _Work:
    """A problem while nodes join and leave."""

    def __init__(self, problem: SplitProblem) -> None:
        self._problem = problem
        self._seconds = np.array([kind.seconds for kind in problem.kinds])
        self._bytes, self._saved = problem.bytes.copy(), problem.saved_bytes.copy()
        self._shares = np.array([kind.wire_share for kind in problem.kinds])
        self.alive = set(range(problem.num_nodes))
        self._before, self._after = _direct_edges(problem)
        self._wires: list[dict[frozenset[int], float]] = [{} for _ in range(problem.num_nodes)]
        for wire, seconds in enumerate(problem.wire_seconds.tolist()):
            self._add_wire(frozenset(problem.pins(wire)), seconds)
        self._steps: list[_Reduced] = []

    def _add_wire(self, pins: frozenset[int], seconds: float) -> None:
        if len(pins) > 1:
            for node in pins:
                self._wires[node][pins] = self._wires[node].get(pins, 0.0) + seconds

    def is_light(self, node: int) -> bool:
        """Whether a node, with what joined it, holds no bytes."""
        return bool(self._bytes[node] == 0 and self._saved[node] == 0)

    def can_leave(self, node: int) -> bool:
        """Whether a node has neither seconds nor wires, and few edges come in its place."""
        before, after = self._before[node], self._after[node]
        is_free = not self._wires[node] and not self._seconds[:, node].any()
        adds_few = len(before) * len(after) <= len(before) + len(after)
        return is_free and adds_few and len(self.alive) > 1

    def drop(self, node: int) -> set[int]:
        """Let a node leave; returns the nodes that may have become ready to join or leave."""
        before, after = self._before[node], self._after[node]
        self._leave(node, before, after)
        self._steps.append(
            _Reduced(node=node, into=-1, before=tuple(sorted(before)), after=tuple(sorted(after)))
        )
        return before | after

    def try_join(self, node: int) -> set[int]:
        """Let a node join its only predecessor or successor, where no device gets busier; returns
        the nodes that may have become ready to join or leave, none where it did not join."""
        for neighbours in (self._before[node], self._after[node]):
            if len(neighbours) == 1:
                (other,) = neighbours
                if self._may_join(node, other):
                    self._join(node, other)
                    near = {other} | self._before[other] | self._after[other]
                    return near.union(*self._wires[other])
        return set()

    def _may_join(self, node: int, other: int) -> bool:
        wires = self._wires[node]
        between = wires.get(frozenset((node, other)), 0.0)
        slack = between - sum(seconds for pins, seconds in wires.items() if other not in pins)
        if slack < 0:
            return False
        own, runs = self._seconds[:, node], np.isfinite(self._seconds[:, other])
        return bool((own[runs] <= self._shares[runs] * slack).all())

    def _join(self, node: int, other: int) -> None:
        for pins, seconds in list(self._wires[node].items()):
            for pin in pins:
                del self._wires[pin][pins]
            self._add_wire(pins - {node} | {other}, seconds)
        self._seconds[:, other] += self._seconds[:, node]
        self._bytes[other] += self._bytes[node]
        self._saved[other] += self._saved[node]
        self._leave(node, {other}, {other})
        self._steps.append(_Reduced(node=node, into=other))

    def _leave(self, node: int, sources: Iterable[int], targets: Iterable[int]) -> None:
        """Take a node out: `sources` come before what it came before, and the like."""
        self.alive.remove(node)
        before, after = self._before[node], self._after[node]
        for other in before:
            self._after[other].discard(node)
        for other in after:
            self._before[other].discard(node)
        pairs = [(u, v) for u in sources for v in after] + [(u, v) for u in before for v in targets]
        for u, v in pairs:
            if u != v:
                self._after[u].add(v)
                self._before[v].add(u)

    def finish(self) -> Reduction:
        """The smaller problem, its nodes in a topological order."""
        old = sorted(self.alive)
        place = {node: number for number, node in enumerate(old)}
        edges = [(place[u], place[v]) for u in old for v in self._after[u]]
        rank = number_components(len(old), edges)
        assert len(set(rank)) == len(old), "joining a neighbour makes no cycle"
        number_of = {node: rank[place[node]] for node in old}
        order = sorted(old, key=lambda node: number_of[node])
        wires = {pins: cost for node in old for pins, cost in self._wires[node].items()}
        node_of = places_in(order, self._problem.num_nodes, np.int32)
        kinds = [
            replace(kind, seconds=self._seconds[number, order])
            for number, kind in enumerate(self._problem.kinds)
        ]
        smaller = make_problem(
            kinds=kinds,
            num_bytes=self._bytes[order],
            saved_bytes=self._saved[order],
            in_flight=self._problem.in_flight,
            edges=[(number_of[u], number_of[v]) for u in old for v in self._after[u]],
            wires=[([number_of[pin] for pin in pins], cost) for pins, cost in wires.items()],
        )
        return Reduction(problem=smaller, node_of=node_of, steps=tuple(self._steps))


def _direct_edges(problem: SplitProblem) -> tuple[list[set[int]], list[set[int]]]:
    """Predecessors and successors of each node without those that a longer path implies."""
    count = problem.num_nodes
    above = [0] * count  # bit u of above[v]: u comes before v
    before: list[set[int]] = [set() for _ in range(count)]
    after: list[set[int]] = [set() for _ in range(count)]
    sources = predecessors(problem)
    for node in range(count):
        seen = 0
        for u in sorted(sources[node].tolist(), reverse=True):  # the nearest first
            if not seen >> u & 1:
                before[node].add(u)
                after[u].add(node)
            seen |= above[u] | 1 << u
        above[node] = seen
    return before, after
