"""Placement and bandwidth together: which op runs where, and what each host may send to each other.

The best placement under uniform bandwidth is searched for first and is always a candidate, as it is
and with the network shared out for it, so that the answer is never slower.

Answers of other searches, too, have the network shared out for their plans, however these were
found; where a plan is no faster so, it stays as it is.
"""

import math
from dataclasses import replace

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.cost.memory import usable_bytes
from meshwright.plan.answer import Stop
from meshwright.search.bound.window import ROUNDING, branch_bound, can_branch
from meshwright.search.bound.work import placement_bound
from meshwright.search.claim import Claim
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt, Incumbent
from meshwright.search.instance import Instance, devices_of_units
from meshwright.search.method.bandwidth.joint.judge import Judge, JudgedPlan
from meshwright.search.method.bandwidth.joint.search import JointSearch
from meshwright.search.method.bandwidth.joint.space import RateSpace, find_space
from meshwright.search.method.bandwidth.rate.allocate import allocate
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.space import make_space, space_bound
from meshwright.search.method.placement.improve import improve
from meshwright.search.method.placement.placement import placement
from meshwright.search.method.placement.placement_walk import PlacementWalk
from meshwright.search.problem import Problem

MAX_HOSTS = 128
"""Of clusters whose pairs of hosts are given rates: there are as many as the square of it."""

_PLAIN_SHARE = 0.4
"""Of the budget for the search of placements under uniform bandwidth, at most."""
_BRANCH_SHARE = 0.5
"""Of what is then left for branching on the bound, at most: small steps need a second or two."""
_SEARCH_SHARE = 0.85
"""Of what is left for the search; the rest is for the last allocation and for the bound."""


def joint(problem: Problem, attempt: Attempt) -> None:
    """The best placement, order and allocation that are found."""
    clock, space = problem.clock, find_space(problem.cluster)
    share = 1.0 if space is None else _PLAIN_SHARE
    plain = _begin(clock.first(share, tells=False))
    placement(problem.within(plain.clock), plain)
    if plain.stop is Stop.LIMIT:
        clock.cut()
    if space is not None and _can_go_on(plain):
        _Joint(problem, attempt, space, plain.step_seconds).run(plain)
    else:
        _adopt(attempt, plain)


def _begin(clock: Clock) -> Attempt:
    """A record of plans under uniform bandwidth, whose bounds hold under no other."""
    return Incumbent(clock).begin("placement", Claim.PLACEMENT, clock)


def _can_go_on(found: Attempt) -> bool:
    return bool(np.isfinite(found.bound_seconds)) and found.stop is not Stop.INTERRUPTED


def _adopt(attempt: Attempt, found: Attempt) -> None:
    """What another has found, as it is."""
    attempt.raise_bound(found.bound_seconds)
    attempt.statistics |= found.statistics
    if found.plan is not None and found.verdict is not None:
        attempt.offer(found.plan, found.verdict)
    else:
        attempt.refuse(found.refusal)


class _Joint:
    """One search, from the best plan under uniform bandwidth to the answer."""

    def __init__(self, problem: Problem, attempt: Attempt, space: RateSpace, target: float) -> None:
        """`target`: the step of a plan that is known, which no bound need pass."""
        self._attempt, self._clock = attempt, problem.clock
        self._instance, self._seed = problem.instance, problem.seed
        # Every pair at the most it could ever get: no allocation makes a placement faster.
        self._widest = replace(problem.instance, bandwidth=space.bandwidth(space.most))
        attempt.raise_bound(placement_bound(self._widest))
        if can_branch(self._widest):  # before the search, which then knows when it is done
            branching = problem.clock.rest(_BRANCH_SHARE, tells=False)
            attempt.raise_bound(branch_bound(self._widest, target, lambda: branching.is_over))
        self._limits = usable_bytes(problem.graph, problem.cluster)
        self._judge = Judge(instance=problem.instance, space=space, sharing=problem.sharing)
        self._searching = problem.clock.rest(_SEARCH_SHARE)
        self._search = JointSearch(
            self._judge,
            space,
            self._limits,
            seed=problem.seed,
            clock=self._searching,
            bound=attempt.bound_seconds,
        )

    def run(self, uniform: Attempt) -> None:
        """Search; Ctrl-C ends it with the best so far."""
        attempt, search = self._attempt, self._search
        known = uniform.plan if uniform.fits else None
        with self._clock.heard():
            if known is not None:
                plain = JudgedPlan(plan=known, verdict=self._judge.try_plan(known))
                search.take(plain)
                search.take(self._judge.polish(plain))
            search.run(None if known is None else devices_of_units(self._instance, known))
            attempt.allocation_gap = self._polish_best()
            self._raise_bound()
        best = search.best
        if best is None:
            return  # interrupted
        # The plan may be better than the other without an allocation, too.
        bare = self._judge.try_plan(replace(best.plan, allocations=()))
        bare_seconds = bare.step_seconds if bare.fits else math.inf
        attempt.uniform_seconds = min(uniform.step_seconds, bare_seconds)
        attempt.statistics |= search.statistics
        attempt.offer(best.plan, best.verdict)
        self._searching.look()

    def _polish_best(self) -> float | None:
        """Allocate the best plan to the end; how far that may be from the best for it."""
        best = self._search.best
        if best is None or not best.plan.allocations:
            return None
        polished = self._judge.polish(best)
        self._search.take(polished)
        least = polished.least_seconds
        taken = min(best.verdict.step_seconds, polished.verdict.step_seconds)
        return max(0.0, taken / least - 1) if least > 0 else None

    def _raise_bound(self) -> None:
        """By exact search on the widest network, where the step is small; its placement counts."""
        best = self._search.best
        if best is None or not best.verdict.fits or self._is_proved(best):
            return
        devices = devices_of_units(self._instance, best.plan)
        walk = PlacementWalk(self._widest, self._limits, self._seed)
        found = improve(
            self._widest, walk.time(devices), self._limits, self._seed, self._clock,
            self._attempt.bound_seconds,
        )  # fmt: skip
        self._attempt.raise_bound(found.bound_seconds * ROUNDING)

    def _is_proved(self, found: JudgedPlan) -> bool:
        return found.verdict.step_seconds <= self._attempt.bound_seconds * (1 + 1e-9)


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
