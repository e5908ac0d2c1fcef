"""QuickP's integer programme (Wang et al., ICC 2025) on CP-SAT: makespan of a placement.

Every unit is on one device, devices hold what is on them, an op starts when what it reads has
arrived, and a device runs one op at a time. Only pairs of ops neither of which reaches the other
(parallelisable ones) need the last rule. Who goes first of such a pair is decided by a topological
sort (the papers) or by the solver. Transfers do not share links. Knows nothing of coarsening and of
the simulator.

Times become whole ticks, rounded down, and so stay a relaxation: take any real schedule and round
its starts down; since floor(a + b) >= floor(a) + floor(b), every "not before" of the rounded
programme holds, and its makespan has not grown. So the solver's bound, in ticks, is a bound on real
schedules. A tick is a power of two of seconds, 2**-30 of the first schedule or less: times that are
short binary fractions are not rounded at all. What is returned is timed again without rounding.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.errors import InputError
from meshwright.search.bound.work import placement_bound
from meshwright.search.clock import Clock
from meshwright.search.instance import Instance
from meshwright.search.method.mcmc import first_placement
from meshwright.search.method.quickp.programme.data import num_parallel_pairs, reachability
from meshwright.search.method.quickp.programme.model import (
    MEMORY_TOLERANCE,
    OPTIMAL_GAP,
    Model,
    Order,
    ProgrammeResult,
    Status,
)
from meshwright.search.order.list_schedule import order_seconds
from meshwright.search.solver import run_solver

_SECONDS = 10.0
"""Of a search that is given no clock."""
MAX_PAIRS = 500_000
"""Parallelisable pairs of ops beyond which the programme is not built. With 1.5 million (2,847 ops)
10 s became 25, for neither a better schedule nor a better bound (2026-11-15)."""
MAX_OPS = 20_000
"""Likewise; their reachability would take 50 MB."""
_ROUNDING = 1.0 - 1e-10
"""Quotients that are floored have an error in the last bits; bounds stay below it."""


def solve_programme(
    instance: Instance,
    *,
    order: Order = "fixed",
    start: tuple[Ints, Ints] | None = None,
    clock: Clock | None = None,
    limits: Floats | None = None,
    workers: int = 1,
    seed: int = 0,
    deterministic_seconds: float | None = None,
    gap: float = 0.0,
) -> ProgrammeResult:
    """The best schedule found within the time, `start` at worst, with the solver's bound.

    `start`: device of each op and a topological order; with a fixed order this is the sort that
    decides, and without a start it is the graph's own. `limits`: bytes of each device; None: what
    it has. Same seed, same result where `deterministic_seconds` (the solver's own clock) ends the
    search and not the budget, with one worker. `gap`: the search ends when no schedule is faster by
    more than this part. Ctrl-C ends it with the best so far.
    """
    if order not in ("fixed", "free"):
        raise InputError(f"order: must be one of fixed, free, got {order!r}")
    if workers not in (1, 2):
        raise InputError(f"workers: must be 1 or 2, got {workers}")
    clock = clock or Clock(_SECONDS)
    limits = instance.cluster.memory_bytes if limits is None else limits
    first = _first_result(instance, start, limits)
    if first.is_within(gap) or instance.num_ops > MAX_OPS:
        return first
    reach = reachability(instance)
    pairs = num_parallel_pairs(reach)
    first.statistics["pairs"] = float(pairs)
    if pairs > MAX_PAIRS or clock.is_over:  # to state it takes seconds, too
        return first
    model = Model(instance, first, limits, reach, order)
    first.statistics["build_seconds"] = clock.elapsed
    solver = _make_solver(order, clock.left, workers, seed, deterministic_seconds)
    # Its gap is a part of what it has found, ours of the bound.
    solver.parameters.relative_gap_limit = gap / (1 + gap)
    status = run_solver(solver, model.model, clock)
    return _read(model, solver, status, first, limits, order)


def _first_result(
    instance: Instance, start: tuple[Ints, Ints] | None, limits: Floats
) -> ProgrammeResult:
    """The start, as a result; proved where it meets the instance's own bound."""
    if start is None:
        units = first_placement(instance)
        assert units is not None, "a unit can run on no device"
        start = units[instance.unit_of], np.arange(instance.num_ops, dtype=np.int32)
    seconds, bound = order_seconds(instance, *start), placement_bound(instance)
    assert math.isfinite(seconds), "the start has an op where it cannot run"
    fits = keeps_to(instance, start[0], limits)
    is_proved = fits and seconds <= bound * (1 + OPTIMAL_GAP)
    return ProgrammeResult(
        device_of_op=np.asarray(start[0], np.int32),
        order=np.asarray(start[1], np.int32),
        seconds=seconds,
        bound_seconds=bound,
        status=Status.OPTIMAL if is_proved else Status.TOO_LARGE,
        fits=fits,
        statistics={"start_seconds": seconds},
    )


def keeps_to(instance: Instance, device_of_op: Ints, limits: Floats) -> bool:
    """Whether no device holds more than its limit, by what units hold."""
    unit_device = np.asarray(device_of_op)[instance.unit_ops[instance.unit_start[:-1]]]
    held = np.bincount(unit_device, weights=instance.unit_bytes, minlength=instance.num_devices)
    return bool((held <= limits * (1 + MEMORY_TOLERANCE)).all())


def _make_solver(
    order: Order, seconds: float, workers: int, seed: int, deterministic_seconds: float | None
) -> Any:
    from ortools.sat.python import cp_model

    solver: Any = cp_model.CpSolver()
    parameters = solver.parameters
    parameters.max_time_in_seconds = max(seconds, 1e-3)
    parameters.num_workers = workers
    parameters.random_seed = seed % 2**31
    parameters.catch_sigint_signal = False
    # Without it presolve may drop the very schedule that is the hint.
    parameters.keep_all_feasible_solutions_in_presolve = True
    # It took 7.7 of 10 s on a step of 759 ops and 4 devices, before any search; on small ones it
    # makes no difference (15 of 18 proofs with it and without, 2026-11-15).
    parameters.cp_model_probing_level = 0
    # Several searches take turns. With a free order one search alone is a matter of luck: 4 proofs
    # in 15 runs against 10; with a fixed one both prove all 15, and one alone is 2 to 3 times
    # faster (AlexNet, VGG-16, coarse BERT, 2 and 4 devices, 2026-11-15).
    parameters.interleave_search = order == "free"
    if deterministic_seconds is not None:
        parameters.max_deterministic_time = deterministic_seconds
    return solver


def _read(
    model: Model, solver: Any, status: Any, first: ProgrammeResult, limits: Floats, order: Order
) -> ProgrammeResult:
    """The better of what the solver has and the start, with the better of the two bounds."""
    name = solver.status_name(status)
    statistics = first.statistics | {
        "solve_seconds": solver.wall_time,
        "branches": float(solver.num_branches),
        "conflicts": float(solver.num_conflicts),
    }
    assert name != "MODEL_INVALID", "the programme is not valid"
    if name == "INFEASIBLE":
        assert not first.fits, "the start is a solution"
        return replace(
            first, bound_seconds=math.inf, status=Status.INFEASIBLE, statistics=statistics
        )
    if name == "UNKNOWN":
        kept = Status.FEASIBLE if first.fits else Status.UNKNOWN
        return replace(first, status=kept, statistics=statistics)
    bound = max(first.bound_seconds, solver.best_objective_bound * model.tick * _ROUNDING)
    is_exact = solver.objective_value <= solver.best_objective_bound
    on = np.array([[solver.value(literal) for literal in places] for places in model.on])
    placed = on.argmax(axis=1).astype(np.int32)[model.instance.unit_of]
    starts = np.array([solver.value(variable) for variable in model.start])
    # By start; of equal ones by number, which is topological.
    by_start = np.lexsort((np.arange(len(starts)), starts)).astype(np.int32)
    runs = first.order if order == "fixed" else by_start
    found = replace(
        first,
        device_of_op=placed,
        order=runs,
        seconds=order_seconds(model.instance, placed, runs),
        bound_seconds=bound,
        # With a gap to stop at, the solver calls whatever is within it optimal.
        status=Status.OPTIMAL if name == "OPTIMAL" and is_exact else Status.FEASIBLE,
        fits=keeps_to(model.instance, placed, limits),
        statistics=statistics,
    )
    if first.fits and first.seconds <= found.seconds:
        return replace(
            found,
            device_of_op=first.device_of_op,
            order=first.order,
            seconds=first.seconds,
            fits=True,
        )
    return found
