"""Answers of other searches with the network shared out for their plans.

Knows nothing of how plans are found; where a plan is no faster so, it stays as it is.
"""

from dataclasses import replace
from time import perf_counter

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer, Stop
from meshwright.program.lower import choose_granularity
from meshwright.search.bound.work import placement_bound
from meshwright.search.instance import make_instance
from meshwright.search.judge import settle_stop, try_plan
from meshwright.search.method.bandwidth.joint.joint import GAP, UNIFORM
from meshwright.search.method.bandwidth.joint.space import find_space
from meshwright.search.method.bandwidth.rate.allocate import allocate
from meshwright.search.method.hybrid.bound import space_bound
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.space import make_space

_PLACEMENTS = ("single", "round-robin", "metis", "heft", "m-sct", "placement", "mcmc", "quickp")
"""Methods whose bound is of placements, and so of the network; of the others it knows none."""
MAX_HOSTS = 128
"""Of clusters whose pairs of hosts are given rates: there are as many as the square of it."""


def explain_nothing(cluster: Cluster) -> str:
    """Why there is nothing to allocate on a cluster; empty: there is something."""
    if len(cluster.hosts) < 2:
        return "nothing to allocate: the cluster has one host"
    if len(cluster.hosts) > MAX_HOSTS:
        return (
            f"nothing is allocated: the cluster has {len(cluster.hosts):,} hosts, at most "
            f"{MAX_HOSTS} can be"
        )
    if find_space(cluster) is None:
        return "nothing to allocate: the devices of different hosts share no way between hosts"
    return ""


def allocate_method(
    graph: Graph, cluster: Cluster, sharing: str, scope: Scope | None, name: str, answer: Answer
) -> Answer:
    """A method's answer whose plan has an allocation; `scope` is what `hybrid` looked at.

    Ctrl-C leaves the answer as it was.
    """
    bound = _bound(graph, cluster, scope, name, answer)
    if answer.stop is Stop.INTERRUPTED:
        return replace(answer, bound_seconds=bound)
    try:
        return allocate_answer(graph, cluster, answer, bound=bound, sharing=sharing)
    except KeyboardInterrupt:
        return replace(answer, bound_seconds=bound, stop=Stop.INTERRUPTED)


def _bound(graph: Graph, cluster: Cluster, scope: Scope | None, name: str, answer: Answer) -> float:
    """No plan of a method is faster, whatever is allocated."""
    if name in _PLACEMENTS:
        return widest_bound(graph, cluster)
    if name == "hybrid" and answer.stop is Stop.PROVED:  # by looking at all, which did not allocate
        return space_bound(make_space(graph, cluster, scope or Scope()))
    return answer.bound_seconds


def widest_bound(graph: Graph, cluster: Cluster) -> float:
    """No placement is faster, whatever is allocated: every pair has the most it could ever get."""
    instance, space = make_instance(graph, cluster), find_space(cluster)
    if space is not None:
        instance = replace(instance, bandwidth=space.bandwidth(space.most))
    return placement_bound(instance)


def allocate_answer(
    graph: Graph, cluster: Cluster, answer: Answer, *, bound: float, sharing: str = "fair"
) -> Answer:
    """An answer whose plan has the best allocation for it, if it is faster with one.

    `bound` holds for all plans of the answer's kind under all allocations.
    """
    started = perf_counter()
    statistics = {**answer.statistics, UNIFORM: answer.step_seconds}
    if answer.plan is None:
        return replace(answer, bound_seconds=bound)
    found = allocate(graph, cluster, answer.plan, sharing=sharing)
    granularity = choose_granularity(answer.plan)
    verdict = try_plan(graph, cluster, found.plan, sharing, granularity)
    chosen = replace(answer, bound_seconds=bound)
    if verdict.fits and verdict.step_seconds < answer.step_seconds:
        chosen = replace(
            chosen,
            plan=found.plan,
            step_seconds=verdict.step_seconds,
            peak_bytes=verdict.peak_bytes,
        )
        statistics[GAP] = found.gap
    stop = Stop.ENDED if answer.stop is Stop.PROVED else answer.stop  # proven without allocations
    return replace(
        chosen,
        stop=settle_stop(stop, chosen.step_seconds, bound),
        search_seconds=answer.search_seconds + perf_counter() - started,
        statistics=statistics,
    )
