"""Placement and bandwidth together: which op runs where, and what each host may send to each other.

The best placement under uniform bandwidth is searched for first and is always a candidate, as it is
and with the network shared out for it, so that the answer is never slower.
"""

from dataclasses import replace
from time import perf_counter

import numpy as np

from meshwright.array import Ints
from meshwright.cluster.cluster import Cluster
from meshwright.cost.memory import usable_bytes
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.plan import Plan
from meshwright.search.bound.branch import branch_bound, can_branch
from meshwright.search.bound.window import ROUNDING
from meshwright.search.bound.work import placement_bound
from meshwright.search.instance import Instance, make_instance
from meshwright.search.judge import judge, why_stopped
from meshwright.search.method.bandwidth.joint.judge import Found, Judge
from meshwright.search.method.bandwidth.joint.search import JointSearch
from meshwright.search.method.bandwidth.joint.space import RateSpace, find_space
from meshwright.search.method.placement.improve import improve
from meshwright.search.method.placement.placement import placement
from meshwright.search.method.placement.placement_walk import PlacementWalk

UNIFORM = "uniform_seconds"
"""The statistic that says what the best plan takes without an allocation."""
GAP = "allocation_gap"
"""The statistic that says how far the allocation may be from the best for its plan."""

_PLAIN_SHARE, _UNIFORM_SHARE = 0.25, 0.2
"""Of the budget for the search of placements under uniform bandwidth, and, of what is then left,
for the search that is made for allocations, under uniform bandwidth; at most."""
_SEARCH_SHARE = 0.85
"""Of what is left for the search; the rest is for the last allocation and for the bound."""


def joint(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,
    budget_seconds: float = 30.0,
    sharing: str = "fair",
) -> Answer:
    """The best placement, order and allocation that are found."""
    started = perf_counter()
    until = started + budget_seconds
    space = find_space(cluster)
    share = 1.0 if space is None else _PLAIN_SHARE
    plain = placement(
        graph, cluster, seed=seed, budget_seconds=share * budget_seconds, sharing=sharing
    )
    if space is None or not _can_go_on(plain):
        return plain
    now = perf_counter()
    uniform = search_uniform(
        plain, graph, cluster, space, seed=seed, until=now + _UNIFORM_SHARE * (until - now),
        sharing=sharing,
    )  # fmt: skip
    if not _can_go_on(uniform):
        return uniform
    joined = _Joint(make_instance(graph, cluster), space, seed, until, sharing)
    return joined.answer(uniform, started)


def _can_go_on(answer: Answer) -> bool:
    return bool(np.isfinite(answer.bound_seconds)) and answer.stop is not Stop.INTERRUPTED


def search_uniform(
    plain: Answer, graph: Graph, cluster: Cluster, space: RateSpace, *, seed: int, until: float,
    sharing: str,
) -> Answer:  # fmt: skip
    """An answer under uniform bandwidth, searched further as allocations are searched for.

    On few hosts only, and with transfers that wait: what gains by that alone owes it to no
    allocation.
    """
    started = perf_counter()
    if plain.stop is Stop.PROVED:
        return plain
    judging = Judge(
        instance=make_instance(graph, cluster), space=space, sharing=sharing, allocates=False
    )
    limits = usable_bytes(graph, cluster)
    search = JointSearch(judging, space, limits, seed=seed, until=until, bound=plain.bound_seconds)
    is_interrupted = False
    try:
        if plain.plan is not None:
            search.take(Found(plan=plain.plan, verdict=judging.try_plan(plain.plan)))
        search.run(_devices_of_units(judging.instance, plain.plan))
    except KeyboardInterrupt:
        is_interrupted = True
    if search.best is None:
        return plain
    is_cut = plain.stop is Stop.LIMIT or perf_counter() >= until
    found = judge(
        "placement", graph, cluster, search.best.plan, plain.bound_seconds, started,
        plain.statistics, sharing, search.best.verdict,
        why_stopped(is_interrupted=is_interrupted, is_cut=is_cut),
    )  # fmt: skip
    return replace(found, search_seconds=plain.search_seconds + found.search_seconds)


class _Joint:
    """One search, from the best plan under uniform bandwidth to the answer."""

    def __init__(
        self, instance: Instance, space: RateSpace, seed: int, until: float, sharing: str
    ) -> None:
        self._instance, self._seed, self._until = instance, seed, until
        # Every pair at the most it could ever get: no allocation makes a placement faster.
        self._widest = replace(instance, bandwidth=space.bandwidth(space.most))
        self._bound = placement_bound(self._widest)
        self._limits = usable_bytes(instance.graph, instance.cluster)
        self._judge = Judge(instance=instance, space=space, sharing=sharing)
        now = perf_counter()
        self._searched = now + _SEARCH_SHARE * (until - now)
        self._search = JointSearch(
            self._judge,
            space,
            self._limits,
            seed=seed,
            until=self._searched,
            bound=self._bound,
        )

    def answer(self, uniform: Answer, started: float) -> Answer:
        """Search; Ctrl-C ends it with the best so far."""
        graph, cluster, search = self._instance.graph, self._instance.cluster, self._search
        statistics: dict[str, float] = {UNIFORM: uniform.step_seconds}
        is_interrupted = False
        try:
            if uniform.plan is not None:
                plain = Found(plan=uniform.plan, verdict=self._judge.try_plan(uniform.plan))
                search.take(plain)
                search.take(self._judge.polish(plain))
            search.run(_devices_of_units(self._instance, uniform.plan))
            statistics |= self._polish_best()
            self._raise_bound()
        except KeyboardInterrupt:
            if search.best is None:
                raise
            is_interrupted = True
        best = search.best
        assert best is not None, "a first turn always ends"
        # The plan may be better than the other without an allocation, too.
        bare = self._judge.try_plan(replace(best.plan, allocations=()))
        if bare.fits:
            statistics[UNIFORM] = min(statistics[UNIFORM], bare.step_seconds)
        statistics |= search.statistics
        is_cut = uniform.stop is Stop.LIMIT or perf_counter() >= self._searched
        return judge(
            "placement", graph, cluster, best.plan, self._bound, started, statistics,
            self._judge.sharing, best.verdict,
            why_stopped(is_interrupted=is_interrupted, is_cut=is_cut),
        )  # fmt: skip

    def _polish_best(self) -> dict[str, float]:
        """Allocate the best plan to the end; how far that may be from the best for it."""
        best = self._search.best
        if best is None or not best.plan.allocations:
            return {}
        polished = self._judge.polish(best)
        self._search.take(polished)
        least = polished.least_seconds
        taken = min(best.verdict.step_seconds, polished.verdict.step_seconds)
        return {GAP: max(0.0, taken / least - 1)} if least > 0 else {}

    def _raise_bound(self) -> None:
        """By exact search on the widest network, where the step is small; its placement counts."""
        best = self._search.best
        if best is None or not best.verdict.fits or self._is_proved(best):
            return
        devices = _devices_of_units(self._instance, best.plan)
        assert devices is not None, "there is a plan"
        walk = PlacementWalk(self._widest, self._limits, self._seed)
        found = improve(
            self._widest, walk.time(devices), self._limits, self._seed, self._until, self._bound
        )
        self._bound = max(self._bound, found.bound_seconds * ROUNDING)
        if not self._is_proved(best) and can_branch(self._widest) and perf_counter() < self._until:
            target = best.verdict.step_seconds
            self._bound = max(self._bound, branch_bound(self._widest, target))

    def _is_proved(self, found: Found) -> bool:
        return found.verdict.step_seconds <= self._bound * (1 + 1e-9)


def _devices_of_units(instance: Instance, plan: Plan | None) -> Ints | None:
    """Where a plan of whole ops has each unit; None: there is no plan."""
    if plan is None:
        return None
    index = instance.cluster.index
    device = {op: index[part.devices[0]] for part in plan.parts for op in part.ops}
    of_op = np.array([device[name] for name in instance.graph.op_names], np.int32)
    return of_op[instance.unit_ops[instance.unit_start[:-1]]]
