"""Favourite children: for each op at most one reader that should run where it does.

The linear programme of SCT (Hanen and Munier, IEEE ETFA 1995), as Baechi's m-SCT uses it
(Jeon et al., SoCC 2020): on equal devices without end, which reader of each op saves
its transfer, so that the step is shortest. Knows nothing of how many devices there are.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.search.instance import Instance, mean_device_seconds, mean_transfer

_APART = 0.5
"""A reader is a favourite where its variable is below: two readers of an op, or two sources of a
reader, never are, as at most one unit is missing from all of theirs."""
_SLACK = 1e-6
"""Relative: what the second programme may be above the first's optimum."""
_ROUNDING = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Favourites:
    """The favourite edges: ops on paths that want to stay on one device."""

    child: Ints
    """The favourite child of each op; -1: it has none."""
    parent: Ints
    relaxed_seconds: float
    """Optimum of the programme, below every schedule on equal devices; 0 where it was not solved
    in time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """A step on equal devices: what the programme is about."""

    seconds: Floats
    source: Ints
    target: Ints
    """The op that each edge leads to; every pair stands once."""
    apart_seconds: Floats
    """What its target waits for it on another device; 0: they never are on two."""


def mean_delays(instance: Instance, unit_of: Ints) -> Delays:
    """Of unequal devices the means: of an op over devices that run it, of transfers over pairs.

    `unit_of` says which ops share a device in any case.
    """
    num_ops = instance.num_ops
    target = np.repeat(np.arange(num_ops, dtype=np.int64), np.diff(instance.in_start))
    source = instance.in_edges["op"].astype(np.int64)
    pairs, number = np.unique(source * num_ops + target, return_inverse=True)
    # What is SAVED has no bytes to move and no latency.
    moved = np.bincount(number, weights=np.maximum(instance.in_edges["bytes"], 0.0))
    is_tensor = np.bincount(number, weights=instance.in_edges["bytes"] >= 0.0) > 0
    source, target = pairs // num_ops, pairs % num_ops
    latency, per_byte = mean_transfer(instance)
    are_apart = is_tensor & (unit_of[source] != unit_of[target])
    return Delays(
        seconds=mean_device_seconds(instance),
        source=source.astype(np.int32),
        target=target.astype(np.int32),
        apart_seconds=np.where(are_apart, latency + moved * per_byte, 0.0),
    )


def find_favourites(delays: Delays, limit_seconds: float = 10.0) -> Favourites:
    """Solve the relaxed programme; of its optima the one that saves the most transfer time.

    The variable of an edge is 1 where its transfer is waited for and 0 where it is saved; Baechi
    takes any optimum, which leaves edges off the longest path to chance. Where the solver does not
    end in time, edges are saved greedily, the longest transfers first.
    """
    total = float(delays.seconds.sum() + delays.apart_seconds.sum())
    if not len(delays.source) or total <= 0:
        return _match(delays, np.zeros(0, dtype=np.int64), 0.0)
    programme = _Programme(delays, 1.0 / total)
    solved = programme.solve(limit_seconds)
    choosable = np.flatnonzero(delays.apart_seconds * (1.0 / total) > 0)  # as the programme has it
    if solved is None:
        by_length = choosable[np.argsort(-delays.apart_seconds[choosable], kind="stable")]
        return _match(delays, by_length, 0.0)
    optimum, waits = solved
    return _match(delays, choosable[waits < _APART - _ROUNDING], optimum * total)


def _match(delays: Delays, edges: Any, relaxed_seconds: float) -> Favourites:
    """Keep edges, in their order, whose ends are free."""
    child = np.full(len(delays.seconds), -1, dtype=np.int32)
    parent = child.copy()
    for edge in edges.tolist():
        source, target = delays.source[edge], delays.target[edge]
        if child[source] < 0 and parent[target] < 0:
            child[source], parent[target] = target, source
    return Favourites(child=child, parent=parent, relaxed_seconds=relaxed_seconds)


class _Programme:
    """Minimise the end of the last op.

    Each op starts after every source's end and, where it waits for the transfer, that: s_j >= s_i +
    p_i + c_ij x_ij. Of each op's readers all but one wait, and of each reader's sources.
    """

    def __init__(self, delays: Delays, scale: float) -> None:
        from ortools.linear_solver import pywraplp  # takes 0.2 s

        self._solver: Any = pywraplp.Solver.CreateSolver("GLOP")
        assert self._solver is not None, "OR-Tools comes with GLOP"
        self._optimal = self._solver.OPTIMAL
        end = self._solver.infinity()
        seconds = (delays.seconds * scale).tolist()
        starts = [self._solver.NumVar(0.0, end, "") for _ in seconds]
        self._last = self._solver.NumVar(0.0, end, "")
        self._waits: list[Any] = []
        self._costs: list[float] = []
        around: dict[tuple[str, int], list[Any]] = {}
        edges = zip(delays.source.tolist(), delays.target.tolist(), strict=True)
        for (i, j), cost in zip(edges, (delays.apart_seconds * scale).tolist(), strict=True):
            row = self._at_least(seconds[i], (starts[j], 1.0), (starts[i], -1.0))
            if cost > 0:
                wait = self._solver.NumVar(0.0, 1.0, "")
                row.SetCoefficient(wait, -cost)
                self._waits.append(wait)
                self._costs.append(cost)
                around.setdefault(("out", i), []).append(wait)
                around.setdefault(("in", j), []).append(wait)
        for waits in around.values():
            self._at_least(len(waits) - 1.0, *((wait, 1.0) for wait in waits))
        for op in np.setdiff1d(np.arange(len(seconds)), delays.source).tolist():
            self._at_least(seconds[op], (self._last, 1.0), (starts[op], -1.0))

    def _at_least(self, least: float, *terms: tuple[Any, float]) -> Any:
        row = self._solver.Constraint(least, self._solver.infinity())
        for variable, coefficient in terms:
            row.SetCoefficient(variable, coefficient)
        return row

    def solve(self, limit_seconds: float) -> tuple[float, Floats] | None:
        """The optimum and whether each edge that may be saved is waited for."""
        self._solver.SetTimeLimit(max(1, int(500 * limit_seconds)))  # ms, for each of two
        objective = self._solver.Objective()
        objective.SetMinimization()
        objective.SetCoefficient(self._last, 1.0)
        if self._solver.Solve() != self._optimal:
            return None
        optimum, waits = self._last.solution_value(), self._read()
        self._last.SetUb(optimum * (1 + _SLACK))
        objective.SetCoefficient(self._last, 0.0)
        for wait, cost in zip(self._waits, self._costs, strict=True):
            objective.SetCoefficient(wait, cost)
        if self._solver.Solve() == self._optimal:
            waits = self._read()
        return optimum, waits

    def _read(self) -> Floats:
        return np.array([wait.solution_value() for wait in self._waits])
