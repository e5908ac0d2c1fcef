"""What the hybrid search finds, described by its degrees, is the same plan and takes as long."""

from dataclasses import asdict
from functools import cache, partial
from itertools import product
from typing import Any

import pytest
from hybrid_strategies import draw_draft, draw_space, small_cluster, small_model
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwright.graph.architecture.mixtral import mixtral
from meshwright.plan.plan import Plan
from meshwright.search.clock import Clock
from meshwright.search.method.hybrid.draft import Pool
from meshwright.search.method.hybrid.propose import find_drafts
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.smallest import explain_lack
from meshwright.search.method.hybrid.space import make_space
from meshwright.search.method.hybrid.trial import TrialScene, try_draft
from meshwright.search.pool.process import Processes
from meshwright.search.portfolio import search_by
from meshwright.simulate.simulate import simulate
from quick import few

hybrid = partial(search_by, "hybrid")

EIGHT = (2, (2, 2), 3e11, 1e10)
"""Hosts of two devices, in pairs."""


def said_again(graph: Any, cluster: Any, plan: Plan) -> Plan | None:
    """The plan that the degrees of a plan give; None: it has none."""
    degrees = plan.degrees(graph, cluster)
    return None if degrees is None else Plan.from_degrees(graph, cluster, **asdict(degrees))


def is_uniform(draft: Any, num_devices: int) -> bool:
    """Whether people could describe it: stages alike, on all devices."""
    stages = draft.stages
    runs = len({stage.offset for stage in stages})
    used = runs * stages[0].size * draft.frame.pods
    return len({(stage.size, stage.option) for stage in stages}) == 1 and used == num_devices


@given(st.data())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.filter_too_much])
def test_the_degrees_of_a_draft_give_its_plan(data: Any) -> None:
    space = draw_space(data.draw)
    draft = draw_draft(data.draw, space)
    graph, cluster = space.stack.graph, space.cluster
    scene = TrialScene(graph=graph, cluster=cluster, tiers=space.prices.tiers, sharing="fair")
    plan = scene.plan(draft)
    again = said_again(graph, cluster, plan)
    assert (again is not None) == is_uniform(draft, cluster.num_devices)
    assert again in (None, plan)


def test_simulate_by_degrees_gives_what_forty_drafts_do() -> None:
    graph, cluster = small_model(layers=6, hidden=256, batch=16), small_cluster(EIGHT)
    limits: list[dict[str, Any]] = [
        {"tensor": (4,)}, {"context": (2,)}, {"tensor": (2,), "pipeline": (2,)},
        {"pipeline": (4,), "chunks": (2,)}, {"data": (8,)}, {"zero": (3,), "recompute": ("full",)},
        {"pipeline": (2,), "pods": (2,)},
    ]  # fmt: skip
    drafts = []
    for each in limits:
        pool = Pool(refuses_plain=True)
        space = make_space(graph, cluster, Scope(**each, mixed=False, microbatches=(2,)))
        find_drafts(space, pool, Clock())
        drafts += [draft for draft in pool.drafts() if is_uniform(draft, 8)][:12]
    scene = TrialScene(graph=graph, cluster=cluster, tiers=space.prices.tiers, sharing="fair")
    seen = set()
    for draft in drafts:
        plan = scene.plan(draft)
        again = said_again(graph, cluster, plan)
        assert again == plan
        granularity = None if again.is_plain else "layer"  # as drafts are simulated
        seconds = simulate(graph, cluster, again, granularity=granularity).step_seconds
        assert seconds == pytest.approx(try_draft(scene, draft).step_seconds, rel=1e-12)
        seen.add(plan.description)
    assert len(drafts) >= 40
    for word in ("tensor 4", "context 2", "data 8", "pipeline 4", "chunks", "zero 3", "full"):
        assert any(word in text for text in seen), (word, seen)


SPLIT: dict[str, Any] = {"microbatches": 1, "zero": 0, "recompute": "none", "schedules": ("1f1b",)}
MORE: list[dict[str, Any]] = [
    {"schedules": ("1f1b",)},
    {"schedules": ("zero-bubble",), "chunks": 1},
    {"chunks": 2},
]
LIMITS: list[dict[str, Any]] = [
    {"tensor": t, "pipeline": p, "data": d, "microbatches": m, "zero": z, "recompute": r, **more}
    for (t, p, d), m, (z, r), more in product(
        [(2, 2, 2), (1, 4, 2), (4, 2, 1), (1, 2, 4), (2, 1, 4), (2, 4, 1)],
        [2],
        [(0, "selective"), (1, "full"), (3, "none")],
        MORE,
    )
    if not ((more.get("chunks") == 2 and p in (1, 4)) or (d == 1 and z == 3))
] + [
    {**SPLIT, "context": 2, "keys": "ring", "tensor": 2, "pipeline": 2, "data": 1},
    {**SPLIT, "context": 2, "keys": "gathered", "tensor": 1, "pipeline": 2, "data": 2, "zero": 2},
    {**SPLIT, "expert": 2, "tensor": 2, "pipeline": 2, "data": 2},
    {**SPLIT, "expert": 4, "tensor": 1, "pipeline": 1, "data": 8, "zero": 1},
]
assert len(LIMITS) >= 40


@cache
def model(has_experts: bool) -> Any:
    if has_experts:
        return mixtral(
            hidden=64, heads=4, key_heads=4, layers=4, experts=4, intermediate=64, sequence=32,
            vocabulary=128, batch=8, precision="bf16",
        )  # fmt: skip
    return small_model(layers=4, hidden=256, batch=8)


def listed(limits: dict[str, Any]) -> dict[str, Any]:
    return {name: each if isinstance(each, tuple) else (each,) for name, each in limits.items()}


@pytest.mark.parametrize("limits", few(LIMITS, *LIMITS[::7]), ids=str)
def test_the_answer_within_limits_is_what_its_degrees_give(limits: dict[str, Any]) -> None:
    graph, cluster = model(has_experts="expert" in limits), small_cluster(EIGHT)
    scope = Scope(**{"context": (1,), **listed(limits)}, sequence_parallel=True)
    answer = hybrid(graph, cluster, scope=scope, budget_seconds=60, engine=Processes(1))
    assert answer.plan is not None
    degrees = answer.plan.degrees(graph, cluster)
    assert degrees is not None
    for name in {*limits} - {"schedules", "zero"}:
        assert getattr(degrees, name) == limits[name]
    assert degrees.chunks == limits.get("chunks", 1)
    assert degrees.zero == (limits["zero"] if limits["data"] * degrees.context > 1 else 0)
    again = said_again(graph, cluster, answer.plan)
    assert again == answer.plan
    assert simulate(graph, cluster, again).step_seconds == pytest.approx(
        answer.step_seconds, rel=1e-12
    )
    # Nobody's cut of the same degrees is faster, on the devices next to each other.
    usual = Plan.from_degrees(graph, cluster, **{**asdict(degrees), "layers": (), "pods": 1})
    by_layer = simulate(graph, cluster, usual, granularity="layer").step_seconds
    assert answer.statistics["layer_seconds"] <= by_layer * (1 + 1e-9)


@pytest.mark.parametrize("is_shared", [True, False])
def test_rows_between_products_are_shared_as_limited(is_shared: bool) -> None:
    space = make_space(
        model(has_experts=False), small_cluster(EIGHT), Scope(sequence_parallel=is_shared)
    )
    teams = {option.team for option in space.options}
    assert {team.sequence for team in teams if team.tensor > 1} == {is_shared}
    assert any(team.tensor == 1 for team in teams)


def test_stages_without_teams_compute_again_where_layers_share_weights() -> None:
    """Eight stages on eight devices have no teams and no replicas: recomputation is left."""
    graph, cluster = small_model(layers=6, hidden=256, batch=8), small_cluster(EIGHT)
    given: list[dict[str, Any]] = [
        {"schedules": ("1f1b",)},
        {"pipeline": (2,), "tensor": (1,), "chunks": (2,)},
    ]
    for limits in given:
        #: ("1f1b",)}, {"pipeline": (2,), "tensor": (1,), "chunks": (2,)}):
        space = make_space(graph, cluster, Scope(**{"pipeline": (8,), **limits}))
        pool = Pool(refuses_plain=space.stack.shares_groups)
        find_drafts(space, pool, Clock())
        assert pool.drafts()
        assert not any(draft.is_plain for draft in pool.drafts())


def test_too_many_chunks_are_told_from_too_little_memory() -> None:
    scope = Scope(pipeline=(4,), chunks=(2,), microbatches=(4,))
    space = make_space(model(has_experts=False), small_cluster(EIGHT), scope)
    assert explain_lack(space, Clock()) == (
        "no plan divides 8 samples and 6 layers over 8 devices within --pipeline 4, --chunks 2, "
        "--microbatches 4: allow others, or leave out an option"
    )
