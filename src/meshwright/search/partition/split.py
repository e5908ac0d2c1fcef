"""The best contiguous split of a graph over devices, with a proof where there is time for one."""

import math
from dataclasses import dataclass, field, replace
from time import perf_counter

import numpy as np

from meshwright.plan.answer import Stop
from meshwright.search.partition.downset import Chains
from meshwright.search.partition.lattice import Lattice, find_lattice
from meshwright.search.partition.problem import (
    Ints,
    SplitProblem,
    device_loads,
    fits_memory,
)
from meshwright.search.partition.reduce import Reduction, memory_may_bind, reduce_problem

MAX_DOWNSETS = 1_000_000
"""Downsets that are enumerated: about half a gigabyte with six devices and 1,000 nodes."""

_STEPS = (0.02, 0.06, 0.15, 0.4, 1.0, 3.0)
"""How far above the bound the limit of the dynamic programme is set, in turn: the lower it is, the
less is left to look at, and a limit without a split is a proven bound."""

_TOLERANCE = 1e-10
"""Relative: splits that are better by less than this are not looked for."""

_ROUNDING = 1e-9
"""Relative: by how much sums in another order may differ."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Split:
    """Stages, or why there are none."""

    stage_of_node: Ints
    """Numbered in the order of the pipeline; -1 where there is no split."""
    kind_of_stage: tuple[int, ...]
    seconds: float
    """The largest load."""
    bound_seconds: float
    stop: Stop
    reason: str = ""
    statistics: dict[str, float] = field(default_factory=dict)


def solve_split(problem: SplitProblem, *, budget_seconds: float = 10.0) -> Split:
    """Stages that minimise the largest load, exactly where the graph has few downsets.

    The problem is made smaller first. Where memory may bind, that keeps nodes with bytes apart; if
    there are too many downsets then, they are joined all the same and the bound is of the problem
    without their bytes.
    """
    until = perf_counter() + budget_seconds
    reason = _refuse(problem)
    if reason:
        return _nothing(problem, reason)
    reduction = reduce_problem(problem)
    lattice = find_lattice(reduction.problem, MAX_DOWNSETS)
    if lattice is None and memory_may_bind(problem):
        return _solve_joined(problem, until)
    return _solve_reduced(problem, reduction, lattice, until)


def _refuse(problem: SplitProblem) -> str:
    """Why no device can run some node, whatever the split."""
    usable = [kind for kind in problem.kinds if kind.count >= kind.width]
    if not usable:
        return "there is no device"
    flights = min(problem.in_flight, default=0)
    held = problem.bytes + flights * problem.saved_bytes
    can_run = np.array([np.isfinite(k.seconds) & (held <= k.memory_bytes) for k in usable])
    stuck = np.flatnonzero(~can_run.any(axis=0))
    if len(stuck):
        most = max(kind.memory_bytes for kind in usable)
        return (
            f"node {stuck[0]} fits no device: it holds {held[stuck[0]]:.0f} bytes, the most that a "
            f"device has is {most:.0f}"
            if held[stuck[0]] > most
            else f"no device can run node {stuck[0]}"
        )
    return ""


def _nothing(problem: SplitProblem, reason: str, bound: float = math.inf) -> Split:
    return Split(
        stage_of_node=np.full(problem.num_nodes, -1, dtype=np.int32),
        kind_of_stage=(),
        seconds=math.inf,
        bound_seconds=bound,
        stop=Stop.INFEASIBLE,
        reason=reason,
    )


def _solve_joined(problem: SplitProblem, until: float) -> Split:
    """Where there are too many downsets to keep nodes apart for the sake of their bytes.

    Without the bytes of what was joined, the optimum bounds the problem's from below, and is its
    optimum where it happens to fit.
    """
    reduction = reduce_problem(problem, ignore_memory=True)
    lattice = find_lattice(reduction.problem, MAX_DOWNSETS)
    stayed = np.flatnonzero(reduction.node_of >= 0)
    held, saved = np.zeros(len(stayed)), np.zeros(len(stayed))
    held[reduction.node_of[stayed]] = problem.bytes[stayed]
    saved[reduction.node_of[stayed]] = problem.saved_bytes[stayed]
    light = replace(reduction.problem, bytes=held, saved_bytes=saved)
    relaxed = _solve_reduced(problem, replace(reduction, problem=light), lattice, until)
    if relaxed.stop is Stop.INFEASIBLE:
        return relaxed
    if fits_memory(problem, relaxed.stage_of_node, relaxed.kind_of_stage):
        return relaxed
    heavy = _solve_reduced(problem, reduction, lattice, until)
    bound = relaxed.bound_seconds
    if heavy.stop is Stop.INFEASIBLE:
        return replace(heavy, bound_seconds=bound)
    is_proved = heavy.seconds <= bound * (1 + _ROUNDING)
    return replace(heavy, bound_seconds=bound, stop=Stop.PROVED if is_proved else Stop.LIMIT)


def _solve_reduced(
    problem: SplitProblem, reduction: Reduction, lattice: Lattice | None, until: float
) -> Split:
    """A split along one order of the nodes first, which limits the search among all downsets."""
    smaller = reduction.problem
    search = _Search(_as_chain(smaller), None, until)
    search.run()
    if lattice is not None:
        search = _Search(smaller, lattice, until, start=search)
        search.run()
    statistics = {
        "nodes": float(smaller.num_nodes),
        "downsets": float(lattice.num_downsets) if lattice is not None else math.inf,
        "stages_seen": float(search.stages_seen),
    }
    bound = search.bound if lattice is not None else search.first_bound
    if not math.isfinite(search.seconds):
        reason = "no split of this graph into contiguous stages was found that fits the memory"
        return replace(_nothing(problem, reason, bound), statistics=statistics)
    stage = reduction.restore(search.stage_of_node)
    seconds = float(device_loads(problem, stage, search.kind_of_stage).max())
    assert seconds <= search.seconds * (1 + _ROUNDING), "a reduction makes no device busier"
    is_proved = seconds <= bound * (1 + _ROUNDING)
    return Split(
        stage_of_node=stage,
        kind_of_stage=search.kind_of_stage,
        seconds=seconds,
        bound_seconds=min(bound, seconds),
        stop=Stop.PROVED if is_proved else Stop.LIMIT,
        statistics=statistics,
    )


def _as_chain(problem: SplitProblem) -> SplitProblem:
    """The same nodes in the order of their numbers: one downset more than nodes."""
    order = np.arange(problem.num_nodes, dtype=np.int32)
    return replace(problem, edge_source=order[:-1], edge_target=order[1:])


def _largest_load(problem: SplitProblem) -> float:
    """What no device's load can exceed."""
    wires = float(problem.wire_seconds.sum())
    return (1 + _ROUNDING) * max(
        float(kind.seconds[np.isfinite(kind.seconds)].sum()) + kind.wire_share * wires
        for kind in problem.kinds
    )


class _Search:
    """The dynamic programme under rising limits, and the best split so far."""

    def __init__(
        self,
        problem: SplitProblem,
        lattice: Lattice | None,
        until: float,
        start: "_Search | None" = None,
    ) -> None:
        if lattice is None:
            lattice = find_lattice(problem, problem.num_nodes + 1)
            assert lattice is not None, "a chain has one downset more than nodes"
        self._chains, self._until = Chains(problem, lattice), until
        self.bound = self.first_bound = self._chains.first_bound
        self._ceiling = _largest_load(problem)
        self.seconds: float = start.seconds if start else math.inf
        self.stage_of_node: Ints = start.stage_of_node if start else np.empty(0, dtype=np.int32)
        self.kind_of_stage: tuple[int, ...] = start.kind_of_stage if start else ()
        self._stages_before = start.stages_seen if start else 0

    @property
    def stages_seen(self) -> int:
        """Stages that were looked at."""
        return self._stages_before + self._chains.stages_seen

    def run(self) -> None:
        """Search until the best split is proved or the time is up."""
        for step in (*_STEPS, math.inf):
            most = min(self.seconds * (1 - _TOLERANCE), self._ceiling)
            limit = min(self.first_bound * (1 + step), most) if self.first_bound > 0 else most
            if limit < self.bound:
                continue
            self._chains.start()
            is_done = self._advance(limit)
            seconds, stage_of_node, kind_of_stage = self._chains.result()
            if seconds < self.seconds:
                self.seconds = seconds
                self.stage_of_node, self.kind_of_stage = stage_of_node, kind_of_stage
            if not is_done:
                return
            if math.isfinite(seconds) or limit >= most:
                self.bound = self.seconds
                return
            self.bound = max(self.bound, limit)

    def _advance(self, limit: float) -> bool:
        while not self._chains.advance(limit):
            if perf_counter() > self._until:
                return False
        return True
