"""`auto`: which methods it tries, what it says of the others, and how hybrid's limits reach it."""

from typing import Any

import pytest
from search_strategies import make_cluster

from meshwright.cluster.catalogue import find_cluster
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Stop
from meshwright.search import portfolio, problem
from meshwright.search.check import AnyScope
from meshwright.search.method import metis
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.name import takers
from meshwright.search.method.pipeline.scope import PipelineScope
from meshwright.search.method.quickp.scope import Coarsener, QuickpScope
from meshwright.search.pool.process import Processes
from meshwright.search.portfolio import find_plan
from meshwright.search.warm import small_step
from meshwright.zoo.shipped import read_shipped

LONG = 600.0
"""Seconds that no search here uses up."""


def tried(statistics: object) -> set[str]:
    assert isinstance(statistics, dict)
    suffix = "_seconds"
    return {name.removesuffix(suffix) for name in statistics if name.endswith(suffix)}


def one_op() -> Graph:
    builder = GraphBuilder("alone")
    builder.add_op("only", seconds={"any": 1.0})
    return builder.finish()


def test_auto_tries_hybrid_where_layers_repeat() -> None:
    # It ends by itself long before.
    answer = find_plan(small_step(), make_cluster(["fast"] * 2), budget_seconds=120)
    assert {"hybrid", "data", "pipeline", "placement"} <= tried(answer.statistics)
    assert answer.notes == ()


def test_auto_leaves_hybrid_out_where_none_do() -> None:
    answer = find_plan(one_op(), make_cluster(["fast"]), budget_seconds=2)
    assert "hybrid" not in tried(answer.statistics)
    assert answer.stop is Stop.PROVED


@pytest.mark.parametrize(
    ("limit", "reason"),
    [
        ("_MAX_OPS", "96 ops are too many for the others"),
        ("_MAX_INSTANCES", "96 ops on 2 devices are too many for the others"),
    ],
)
def test_auto_leaves_large_steps_to_hybrid(
    limit: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(portfolio, limit, 95)
    lines: list[str] = []
    cluster = make_cluster(["fast"] * 2)
    answer = find_plan(small_step(), cluster, budget_seconds=2, progress=lines.append)
    assert answer.method == "auto:hybrid"
    assert tried(answer.statistics) == {"hybrid"}
    assert answer.notes[0] == f"only hybrid was tried: {reason}"
    assert answer.notes[1].startswith("scope: stages of any size of whole layers")
    assert lines[0] == answer.notes[0]


def test_the_bound_of_auto_holds_for_teams_too() -> None:
    cluster = make_cluster(["fast"] * 2)
    hybrid = find_plan(small_step(), cluster, "hybrid", budget_seconds=0.5)
    answer = find_plan(small_step(), cluster, budget_seconds=1)
    assert answer.bound_seconds <= hybrid.bound_seconds
    assert answer.bound_seconds <= answer.step_seconds <= hybrid.step_seconds


def test_a_scope_limits_hybrid_and_no_other_method() -> None:
    cluster = make_cluster(["fast"] * 2)
    scope = Scope(zero=(1,))
    answer = find_plan(small_step(), cluster, "hybrid", scope=scope, engine=Processes(1))
    assert answer.plan is not None
    assert {part.zero for part in answer.plan.parts} == {1}
    with pytest.raises(InputError, match=r"^scope: the method must be hybrid or auto, got 'data'$"):
        find_plan(small_step(), cluster, "data", scope=scope)


def test_a_scope_is_for_its_own_method() -> None:
    cluster = make_cluster(["fast"] * 2)
    found = find_plan(
        small_step(), cluster, "pipeline", scope=PipelineScope(stages=(2,), replicas=(1,))
    )
    assert found.plan is not None
    assert len(found.plan.parts) >= 2
    found = find_plan(small_step(), cluster, "quickp", scope=QuickpScope(scheme=Coarsener.FUSION))
    assert found.plan is not None
    wrong: list[tuple[AnyScope, str]] = [(PipelineScope(), "auto"), (QuickpScope(), "placement")]
    for scope, method in wrong:
        (wanted, *_) = takers(type(scope).__name__)
        with pytest.raises(
            InputError, match=f"^scope: the method must be {wanted}, got '{method}'"
        ):
            find_plan(small_step(), cluster, method, scope=scope)
    with pytest.raises(InputError, match=r"^scope: must be a Scope, PipelineScope, QuickpScope or"):
        find_plan(small_step(), cluster, "pipeline", scope="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["auto", "hybrid", "pipeline", "deploy", "placement", "mcmc"])
def test_any_search_ends_within_its_gap(method: str) -> None:
    graph, cluster = read_shipped("vgg16-32"), make_cluster(["fast"] * 3)
    graph = small_step() if method == "hybrid" else graph
    # The whole search would take minutes.
    found = find_plan(graph, cluster, method, gap=20.0, budget_seconds=LONG)
    assert found.plan is not None
    assert found.stop is Stop.GAP
    assert 0 < found.gap <= 20


def test_a_gap_that_is_not_reached_ends_nothing() -> None:
    step, cluster = small_step(), make_cluster(["fast"] * 2)
    exact = find_plan(step, cluster, "placement", budget_seconds=LONG)
    near = find_plan(step, cluster, "placement", gap=1e-6, budget_seconds=LONG)
    assert (near.step_seconds, near.stop) == (exact.step_seconds, exact.stop)


def test_a_gap_is_checked() -> None:
    cluster = make_cluster(["fast"] * 2)
    with pytest.raises(InputError, match=r"^gap: must be a number from 0, got -1"):
        find_plan(small_step(), cluster, "placement", gap=-1)
    with pytest.raises(
        InputError, match=r"^gap: must be 0 where the network is shared out, got 0.5"
    ):
        find_plan(small_step(), cluster, "placement", gap=0.5, allocate=True)


def test_microbatches_reach_hybrid_beside_a_scope() -> None:
    cluster = make_cluster(["fast"] * 2)
    for scope in (None, Scope(zero=(0,))):
        answer = find_plan(small_step(), cluster, "hybrid", microbatches=(2,), scope=scope)
        assert answer.plan is not None
        assert answer.plan.schedule is not None
        assert answer.plan.schedule.microbatches == 2


def test_auto_runs_heft_and_metis_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = {"schedule_heft": 0, "partition_units": 0}
    for module, name in ((problem, "schedule_heft"), (metis, "partition_units")):
        original = getattr(module, name)

        def counted(*given: object, name: str = name, original: Any = original) -> object:
            calls[name] += 1
            return original(*given)

        monkeypatch.setattr(module, name, counted)
    monkeypatch.setattr(portfolio, "compile_methods", lambda *_, **__: None)
    monkeypatch.setattr(portfolio, "num_cores", lambda: 1)
    monkeypatch.setattr(portfolio, "_explain_hopeless", lambda *_: "")
    # `deploy` looks at both placements again, `placement` begins at HEFT's, too.
    answer = find_plan(read_shipped("mlp"), find_cluster("v100-32-x2"), budget_seconds=1e6)
    assert {"heft", "metis", "deploy", "placement"} <= tried(answer.statistics)
    assert calls == {"schedule_heft": 1, "partition_units": 1}
