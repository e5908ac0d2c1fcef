"""The best contiguous split of a graph over devices, with a proof where there is time for one.

Chooses what to search in: the downsets of the graph made smaller; of the graph without the bytes of
nodes that are joined, where memory may bind; or windows around the borders of a split, where there
are too many downsets.
"""

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from meshwright.array import Ints
from meshwright.errors import InputError
from meshwright.plan.answer import Stop
from meshwright.search.method.pipeline.stage.anneal import Annealing
from meshwright.search.method.pipeline.stage.device_pool import (
    count_uses,
    find_prices,
    make_pools,
    slowest_node_seconds,
)
from meshwright.search.method.pipeline.stage.downset import ROUNDING, Rise, Stages
from meshwright.search.method.pipeline.stage.improve import Improvement
from meshwright.search.method.pipeline.stage.lattice import Lattice, find_lattice
from meshwright.search.method.pipeline.stage.problem import (
    SplitProblem,
    device_loads,
    find_stuck_node,
    fits_memory,
    without_misfits,
)
from meshwright.search.method.pipeline.stage.reduce import (
    Reduction,
    memory_may_bind,
    reduce_problem,
)

MAX_DOWNSETS = 1_000_000
"""Downsets that are enumerated, at most."""
_MAX_BYTES = 2e9
"""Of the tables over downsets."""
_MAX_USES = 20_000_000
"""Nodes times numbers of devices by pool."""
_MANY_DOWNSETS, _SECONDS_PER_DOWNSET = 10_000, 2e-5
"""Where there are more, a good split is looked for before all are searched, for so long: about a
tenth of what the search takes, more of which a lower limit saves."""
_SHORT_SHARE, _LONG_SHARE = 0.15, 0.5
"""Of the time, for better splits: before the search among all downsets, and instead of it."""
_MANY_TIMES = 8
"""More downsets: so many that nodes are joined without their bytes first."""
_FIT_WALKS, _FIT_STEPS_PER_NODE = 3, 1000
"""Walks from a split that is too full."""

Bounds = Callable[[SplitProblem, Stages, float, float], Iterator[float]]
"""Bounds on the largest load of any split of a problem, each from more work than the one before.
Given are the problem, a good split of it, the bound that is known already and the `perf_counter`
time when the search ends."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StageSplit:
    """Stages, or why there are none."""

    stage_of_node: Ints
    """Numbered in the order of the pipeline; -1 where there is no split."""
    kind_of_stage: tuple[int, ...]
    seconds: float
    """The largest load; infinity without a split."""
    bound_seconds: float
    """No contiguous split has a lower one; infinity: there is none."""
    stop: Stop
    reason: str = ""
    """What is in the way where nothing fits."""
    stuck_node: int = -1
    """The node that no device can take, where that is the reason."""
    is_interrupted: bool = False
    """Whether Ctrl-C ended the search."""
    statistics: Mapping[str, float] = field(default_factory=dict)
    """Counts of the search."""


def solve_split(
    problem: SplitProblem,
    *,
    budget_seconds: float = 10.0,
    seed: int = 0,
    bounds: Bounds | None = None,
) -> StageSplit:
    """Stages that minimise the largest load, exactly where the graph has few downsets.

    `bounds` are asked where there are too many downsets for the search to prove anything.
    Ctrl-C ends the search with the best split so far; before there is one, it is raised.
    """
    began = perf_counter()
    if count_uses(problem) * problem.num_nodes > _MAX_USES:
        raise InputError(
            f"split: the numbers of devices by pool times the nodes must be at most {_MAX_USES}, "
            f"got {problem.num_devices:,} devices and {problem.num_nodes:,} nodes"
        )
    fitting = without_misfits(problem)
    if not any(kind.count >= kind.width for kind in problem.kinds):
        return _no_split(problem, "there is no device", math.inf)
    stuck = find_stuck_node(fitting)
    if stuck >= 0:
        reason = _describe_stuck(problem, stuck)
        return replace(_no_split(problem, reason, math.inf), stuck_node=stuck)
    solver = _Solver(fitting, began, budget_seconds, seed, bounds)
    try:
        solver.run()
    except KeyboardInterrupt:
        if not math.isfinite(solver.seconds):
            raise
        return replace(solver.answer(), is_interrupted=True)
    return solver.answer()


def _describe_stuck(problem: SplitProblem, node: int) -> str:
    usable = [kind for kind in problem.kinds if kind.count >= kind.width]
    held = problem.bytes + min(problem.in_flight, default=0) * problem.saved_bytes
    most = max(kind.memory_bytes for kind in usable)
    if held[node] > most:
        return (
            f"node {node} fits no device: it holds {held[node]:,.0f} bytes, the most that a device "
            f"has is {most:.0f}"
        )
    if any(np.isfinite(kind.seconds[node]) for kind in usable):
        return f"node {node} holds {held[node]:,.0f} bytes and fits no device that can run it"
    return f"no device can run node {node}"


def _no_split(problem: SplitProblem, reason: str, bound: float) -> StageSplit:
    return StageSplit(
        stage_of_node=np.full(problem.num_nodes, -1, dtype=np.int32),
        kind_of_stage=(),
        seconds=math.inf,
        bound_seconds=bound,
        stop=Stop.INFEASIBLE,
        reason=reason,
    )


class _Solver:
    """One problem, the best split of all its nodes and the highest bound."""

    def __init__(
        self,
        problem: SplitProblem,
        began: float,
        budget: float,
        seed: int,
        bounds: Bounds | None,
    ) -> None:
        self._problem, self._seed, self._bounds = problem, seed, bounds
        self._budget, self._until = budget, began + budget
        self._stage_of_node: Ints = np.empty(0, dtype=np.int32)
        self._kind_of_stage: tuple[int, ...] = ()
        self.seconds, self._bound = math.inf, 0.0
        self.statistics: dict[str, float] = {"stages_seen": 0.0}

    @property
    def _is_settled(self) -> bool:
        return self.seconds <= self._bound * (1 + ROUNDING) or math.isinf(self._bound)

    def answer(self) -> StageSplit:
        """The best split, or that there is none."""
        if not math.isfinite(self.seconds):
            reason = "no split into contiguous stages fits the memory"
            reason += "" if self._is_settled else ", of those that were looked at"
            nothing = _no_split(self._problem, reason, self._bound)
            return replace(nothing, statistics=self.statistics)
        return StageSplit(
            stage_of_node=self._stage_of_node,
            kind_of_stage=self._kind_of_stage,
            seconds=self.seconds,
            bound_seconds=min(self._bound, self.seconds),
            stop=Stop.PROVED if self._is_settled else Stop.LIMIT,
            statistics=self.statistics,
        )

    def run(self) -> None:
        """Search until the best split is proved or the time is up."""
        prices = find_prices(self._problem, make_pools(self._problem))
        self._bound = max(prices.bound_seconds, slowest_node_seconds(self._problem))
        reduction = reduce_problem(self._problem)
        improvement = Improvement(reduction.problem, self._until, self._seed)
        self._improve(reduction, improvement, 0.0)
        if memory_may_bind(self._problem):
            self._join_lazily(reduction.problem)
        if self._is_settled:
            return
        lattice = self._find_lattice(reduction.problem)
        if lattice is None:
            self._improve(reduction, improvement, _LONG_SHARE * self._budget)
            self._raise_bound(reduction.problem, improvement.best)
            self._improve(reduction, improvement, math.inf)
            return
        if lattice.num_downsets > _MANY_DOWNSETS:
            seconds = lattice.num_downsets * _SECONDS_PER_DOWNSET
            self._improve(reduction, improvement, min(_SHORT_SHARE * self._budget, seconds))
        self._search_all(reduction, reduction.problem, lattice, proves=True)

    def _find_lattice(self, problem: SplitProblem) -> Lattice | None:
        """All downsets of a smaller problem; none where their tables would be too large."""
        bytes_each = problem.num_nodes / 8 + 14 * count_uses(problem) + 100
        lattice = find_lattice(problem, min(MAX_DOWNSETS, int(_MAX_BYTES / bytes_each)))
        self.statistics["nodes"] = float(problem.num_nodes)
        self.statistics["downsets"] = float(lattice.num_downsets) if lattice else math.inf
        return lattice

    def _join_lazily(self, apart: SplitProblem) -> None:
        """Join nodes with bytes where that makes no device busier.

        With the bytes of what joined others, the smaller problem's splits fit the memory; without
        them, its optimum bounds the problem's from below, and is its optimum where it fits. Where
        it does not, some of the nodes that are too much stay apart from then on. Ends where there
        are few downsets, or not many more, with all of these nodes apart.
        """
        problem = self._problem
        heavy = set(np.flatnonzero(problem.bytes + problem.saved_bytes).tolist())
        while not self._is_settled and perf_counter() < self._until:
            reduction = reduce_problem(problem, heavy=heavy)
            joined = {node for node in heavy if reduction.node_of[node] < 0}
            lattice = self._find_lattice(reduction.problem) if joined else None
            if lattice is None:
                return
            few = max(_MANY_DOWNSETS, _MANY_TIMES * lattice.num_downsets)
            if find_lattice(apart, few) is not None:
                return
            self._search_all(reduction, reduction.problem, lattice, proves=False)
            light = _without_joined(problem, reduction)
            found = self._search_all(reduction, light, lattice, proves=True)
            if found is None:
                return
            if not self._is_settled:
                self._make_fit(found)
            heavy = joined - _find_surplus(problem, found, joined)

    def _make_fit(self, found: Stages) -> None:
        """Look near a split that is too full for one that is not."""
        problem, kinds = self._problem, found.kind_of_stage
        if len(problem.in_flight) not in (0, len(kinds)):
            return  # stages are numbered from the last one, devices from the first
        line = range(problem.num_nodes)
        walks = Annealing(problem, kinds, found.stage_of_node, line, self._seed, in_order=True)
        for _ in range(_FIT_WALKS):
            walks.run(_FIT_STEPS_PER_NODE * problem.num_nodes)
        if walks.fits:
            self._keep(walks.best, kinds)

    def _search_all(
        self, reduction: Reduction, smaller: SplitProblem, lattice: Lattice, *, proves: bool
    ) -> Stages | None:
        """Search among all downsets of a smaller problem for a split below the best; return it with
        the stages of all nodes. `proves`: what bounds its splits bounds the problem's."""
        rise = Rise(
            smaller,
            lattice,
            self._until,
            most_seconds=self.seconds,
            bound_seconds=self._bound,
        )
        try:
            rise.run()
        finally:
            self.statistics["stages_seen"] += rise.stages_seen
            found = None if rise.best is None else self._offer(reduction, rise.best)
            if proves:
                self._bound = max(self._bound, rise.bound_seconds)
        return found

    def _improve(self, reduction: Reduction, improvement: Improvement, seconds: float) -> None:
        """Look for a better split for about so many seconds."""
        seen = improvement.stages_seen
        try:
            improvement.run(seconds, self._bound * (1 + ROUNDING))
        finally:
            self.statistics["stages_seen"] += improvement.stages_seen - seen
            if improvement.best is not None:
                self._offer(reduction, improvement.best)

    def _raise_bound(self, smaller: SplitProblem, best: Stages | None) -> None:
        """Ask for higher bounds until the best split is proved or there are no more."""
        if self._bounds is None or best is None or best.seconds <= 0 or self._is_settled:
            return
        for seconds in self._bounds(smaller, best, self._bound, self._until):
            self._bound = max(self._bound, seconds)
            if self._is_settled:
                return

    def _offer(self, reduction: Reduction, found: Stages) -> Stages:
        """Keep a split of a smaller problem if it fits and is better; it with all nodes' stages."""
        stage_of_node = reduction.restore(found.stage_of_node)
        seconds = self._keep(stage_of_node, found.kind_of_stage)
        assert seconds <= found.seconds * (1 + ROUNDING), "a reduction makes no device busier"
        return replace(found, stage_of_node=stage_of_node, seconds=seconds)

    def _keep(self, stage_of_node: Ints, kinds: tuple[int, ...]) -> float:
        """Keep a split of all nodes if it fits and is better; returns its largest load."""
        loads = device_loads(self._problem, stage_of_node, kinds)
        seconds = float(loads.max(initial=0.0))
        if seconds < self.seconds and fits_memory(self._problem, stage_of_node, kinds):
            self._stage_of_node, self._kind_of_stage = stage_of_node, kinds
            self.seconds = seconds
        return seconds


def _without_joined(problem: SplitProblem, reduction: Reduction) -> SplitProblem:
    """A reduction's problem whose nodes hold the bytes of no node that joined them."""
    stayed = np.flatnonzero(reduction.node_of >= 0)
    held, saved = np.zeros(len(stayed)), np.zeros(len(stayed))
    held[reduction.node_of[stayed]] = problem.bytes[stayed]
    saved[reduction.node_of[stayed]] = problem.saved_bytes[stayed]
    return replace(reduction.problem, bytes=held, saved_bytes=saved)


def _find_surplus(problem: SplitProblem, found: Stages, joined: Collection[int]) -> set[int]:
    """Of the nodes that were counted without their bytes, the largest of every stage that is too
    full, as many as would have shown it."""
    flights = problem.in_flight[len(problem.in_flight) - len(found.kind_of_stage) :]
    surplus: set[int] = set()
    for stage, kind in enumerate(found.kind_of_stage):
        held = problem.bytes + (flights[stage] if flights else 0) * problem.saved_bytes
        inside = np.flatnonzero(found.stage_of_node == stage).tolist()
        over = held[inside].sum() - problem.kinds[kind].memory_bytes
        if over <= 0:
            continue
        # What is left without the smallest is still too much.
        unseen = sorted((node for node in inside if node in joined), key=lambda v: (held[v], v))
        sums = np.cumsum(held[unseen])
        surplus |= set(unseen[int(np.searchsorted(sums, over)) :])
    return surplus
