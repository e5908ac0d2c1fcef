"""Answers of other searches with the network shared out for their plans.

Knows nothing of how plans are found; where a plan is no faster so, it stays as it is.
"""

from dataclasses import replace

from meshwright.cluster.cluster import Cluster
from meshwright.plan.answer import Stop
from meshwright.search.bound.work import placement_bound
from meshwright.search.claim import Claim
from meshwright.search.incumbent import Attempt
from meshwright.search.instance import Instance
from meshwright.search.method.bandwidth.joint.space import find_space
from meshwright.search.method.bandwidth.rate.allocate import allocate
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.space import make_space, space_bound
from meshwright.search.problem import Problem

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


def allocate_plan(problem: Problem, found: Attempt, shared: Attempt) -> None:
    """Share the network out for what a method has found, if its plan is faster so.

    `shared` is begun among the records of plans with allocations, whose bounds hold for all plans
    of the method under all allocations. Ctrl-C leaves the plan as it was.
    """
    shared.raise_bound(_bound(problem, found))
    shared.statistics |= found.statistics
    shared.notes, shared.runner_ups = found.notes, found.runner_ups
    shared.search_seconds = found.search_seconds
    if found.plan is None or found.verdict is None:
        shared.refuse(found.refusal)
        return
    shared.offer(found.plan, found.verdict)
    if not found.fits or found.stop is Stop.INTERRUPTED:
        return
    before = problem.clock.elapsed
    with problem.clock.heard():
        best = allocate(problem.graph, problem.cluster, found.plan, sharing=problem.sharing)
        if shared.offer(best.plan, problem.settle(best.plan)):
            shared.allocation_gap = best.gap
        shared.uniform_seconds = found.step_seconds
        shared.search_seconds += problem.clock.elapsed - before


def _bound(problem: Problem, found: Attempt) -> float:
    """No plan of a method is faster, whatever is allocated."""
    if found.claim is Claim.PLACEMENT:
        return widest_bound(problem.instance)
    if found.claim is Claim.LAYERED and found.is_proved:  # by all plans, without allocations
        return space_bound(make_space(problem.graph, problem.cluster, problem.scope_of(Scope)))
    return found.bound_seconds


def widest_bound(instance: Instance) -> float:
    """No placement is faster, whatever is allocated: every pair has the most it could ever get."""
    space = find_space(instance.cluster)
    if space is not None:
        instance = replace(instance, bandwidth=space.bandwidth(space.most))
    return placement_bound(instance)
