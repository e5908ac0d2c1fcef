"""QuickP as published (Wang et al., ICC 2025; Wang's thesis): coarsen, then the integer programme.

The base line that our own search is held against. Delays are means over devices; the coarse graph's
own order is the topological sort that decides who goes first. What the coarsening leaves in one
group cannot be divided any more: with the percentile rule that may be the whole step, and the plan
is then a single device's, which the answer's notes say. The programme's bound
holds for the coarse graph only and is no bound on plans.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.graph.coarsen.coarsening import Coarsening
from meshwright.graph.coarsen.colocate import coarsen_quickp
from meshwright.graph.coarsen.fusion import fuse_ops
from meshwright.graph.coarsen.schemes import (
    coarsen_colocrl,
    coarsen_metis,
    coarsen_parmesan,
    coarsen_placeto,
    coarsen_spotlight,
)
from meshwright.graph.graph import Graph
from meshwright.search.incumbent import Attempt
from meshwright.search.instance import (
    Instance,
    explain_nowhere,
    make_instance,
    mean_device_seconds,
    mean_transfer,
    order_plan,
)
from meshwright.search.judge import tighten
from meshwright.search.method.mcmc import first_placement
from meshwright.search.method.quickp.programme.model import Order, ProgrammeResult
from meshwright.search.method.quickp.programme.programme import keeps_to, solve_programme
from meshwright.search.method.quickp.scope import (
    GROUPS,
    Coarsener,
    OpOrder,
    QuickpScope,
    ThresholdRule,
)
from meshwright.search.order.heft import schedule_heft
from meshwright.search.order.list_schedule import order_seconds
from meshwright.search.problem import Problem

Scheme = Callable[[Graph, Floats], Coarsening]
"""Graph, delay of each op -> coarse graph."""

_ONE_GROUP = (
    "the co-location ended in one group, so that no other plan than one device's was possible; "
    "a cap (max_share), the other rule or another scheme leaves more"
)
_TRIES = 6
"""Plans that lack memory are made again with less to fill, so often at most."""


def quickp(problem: Problem, attempt: Attempt, *, scheme: Scheme | None = None) -> None:
    """QuickP's placement and order; `scheme`: a coarsening in the place of the scope's.

    The solver ends when no schedule of the coarse graph is faster by more than the problem's gap.
    """
    graph, instance, clock = problem.graph, problem.instance, problem.clock
    attempt.raise_bound(problem.placement_bound)
    if reason := explain_nowhere(instance):
        attempt.refuse(reason)
        return
    scope, statistics = problem.scope_of(QuickpScope), attempt.statistics
    coarsen = scheme or find_scheme(scope, instance, problem.seed)
    coarsening = coarsen(_timed(instance), mean_device_seconds(instance))
    coarse = make_instance(coarsening.graph, problem.cluster)
    statistics |= {
        "ops": float(graph.num_ops),
        "coarse_ops": float(coarse.num_ops),
        "groups": float(coarse.num_units),
        "coarsen_seconds": clock.elapsed,
        "solve_seconds": 0.0,
    }
    if reason := explain_nowhere(coarse):
        attempt.refuse(reason)
        return
    limits = problem.cluster.memory_bytes
    order: Order = "fixed" if scope.order is OpOrder.FIXED else "free"
    for number in range(_TRIES):
        solving = clock.more(_share(coarse, limits, clock.left, number))
        found = solve_programme(
            coarse, order=order, start=_warm_start(coarse, order, limits), limits=limits,
            clock=solving, seed=problem.seed, gap=problem.gap,
        )  # fmt: skip
        statistics |= _solved(found, solving.elapsed, statistics)
        placed = coarsening.place(found.device_of_op)
        plan = order_plan(instance, placed, coarsening.order(found.order))
        verdict = problem.try_plan(plan)
        attempt.offer(plan, verdict)
        if verdict.fits or clock.is_interrupted:
            break
        limits = tighten(limits, verdict)
    if not found.is_within(problem.gap):
        clock.cut()
    if coarse.num_units == 1 < graph.num_ops:
        attempt.notes = (_ONE_GROUP,)


def find_scheme(scope: QuickpScope, instance: Instance, seed: int = 0) -> Scheme:
    """The coarsening of a scope, which prices a byte by the mean over pairs of devices."""
    groups = scope.groups or GROUPS
    _, per_byte = mean_transfer(instance)
    schemes: dict[Coarsener, Scheme] = {
        Coarsener.QUICKP: partial(
            coarsen_quickp,
            seconds_per_byte=per_byte,
            rule=scope.rule or ThresholdRule.PERCENTILE,
            max_share=scope.max_share,
        ),
        Coarsener.FUSION: partial(fuse_ops, max_share=scope.max_share),
        Coarsener.COLOCRL: coarsen_colocrl,
        Coarsener.PLACETO: partial(coarsen_placeto, num_ops=groups),
        Coarsener.SPOTLIGHT: coarsen_spotlight,
        Coarsener.METIS: partial(coarsen_metis, num_groups=groups, seed=seed),
        Coarsener.PARMESAN: partial(
            coarsen_parmesan, seconds_per_byte=per_byte, num_clusters=groups
        ),
    }
    return schemes[scope.scheme]


def _timed(instance: Instance) -> Graph:
    """The graph with its times on every type as measured ones: coarse ops then take their sums."""
    names = instance.cluster.type_names
    return replace(
        instance.graph,
        seconds={name: instance.seconds[:, place].copy() for place, name in enumerate(names)},
    )


def _warm_start(coarse: Instance, order: Order, limits: Floats) -> tuple[Ints, Ints]:
    """The better of HEFT and one device: what keeps to the limits first, then what is faster."""
    own = np.arange(coarse.num_ops, dtype=np.int32)
    placed, by_start, _ = schedule_heft(coarse, limits)
    starts = [(placed, own if order == "fixed" else by_start)]
    units = first_placement(coarse)
    if units is not None:
        starts.append((units[coarse.unit_of], own))
    return min(
        starts,
        key=lambda each: (not keeps_to(coarse, each[0], limits), order_seconds(coarse, *each)),
    )


def _share(coarse: Instance, limits: Floats, left: float, number: int) -> float:
    """Seconds for a try: half of what is left, unless none can follow.

    None can where one device has room for twice of everything (received copies, gradients and
    workspace come on top of what is counted), or after the last.
    """
    is_roomy = 2 * float(coarse.unit_bytes.sum()) <= float(limits.min(initial=np.inf))
    return max(left, 1e-3) if is_roomy or number == _TRIES - 1 else max(left / 2, 1e-3)


def _solved(
    found: ProgrammeResult, seconds: float, statistics: dict[str, float]
) -> dict[str, float]:
    """What the last try adds to the statistics."""
    return {
        "solve_seconds": statistics["solve_seconds"] + seconds,
        "coarse_seconds": found.seconds,
        "coarse_bound_seconds": found.bound_seconds,
        "coarse_optimal": float(found.is_optimal),
    }
