"""Improves a contiguous split: all of its borders move at once, exactly.

Nodes are lined up in an order that keeps every stage together. Around each border a window of nodes
is left in the graph's own partial order, all others stay in line: the downsets of this narrower
graph are those of the windows, a few thousand, among which the dynamic programme finds the best
split. It contains the split that it starts from. Orders and windows change from round to round.

Work is counted, so the same seed gives the same split where the clock does not end it. Proves
nothing.
"""

import heapq
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from meshwright.array import Floats, Ints, places_in
from meshwright.search.method.pipeline.stage.downset import Rise, Stages
from meshwright.search.method.pipeline.stage.lattice import find_lattice, predecessors, successors
from meshwright.search.method.pipeline.stage.problem import SplitProblem, make_problem

_ROUND_STAGES = 2_000_000
"""Stages a round, about: windows grow until it looks at so many."""
_FIRST_DOWNSETS, _LEAST_DOWNSETS = 64, 8
"""How many downsets a window has at first, and at least."""
_MOST_DOWNSETS = 400_000
"""How many downsets all windows have together, at most."""
_FIRST_REACH = 8.0
"""How many nodes on either side of a border the first windows take."""
_GAIN = 1e-6
"""The part of the largest load that a round has to gain."""
_NUM_STYLES = 4
"""How many ways there are to line nodes up."""


class BorderWindows:
    """Splits of one problem; every round improves `best` or leaves it."""

    def __init__(self, problem: SplitProblem, until: float, seed: int) -> None:
        self._problem, self._until = problem, until
        self._random = np.random.default_rng(seed % 2**64)
        self._after, self._before = successors(problem), predecessors(problem)
        self._depth, self._height = _depths(problem), _heights(problem)
        self._reach: dict[int, float] = {}
        self._downsets = float(_FIRST_DOWNSETS)
        self._work = 0
        self.num_orders = 0
        """How many orders were tried."""
        self.best: Stages | None = None

    @property
    def stages_seen(self) -> int:
        """How many stages were looked at."""
        return self._work

    def try_order(self) -> None:
        """Search along one more order, the first that of the nodes' numbers, without windows."""
        stage_of_node = np.zeros(self._problem.num_nodes, dtype=np.int32)
        order = list(range(len(stage_of_node)))
        if self.num_orders:
            order = self._line_up(stage_of_node, self.num_orders)
        self.num_orders += 1
        self._solve(order, [], math.inf if self.best is None else self.best.seconds)

    def improve(self) -> bool:
        """One round of windows; whether the best split is better after it."""
        assert self.best is not None
        before, work = self.best.seconds, self._work
        order = self._line_up(self.best.stage_of_node, int(self._random.integers(_NUM_STYLES)))
        sizes = np.bincount(self.best.stage_of_node).astype(np.int32)
        self._solve(order, self._open_windows(order, sizes), before * (1 - _GAIN))
        if self._work - work > _ROUND_STAGES:
            self._downsets = max(_LEAST_DOWNSETS, self._downsets / 2)
        elif self._work - work < _ROUND_STAGES / 4:
            most = _MOST_DOWNSETS / max(1, len(sizes) - 1)
            self._downsets = max(_LEAST_DOWNSETS, min(most, self._downsets * 1.5))
        return self.best.seconds < before

    def _line_up(self, stage_of_node: Ints, style: int) -> list[int]:
        """Nodes in an order that keeps stages together: shuffled, branch after branch, level by
        level, or deep branches first. Of ready nodes the lowest rank comes next; `by_time` is what
        becoming ready a place later adds to it."""
        noise = self._random.random(self._problem.num_nodes)
        rank, by_time = (
            (noise, 0.0),
            (noise, -1.0),
            (self._depth + noise, 0.0),
            (noise - self._height, 0.0),
        )[style % _NUM_STYLES]
        after, missing = self._after, np.diff(self._before.start).tolist()
        stage_of, ranks = stage_of_node.tolist(), rank.tolist()
        ready = [(stage_of[v], ranks[v], v) for v, left in enumerate(missing) if not left]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            node = heapq.heappop(ready)[2]
            order.append(node)
            for other in after[node].tolist():
                missing[other] -= 1
                if not missing[other]:
                    place = ranks[other] + by_time * len(order)
                    heapq.heappush(ready, (stage_of[other], place, other))
        return order

    def _open_windows(self, order: Sequence[int], sizes: Ints) -> list[tuple[int, int]]:
        """Where windows begin and end in the order: around every border, as wide as its downsets
        allow, at most to the middle of the stages."""
        borders = np.concatenate(([0], np.cumsum(sizes))).tolist()
        windows = []
        for border in range(1, len(borders) - 1):
            first, here, last = borders[border - 1 : border + 2]
            low, high = (first + here) // 2 if border > 1 else first, (here + last) // 2
            if border == len(borders) - 2:
                high = last
            reach = self._reach.get(border, _FIRST_REACH)
            while True:
                window = max(low, here - round(reach)), min(high, here + round(reach))
                inside = self._count(order[window[0] : window[1]])
                if inside is not None or reach < 1:
                    break
                reach *= 0.7
            windows.append(window)
            is_narrow = inside is not None and inside < self._downsets / 2
            self._reach[border] = min(reach * 1.5, len(order)) if is_narrow else reach
        return windows

    def _count(self, nodes: Sequence[int]) -> int | None:
        """Downsets of a window; none where they are too many."""
        place = {node: number for number, node in enumerate(nodes)}
        inner = make_problem(
            kinds=(), num_bytes=np.zeros(len(nodes)), edges=self._inner_edges(place), wires=()
        )
        lattice = find_lattice(inner, int(self._downsets))
        return None if lattice is None else lattice.num_downsets

    def _inner_edges(self, place: Mapping[int, int]) -> list[tuple[int, int]]:
        """The edges between nodes that have a place, as places."""
        after = self._after
        return [
            (here, place[other])
            for node, here in place.items()
            for other in after[node].tolist()
            if other in place
        ]

    def _solve(
        self, order: Sequence[int], windows: Sequence[tuple[int, int]], most_seconds: float
    ) -> None:
        """The best split of the graph that is in line but for windows, if it is below a limit."""
        narrow = self._narrow(order, windows)
        lattice = find_lattice(narrow, _MOST_DOWNSETS + len(order))
        assert lattice is not None, "windows have few downsets"
        rise = Rise(narrow, lattice, self._until, most_seconds=most_seconds)
        rise.search(min(most_seconds, rise.ceiling_seconds), _ROUND_STAGES)
        self._work += rise.stages_seen + lattice.num_downsets
        if rise.best is not None:
            stage_of_node = np.empty(len(order), dtype=np.int32)
            stage_of_node[list(order)] = rise.best.stage_of_node
            self.best = replace(rise.best, stage_of_node=stage_of_node)

    def _narrow(self, order: Sequence[int], windows: Sequence[tuple[int, int]]) -> SplitProblem:
        """The problem with its nodes numbered by an order and in line, but for windows."""
        problem, nodes = self._problem, np.array(order, dtype=np.int64)
        place = places_in(nodes, len(order), np.int32)
        edges = sorted(self._line_edges(order, windows))
        return replace(
            problem,
            kinds=tuple(replace(kind, seconds=kind.seconds[nodes]) for kind in problem.kinds),
            bytes=problem.bytes[nodes],
            saved_bytes=problem.saved_bytes[nodes],
            edge_source=np.array([u for u, _ in edges], dtype=np.int32),
            edge_target=np.array([v for _, v in edges], dtype=np.int32),
            wire_node=place[problem.wire_node],
        )

    def _line_edges(
        self, order: Sequence[int], windows: Sequence[tuple[int, int]]
    ) -> set[tuple[int, int]]:
        """Edges of windows, and from the ends of each part of the line to the begins of the next:
        a part is a window, or a node outside of all."""
        edges: set[tuple[int, int]] = set()
        ends: list[int] = []
        at = 0
        for low, high in [*windows, (len(order), len(order))]:
            for node in range(at, low):
                edges |= {(end, node) for end in ends}
                ends = [node]
            if low == high:
                continue
            inner = self._inner_edges({order[place]: place for place in range(low, high)})
            begins = set(range(low, high)) - {v for _, v in inner}
            edges |= set(inner) | {(end, begin) for end in ends for begin in begins}
            ends = sorted(set(range(low, high)) - {u for u, _ in inner})
            at = high
        return edges


def _depths(problem: SplitProblem) -> Floats:
    """The edges on the longest path to each node."""
    depth = np.zeros(problem.num_nodes)
    for u, v in zip(problem.edge_source.tolist(), problem.edge_target.tolist(), strict=True):
        depth[v] = max(depth[v], depth[u] + 1)  # edges are sorted by their source
    return depth


def _heights(problem: SplitProblem) -> Floats:
    """The edges on the longest path from each node."""
    height = np.zeros(problem.num_nodes)
    edges = zip(problem.edge_source.tolist(), problem.edge_target.tolist(), strict=True)
    for u, v in reversed(list(edges)):
        height[u] = max(height[u], height[v] + 1)
    return height
