"""Looks for a plan that is faster than what was proven to be impossible.

Every seed is a random step on a random cluster with some plans of every kind, or some teams of a
small language model on a cluster of hosts. Every plan is simulated with and without sharing, and
every bound that speaks of it is held against the result: a (bound, plan) pair each.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial

import numpy as np
from drawn_plans import draw_draft, draw_pipeline, draw_placement, draw_replicas
from instances import (
    NUM_MODELS,
    NUM_NETWORKS,
    draw_cluster,
    draw_graph,
    small_model,
    small_network,
)

from meshwright.errors import InputError
from meshwright.plan.answer import is_below
from meshwright.plan.plan import Plan
from meshwright.plan.stage import Planner
from meshwright.program.lower import choose_granularity
from meshwright.search.bound.work import memory_bound, placement_bound, plan_bound
from meshwright.search.instance import Instance, make_instance
from meshwright.search.judge import Verdict, try_plan
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.space import HybridSpace, make_space, space_bound
from meshwright.search.portfolio import search_by

placement = partial(search_by, "placement")

PLANS = 4
"""Of each kind, for each random step."""
DRAFTS = 12
"""For each model of layers."""
SHARINGS = ("none", "fair")


@dataclass(frozen=True, slots=True)
class Pair:
    """A bound and the simulated step of a plan that it speaks of."""

    seed: int
    bound: str
    bound_seconds: float
    step_seconds: float

    @property
    def holds(self) -> bool:
        """Whether no plan is faster than the bound."""
        return is_below(self.bound_seconds, self.step_seconds)


def hunt_steps(seed: int) -> Iterator[Pair]:
    """Pairs of a random step on a random cluster."""
    rng = np.random.default_rng(seed)
    graph, cluster = draw_graph(rng), draw_cluster(rng)
    instance = make_instance(graph, cluster)
    of_all = {"plan": plan_bound(instance)}
    of_placements = {**of_all, "placement": placement_bound(instance)}
    proved = _prove(instance) if rng.random() < 0.1 else {}
    for draw in (draw_placement, draw_replicas, draw_pipeline):
        for _ in range(PLANS):
            for sharing, verdict in _verdicts(instance, draw(rng, instance)):
                assert not verdict.fits or memory_bound(graph, cluster) is None, seed
                bounds = of_all
                if draw is draw_placement:
                    bounds = of_placements
                    if verdict.fits and sharing in proved:  # which counts what fits only
                        bounds = {**bounds, "placement method": proved[sharing]}
                for name, bound in bounds.items():
                    yield Pair(seed, name, bound, verdict.step_seconds)


def _prove(instance: Instance) -> dict[str, float]:
    """What the method for placements proves of all that fit, by sharing."""
    graph, cluster = instance.graph, instance.cluster
    answers = {
        sharing: placement(graph, cluster, sharing=sharing, budget_seconds=0.05)
        for sharing in SHARINGS
    }
    return {sharing: answer.bound_seconds for sharing, answer in answers.items()}


def hunt_teams(seed: int) -> Iterator[Pair]:
    """Pairs of a small language model on a cluster of hosts, by tensor, context, ... widths."""
    rng = np.random.default_rng(seed)
    space, bound = _space(int(rng.integers(NUM_MODELS)), int(rng.integers(NUM_NETWORKS)))
    instance = make_instance(space.stack.graph, space.cluster)
    whole = min(bound, plan_bound(instance))
    planner = Planner(space.stack, space.cluster, space.prices.tiers.order)
    for _ in range(DRAFTS):
        draft = draw_draft(rng, space)
        if draft is not None:
            parts = planner.parts(draft.frame, draft.stages)
            plan = Plan(parts=parts, schedule=draft.schedule)
            for _, verdict in _verdicts(instance, plan):
                yield Pair(seed, "hybrid", bound, verdict.step_seconds)
                yield Pair(seed, "auto", whole, verdict.step_seconds)


def _verdicts(instance: Instance, plan: Plan) -> Iterator[tuple[str, Verdict]]:
    """What the simulator says of a plan, with and without sharing; nothing of one it refuses."""
    for sharing in SHARINGS:
        try:
            yield (
                sharing,
                try_plan(instance.graph, instance.cluster, plan, sharing, choose_granularity(plan)),
            )
        except InputError:
            return


@cache
def _space(model: int, network: int) -> tuple[HybridSpace, float]:
    space = make_space(small_model(model), small_network(network), Scope())
    return space, space_bound(space)
