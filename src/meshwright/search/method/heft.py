"""HEFT as a method: its placement and order, made again with less memory until the plan fits."""

from time import perf_counter

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.search.bound.work import placement_bound
from meshwright.search.instance import make_instance, order_plan
from meshwright.search.judge import judge, refuse, tighten, try_plan
from meshwright.search.method.mcmc.mcmc import no_device_message
from meshwright.search.order.heft import schedule_heft

_TRIES = 6
"""Plans that lack memory are made again with less to fill, so often at most."""


def heft(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,  # noqa: ARG001 - all methods are called alike
    budget_seconds: float = 30.0,  # noqa: ARG001
    sharing: str = "fair",
) -> Answer:
    """HEFT's placement and order."""
    started = perf_counter()
    instance = make_instance(graph, cluster)
    bound = placement_bound(instance)
    if not np.isfinite(instance.unit_seconds).any(axis=1).all():
        return refuse("heft", no_device_message(instance), bound, started)
    limits = cluster.memory_bytes
    for _ in range(_TRIES):
        device_of_op, order, seconds = schedule_heft(instance, limits)
        plan = order_plan(instance, device_of_op, order)
        verdict = try_plan(graph, cluster, plan, sharing)
        if verdict.fits:
            break
        limits = tighten(limits, verdict)
    statistics = {"unshared_seconds": seconds}
    return judge("heft", graph, cluster, plan, bound, started, statistics, sharing, verdict)
