"""Asks CP-SAT for the best free split of a small problem, memory included.

Worth it where memory binds, which the bound by prices leaves out, and to close the last gap. Loads
and bytes are rounded down to whole units and limits up: the programme is a relaxation, so its bound
holds, and a split that it finds is checked with the true numbers by the caller.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.search.clock import Clock
from meshwright.search.method.pipeline.stage.problem import SplitProblem
from meshwright.search.solver import run_solver
from solver.free.curve import DOWN, whole_loads

_UNITS = 2**38
"""In the largest load of the split that is to be beaten: fine enough for an equal bound to count
as a proof, small enough for CP-SAT's sums."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exact:
    """What CP-SAT says."""

    device_of_node: Ints | None
    bound_seconds: float
    """Infinity: no split fits."""


def solve_exactly(
    problem: SplitProblem,
    kind_of_device: Sequence[int],
    hint: Ints,
    most_seconds: float,
    *,
    seed: int,
    work_seconds: float,
) -> Exact:
    """The split of the lowest largest load, at most `most_seconds`, as far as the work reaches;
    `work_seconds` are CP-SAT's deterministic seconds."""
    from ortools.sat.python import cp_model  # takes 0.4 s

    model = cp_model.CpModel()
    unit = most_seconds / _UNITS
    placed = _place(model, problem, kind_of_device)
    largest = model.new_int_var(0, _UNITS, "")
    for device, kind in enumerate(kind_of_device):
        terms = _load_terms(model, problem, kind, placed[device], unit)
        model.add(sum(terms) <= largest)
        _limit_memory(model, problem, device, kind, placed[device])
    _order_equal_devices(model, problem, kind_of_device, placed)
    for node, device in enumerate(hint.tolist()):
        model.add_hint(placed[device][node], 1)
    model.minimize(largest)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % 2**31
    solver.parameters.max_deterministic_time = work_seconds
    clock = Clock()
    status = run_solver(solver, model, clock)
    if clock.is_interrupted:
        raise KeyboardInterrupt
    if status == cp_model.INFEASIBLE:
        return Exact(device_of_node=None, bound_seconds=float("inf"))
    bound = max(0.0, np.floor(solver.best_objective_bound)) * unit * DOWN
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Exact(device_of_node=None, bound_seconds=bound)
    values = np.array([[solver.value(x) for x in row] for row in placed])
    return Exact(device_of_node=values.argmax(axis=0).astype(np.int32), bound_seconds=bound)


def _place(model: Any, problem: SplitProblem, kind_of_device: Sequence[int]) -> list[list[Any]]:
    """Whether a device holds a node, for each device and node."""
    placed = [
        [
            model.new_bool_var("") if np.isfinite(second) else model.new_constant(0)
            for second in problem.kinds[kind].seconds
        ]
        for kind in kind_of_device
    ]
    for node in range(problem.num_nodes):
        model.add_exactly_one(row[node] for row in placed)
    return placed


def _load_terms(
    model: Any, problem: SplitProblem, kind: int, held: list[Any], unit: float
) -> list[Any]:
    node_load = np.maximum(0, whole_loads(problem.kinds[kind].seconds, unit))
    share = problem.kinds[kind].wire_share
    wire_load = whole_loads(problem.wire_seconds * share, unit)
    terms = [int(load) * x for load, x in zip(node_load, held, strict=True) if load > 0]
    for wire in np.flatnonzero(wire_load > 0).tolist():
        pins = problem.pins(wire)
        is_cut = model.new_bool_var("")
        # Held in part: some pin is held and some is not, so two in a row around a circle differ.
        for u, v in pairwise([*pins, pins[0]]):
            model.add_bool_or(held[u].negated(), held[v], is_cut)
        terms.append(int(wire_load[wire]) * is_cut)
    return terms


def _limit_memory(
    model: Any, problem: SplitProblem, device: int, kind: int, held: list[Any]
) -> None:
    limit = problem.kinds[kind].memory_bytes
    need: Floats = problem.bytes.copy()
    if problem.in_flight:
        need += problem.in_flight[device] * problem.saved_bytes
    if need.sum() <= limit:
        return
    unit = float(need.sum()) / _UNITS
    whole = np.floor(need / unit * DOWN).astype(np.int64)
    model.add(
        sum(int(size) * x for size, x in zip(whole, held, strict=True))
        <= int(np.ceil(limit / unit / DOWN))
    )


def _order_equal_devices(
    model: Any, problem: SplitProblem, kind_of_device: Sequence[int], placed: list[list[Any]]
) -> None:
    """Of two equal devices the first holds the first node; in flight, no two are equal."""
    if problem.in_flight:
        return
    for kind in set(kind_of_device):
        alike = [device for device, each in enumerate(kind_of_device) if each == kind]
        for first, second in pairwise(alike):
            for node in range(problem.num_nodes):
                model.add(placed[second][node] <= sum(placed[first][:node]))
