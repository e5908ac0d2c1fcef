"""Splits a graph freely: any node on any device, the largest load as low as can be.

Nodes that some best split keeps together are joined, annealing improves the split that is given,
and prices of nodes prove how much lower a split could be. Work is counted, not timed, so the same
seed and budget give the same answer; only where a machine is far slower than the one on which work
was measured does the clock end the search, five seconds and half the budget late.
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from meshwright.array import Ints
from meshwright.errors import InputError
from meshwright.plan.answer import Stop
from meshwright.search.method.pipeline.stage.anneal import Annealing
from meshwright.search.method.pipeline.stage.problem import (
    SplitProblem,
    device_loads,
    find_stuck_node,
    fits_memory,
    without_misfits,
)
from solver.free.bound import Bounding
from solver.free.exact import solve_exactly
from solver.free.line import line_up
from solver.free.reduce import reduce_problem

_STEP_SECONDS = 2.5e-7
"""A step of a walk (one core of a server, 2026-11-15)."""
_WORK_SECONDS = 2.5e-8
"""A unit of the bound's work (same machine)."""
_WALK_SHARE = 0.3
"""Of the budget, for annealing."""
_STEPS_PER_NODE = 4000
_MOST_STEPS = 2_000_000
"""Of one walk."""
_FIRST_WALKS = 6
"""Before the first bound, at most."""
_SLICES = 20
"""Of the bound's work; a walk may follow each."""
_MOST_EXACT = 400
"""Nodes times devices, beyond which CP-SAT is not asked."""
_EXACT_SHARE = 0.1
"""Of the budget, in CP-SAT's deterministic seconds: about as many again on the clock, or several
times that."""
_GRACE_SECONDS = 5.0
"""After half the budget more, the clock ends the search whatever work is left."""
_TOLERANCE = 1e-9
"""Relative; a bound this near says that a split is best."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FreeSplit:
    """The answer."""

    device_of_node: Ints
    """Empty where none fits."""
    kind_of_device: tuple[int, ...]
    seconds: float
    """The largest load; infinity without a split."""
    bound_seconds: float
    """No free split has a lower one; infinity: none fits."""
    stop: Stop
    reason: str = ""
    """What is in the way where nothing fits."""
    stuck_node: int = -1
    """The node that no device can take, where that is the reason."""
    search_seconds: float = 0.0
    is_interrupted: bool = False
    """Whether Ctrl-C ended the search."""
    statistics: Mapping[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """How far above the bound the largest load may be: seconds / bound - 1."""
        if self.seconds <= self.bound_seconds:
            return 0.0
        return self.seconds / self.bound_seconds - 1 if self.bound_seconds > 0 else math.inf


def solve_free(
    problem: SplitProblem,
    start: Sequence[int] | Ints | None = None,
    *,
    kind_of_device: Sequence[int] | None = None,
    seed: int = 0,
    budget_seconds: float = 30.0,
) -> FreeSplit:
    """The best split found, never above `start`, and a proven bound.

    Ctrl-C ends the search with the best split so far; before there is one, it is raised.

    `kind_of_device` numbers the devices of `start`; devices that it does not name come after them.
    Without it, devices are numbered kind by kind. Microbatches in flight belong to numbers.
    """
    began = perf_counter()
    if not problem.num_nodes:
        return _empty_split(_number_devices(problem, kind_of_device))
    kinds = _number_devices(problem, kind_of_device)
    problem = without_misfits(problem)
    reason, stuck = _find_obstacle(problem, kinds)
    if reason:
        return replace(_no_split(kinds, reason, math.inf), stuck_node=stuck)
    given = _first_split(problem, kinds) if start is None else np.array(start, dtype=np.int32)
    _check_start(problem, kinds, given, is_given=start is not None)
    search = _Search(problem, kinds, given, seed)
    try:
        search.run(budget_seconds, began + 1.5 * budget_seconds + _GRACE_SECONDS)
    except KeyboardInterrupt:
        if not search.fits:
            raise
        search.is_interrupted = True
    if not search.fits:
        return _no_split(kinds, search.reason, search.bound_seconds)
    is_proved = search.seconds <= search.bound_seconds * (1 + _TOLERANCE)
    return FreeSplit(
        device_of_node=search.best,
        kind_of_device=kinds,
        seconds=search.seconds,
        bound_seconds=min(search.bound_seconds, search.seconds),
        stop=Stop.PROVED if is_proved else Stop.LIMIT,
        search_seconds=perf_counter() - began,
        is_interrupted=search.is_interrupted,
        statistics=search.statistics(),
    )


class _Search:
    """Walks and bounds on the joined nodes, and the best split of all nodes."""

    def __init__(
        self, problem: SplitProblem, kinds: tuple[int, ...], given: Ints, seed: int
    ) -> None:
        self._problem, self._kinds = problem, kinds
        self.best = given
        self.fits = fits_memory(problem, given, kinds)
        self.seconds = float(device_loads(problem, given, kinds).max(initial=0.0))
        self.bound_seconds = 0.0
        self.reason = "memory: no split was found that fits every device"
        self.is_interrupted = False
        self._seed = seed
        reduced = reduce_problem(problem)
        self._small, self._node_of = reduced.problem, reduced.node_of
        self._line = line_up(self._small)
        small_start = self._gather(given)
        loads = device_loads(self._small, small_start, kinds)
        if not np.isfinite(loads).all():
            small_start = _first_split(self._small, kinds)
        self._walks = Annealing(self._small, kinds, small_start, self._line, seed)
        self._bounding: Bounding | None = None

    def run(self, budget_seconds: float, deadline: float) -> None:
        """Walk, then bound and walk in turns until proved or the budget is spent."""
        length = min(_MOST_STEPS, _STEPS_PER_NODE * self._small.num_nodes)
        steps = int(_WALK_SHARE * budget_seconds / _STEP_SECONDS)
        for _ in range(_FIRST_WALKS):
            self._walk(min(length, steps - self._walks.steps))
        if not self.fits or self.seconds <= 0:
            self._finish_exactly(budget_seconds)
            return
        work = int((1 - _WALK_SHARE) * budget_seconds / _WORK_SECONDS / _SLICES)
        self._bounding = Bounding(self._small, self._line, self._walks.best_seconds)
        while not self._is_done(work * _SLICES, steps) and perf_counter() < deadline:
            if self._bounding.work < work * _SLICES:
                self._bounding.run(self._walks.best, self._kinds, work)
                self.bound_seconds = self._bounding.seconds
            if not self._is_proved():
                self._walk(min(length, steps - self._walks.steps))
        if not self._is_proved() and self._small.num_nodes * len(self._kinds) <= _MOST_EXACT:
            self._finish_exactly(budget_seconds)

    def _finish_exactly(self, budget_seconds: float) -> None:
        """Ask CP-SAT for a better split, or for the proof that there is none."""
        longest = self._walks.best_seconds
        if not self.fits:  # any split will do; no load is above the sum of everything
            slowest = np.where(np.isfinite(self._walks.seconds), self._walks.seconds, 0.0)
            longest = float(slowest.max(axis=0).sum() + self._small.wire_seconds.sum())
        if longest <= 0 or self._small.num_nodes * len(self._kinds) > _MOST_EXACT:
            return
        exact = solve_exactly(
            self._small,
            self._kinds,
            self._walks.best,
            longest * (1 + _TOLERANCE),
            seed=self._seed,
            work_seconds=_EXACT_SHARE * budget_seconds,
        )
        if exact.device_of_node is not None:
            self._walks.offer(exact.device_of_node)
            self._offer(exact.device_of_node[self._node_of])
        if math.isinf(exact.bound_seconds):
            self.reason = "memory: no split fits every device"
        self.bound_seconds = max(self.bound_seconds, exact.bound_seconds)

    def statistics(self) -> dict[str, float]:
        """Counts of the search."""
        bounding = self._bounding
        return {
            "nodes": float(self._small.num_nodes),
            "steps": float(self._walks.steps),
            "work": float(bounding.work) if bounding else 0.0,
            "sets": float(bounding.num_sets) if bounding else 0.0,
        }

    def _is_proved(self) -> bool:
        return self.seconds <= self.bound_seconds * (1 + _TOLERANCE)

    def _is_done(self, most_work: int, most_steps: int) -> bool:
        assert self._bounding is not None
        is_tired = self._bounding.is_finished or self._bounding.work >= most_work
        return self._is_proved() or (is_tired and self._walks.steps >= most_steps)

    def _walk(self, steps: int) -> None:
        if steps > 0:
            self._walks.run(steps)
            self._offer(self._walks.best[self._node_of])

    def _offer(self, device_of_node: Ints) -> None:
        seconds = float(device_loads(self._problem, device_of_node, self._kinds).max())
        if fits_memory(self._problem, device_of_node, self._kinds) and (
            not self.fits or seconds < self.seconds
        ):
            self.best, self.seconds, self.fits = device_of_node, seconds, True

    def _gather(self, device_of_node: Ints) -> Ints:
        """Joined nodes go where the one of them is that holds most, then takes longest."""
        fastest = np.min([kind.seconds for kind in self._problem.kinds], axis=0)
        order = np.lexsort((fastest, self._problem.bytes + self._problem.saved_bytes))
        small = np.zeros(self._small.num_nodes, dtype=np.int32)
        small[self._node_of[order]] = device_of_node[order]  # the last one counts
        return small


def _number_devices(problem: SplitProblem, kind_of_device: Sequence[int] | None) -> tuple[int, ...]:
    for kind in problem.kinds:
        if kind.width != 1 or kind.pool:
            raise InputError(
                f"free split: kind {kind.name} must have width 1 and a pool of its own, got width "
                f"{kind.width} and pool '{kind.pool}'"
            )
    named = tuple(kind_of_device or ())
    used = Counter(named)
    for k, kind in enumerate(problem.kinds):
        if used[k] > kind.count:
            raise InputError(
                f"free split: kind {kind.name} has {kind.count:,} devices, the start uses {used[k]}"
            )
    rest = tuple(k for k, kind in enumerate(problem.kinds) for _ in range(kind.count - used[k]))
    devices = named + rest
    # Beyond the numbers that say how many microbatches are in flight nobody knows.
    return devices[: len(problem.in_flight)] if problem.in_flight else devices


def _find_obstacle(problem: SplitProblem, kinds: tuple[int, ...]) -> tuple[str, int]:
    """Why no split of a problem without misfits can fit, where that is plain, and the node that is
    in the way or -1."""
    if not kinds:
        return "there is no device", -1
    room = sum(problem.kinds[kind].memory_bytes for kind in kinds)
    if problem.bytes.sum() > room:
        reason = (
            f"memory: all nodes together hold {problem.bytes.sum():,.0f} bytes, all devices have "
            f"{room:.0f}"
        )
        return reason, -1
    stuck = find_stuck_node(problem)
    return ("", -1) if stuck < 0 else (f"node {stuck}: no device can run and hold it", stuck)


def _check_start(
    problem: SplitProblem, kinds: tuple[int, ...], start: Ints, *, is_given: bool
) -> None:
    if len(start) != problem.num_nodes or (
        len(start) and not 0 <= start.min() <= start.max() < len(kinds)
    ):
        raise InputError(
            f"free split: the start must name one of {len(kinds):,} devices for each of "
            f"{problem.num_nodes:,} nodes, got {len(start):,} entries"
        )
    if is_given and not (
        fits_memory(problem, start, kinds)
        and np.isfinite(device_loads(problem, start, kinds)).all()
    ):
        raise InputError("free split: the start must fit every device's memory and run on it")


def _first_split(problem: SplitProblem, kinds: tuple[int, ...]) -> Ints:
    """Large nodes first, each where it leaves the most room of the devices that can run it, then
    where the load is least; it may not fit."""
    room = np.array([problem.kinds[kind].memory_bytes for kind in kinds])
    load = np.zeros(len(kinds))
    seconds = np.array([problem.kinds[kind].seconds for kind in kinds])
    split = np.zeros(problem.num_nodes, dtype=np.int32)
    for node in np.argsort(-problem.bytes, kind="stable").tolist():
        after = room - problem.bytes[node]
        device = min(
            np.flatnonzero(np.isfinite(seconds[:, node])).tolist(),
            key=lambda d: (after[d] < 0, load[d] + seconds[d, node], d),
        )
        split[node] = device
        room[device] -= problem.bytes[node]
        load[device] += seconds[device, node]
    return split


def _empty_split(kinds: tuple[int, ...]) -> FreeSplit:
    return FreeSplit(
        device_of_node=np.zeros(0, dtype=np.int32),
        kind_of_device=kinds,
        seconds=0.0,
        bound_seconds=0.0,
        stop=Stop.PROVED,
    )


def _no_split(kinds: tuple[int, ...], reason: str, bound_seconds: float) -> FreeSplit:
    return FreeSplit(
        device_of_node=np.zeros(0, dtype=np.int32),
        kind_of_device=kinds,
        seconds=math.inf,
        bound_seconds=bound_seconds,
        stop=Stop.INFEASIBLE,
        reason=reason,
    )
