"""Shares add up to the step, of random plans of all kinds on random steps and clusters."""

from collections.abc import Iterator
from functools import cache

import numpy as np
import pytest
from drawn_plans import draw_draft, draw_pipeline, draw_placement, draw_replicas
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import (
    NUM_MODELS,
    NUM_NETWORKS,
    draw_cluster,
    draw_graph,
    small_model,
    small_network,
)

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.explain.path import tell_path
from meshwright.explain.share import StepSpans, find_shares, is_pipeline, sum_shares
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.plan.stage import Planner
from meshwright.search.instance import make_instance
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.space import HybridSpace, make_space
from meshwright.simulate.simulate import simulate

SHARINGS = ("none", "fair")


GRANULARITIES = ("op", "part", "layer")


def check(graph: Graph, cluster: Cluster, plan: Plan, granularities: tuple[str, ...]) -> None:
    """At both sharings and those granularities that the plan has."""
    for sharing in SHARINGS:
        for granularity in granularities:
            try:
                timeline = simulate(graph, cluster, plan, sharing=sharing, granularity=granularity)
            except InputError:
                continue
            shares = find_shares(graph, cluster, plan, timeline)
            step = timeline.step_seconds
            assert sum_shares(shares.shares) == pytest.approx(step, rel=1e-9, abs=0)
            assert all(each.seconds >= -1e-12 * step for each in shares.shares)
            assert bool(shares.anchor) == is_pipeline(plan)
            runs = tell_path(StepSpans(graph, cluster, plan, timeline), cluster, plan)
            told = sum(each.seconds for each in runs)
            assert told == pytest.approx(timeline.device_seconds, rel=1e-9, abs=0)
            assert len(runs) <= 15


@settings(max_examples=60)
@given(st.integers(0, 2**32 - 1))
def test_shares_of_placements_replicas_and_pipelines_add_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, cluster = draw_graph(rng), draw_cluster(rng)
    instance = make_instance(graph, cluster)
    for draw in (draw_placement, draw_replicas, draw_pipeline):
        check(graph, cluster, draw(rng, instance), GRANULARITIES)


@settings(max_examples=12)
@given(st.integers(0, 2**32 - 1))
def test_shares_of_teams_zero_and_recomputation_add_up(seed: int) -> None:
    rng = np.random.default_rng(seed)
    space = _space(int(rng.integers(NUM_MODELS)), int(rng.integers(NUM_NETWORKS)))
    granularity = str(rng.choice(["op", "layer"]))  # "part" means the latter here
    for plan in _drafts(rng, space):
        check(space.stack.graph, space.cluster, plan, (granularity,))


def _drafts(rng: np.random.Generator, space: HybridSpace) -> Iterator[Plan]:
    planner = Planner(space.stack, space.cluster, space.prices.tiers.order)
    draft = draw_draft(rng, space)
    if draft is not None:
        parts = planner.parts(draft.frame, draft.stages)
        yield Plan(parts=parts, schedule=draft.schedule)


@cache
def _space(model: int, network: int) -> HybridSpace:
    return make_space(small_model(model), small_network(network), Scope())
