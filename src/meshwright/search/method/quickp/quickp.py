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
from time import perf_counter

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.cluster.cluster import Cluster
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
from meshwright.plan.answer import Answer
from meshwright.plan.plan import Plan
from meshwright.search.bound.work import placement_bound
from meshwright.search.instance import (
    Instance,
    make_instance,
    mean_device_seconds,
    mean_transfer,
    order_plan,
)
from meshwright.search.judge import judge, refuse, tighten, try_plan, why_stopped
from meshwright.search.method.mcmc.mcmc import first_placement, no_device_message
from meshwright.search.method.quickp.programme.model import Order
from meshwright.search.method.quickp.programme.programme import (
    ProgrammeResult,
    keeps_to,
    solve_programme,
)
from meshwright.search.method.quickp.scope import (
    GROUPS,
    Coarsener,
    OpOrder,
    QuickpScope,
    ThresholdRule,
)
from meshwright.search.order.heft import schedule_heft
from meshwright.search.order.list_schedule import order_seconds

Scheme = Callable[[Graph, Floats, float], Coarsening]
"""Graph, delay of each op, seconds a byte -> coarse graph."""

PUBLISHED = QuickpScope()
_ONE_GROUP = (
    "the co-location ended in one group, so that no other plan than one device's was possible; "
    "a cap (max_share), the other rule or another scheme leaves more"
)
_TRIES = 6
"""Plans that lack memory are made again with less to fill, so often at most."""


def quickp(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,
    budget_seconds: float = 30.0,
    sharing: str = "fair",
    scope: QuickpScope = PUBLISHED,
    gap: float = 0.0,
    scheme: Scheme | None = None,
) -> Answer:
    """QuickP's placement and order.

    `scope`: the coarsening and who decides the order. `gap`: the solver ends when no schedule of
    the coarse graph is faster by more than this part. `scheme`: a coarsening in the place of the
    scope's.
    """
    started = perf_counter()
    instance = make_instance(graph, cluster)
    bound = placement_bound(instance)
    if not np.isfinite(instance.unit_seconds).any(axis=1).all():
        return refuse("quickp", no_device_message(instance), bound, started)
    coarsen = scheme or find_scheme(scope, seed)
    coarsening = coarsen(_timed(instance), *reference_delays(instance))
    coarse = make_instance(coarsening.graph, cluster)
    statistics = {
        "ops": float(graph.num_ops),
        "coarse_ops": float(coarse.num_ops),
        "groups": float(coarse.num_units),
        "coarsen_seconds": perf_counter() - started,
        "solve_seconds": 0.0,
    }
    if not np.isfinite(coarse.unit_seconds).any(axis=1).all():
        return refuse("quickp", no_device_message(coarse), bound, started, statistics)
    limits, until = cluster.memory_bytes, started + budget_seconds
    order: Order = "fixed" if scope.order is OpOrder.FIXED else "free"
    for number in range(_TRIES):
        budget = _share(coarse, limits, until - perf_counter(), number)
        began = perf_counter()
        found = solve_programme(
            coarse, order=order, start=_warm_start(coarse, order, limits), limits=limits,
            budget_seconds=budget, seed=seed, gap=gap,
        )  # fmt: skip
        statistics |= _solved(found, perf_counter() - began, statistics)
        plan = _fine_plan(instance, coarsening, found)
        verdict = try_plan(graph, cluster, plan, sharing)
        if verdict.fits or "interrupted" in found.statistics:
            break
        limits = tighten(limits, verdict)
    stop = why_stopped(
        is_interrupted="interrupted" in found.statistics, is_cut=not found.is_within(gap)
    )
    answer = judge(
        "quickp", graph, cluster, plan, bound, started, statistics, sharing, verdict, stop
    )
    return replace(answer, notes=(_ONE_GROUP,)) if coarse.num_units == 1 < graph.num_ops else answer


def find_scheme(scope: QuickpScope, seed: int = 0) -> Scheme:
    """The coarsening of a scope."""
    groups = scope.groups or GROUPS
    schemes: dict[Coarsener, Scheme] = {
        Coarsener.QUICKP: partial(
            coarsen_quickp, rule=scope.rule or ThresholdRule.PERCENTILE, max_share=scope.max_share
        ),
        Coarsener.FUSION: partial(fuse_ops, max_share=scope.max_share),
        Coarsener.COLOCRL: coarsen_colocrl,
        Coarsener.PLACETO: partial(coarsen_placeto, num_ops=groups),
        Coarsener.SPOTLIGHT: coarsen_spotlight,
        Coarsener.METIS: partial(coarsen_metis, num_groups=groups, seed=seed),
        Coarsener.PARMESAN: partial(coarsen_parmesan, num_clusters=groups),
    }
    return schemes[scope.scheme]


def reference_delays(instance: Instance) -> tuple[Floats, float]:
    """Seconds of each op, mean over devices that can run it; seconds a byte, mean over pairs."""
    _, per_byte = mean_transfer(instance)
    return mean_device_seconds(instance), per_byte


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


def _fine_plan(instance: Instance, coarsening: Coarsening, found: ProgrammeResult) -> Plan:
    """Every op where its coarse op is, in the coarse order."""
    placed = coarsening.place(found.device_of_op)
    return order_plan(instance, placed, coarsening.order(found.order))
