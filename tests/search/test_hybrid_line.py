"""The hybrid search on layers in line, against every plan of its scope and its own bound."""

from typing import Any

import pytest
from hybrid_brute_force import best_of_all, every_plan, small_cluster
from hypothesis import given, settings
from hypothesis import strategies as st

from line_models import encoder_decoder, ladder, towers
from meshwright.cost.layer.mode import Recompute
from meshwright.graph.graph import Graph
from meshwright.plan.plan import ScheduleKind
from meshwright.search.judge import try_plan
from meshwright.search.method.hybrid import hybrid as module
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.hybrid.space import make_space, space_bound
from meshwright.search.portfolio import search_by
from quick import few

FEATURES = 4096
"""So many that layers take longer than messages."""
MODELS: dict[str, Graph] = {
    "encoder-decoder": encoder_decoder(2, FEATURES),
    "ladder": ladder(2, FEATURES),
    "towers": towers(2, FEATURES),
}
KINDS = (ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.ZERO_BUBBLE)


def scope_of(**more: Any) -> Scope:
    found: dict[str, Any] = {
        "tensor": (1,), "context": (1,), "zero": (0,), "recompute": (Recompute.NONE,),
        "microbatches": (2,), "mixed": False, **more,
    }  # fmt: skip
    return Scope(**found)


SCOPES = [
    {"schedules": (ScheduleKind.ZERO_BUBBLE,), "zero": (1,), "pipeline": (2,)},
    {"schedules": (ScheduleKind.ONE_F_ONE_B,), "data": (1,)},
    {"schedules": (ScheduleKind.INTERLEAVED,), "pipeline": (2,), "data": (1,)},
    {"schedules": (ScheduleKind.GPIPE,), "tensor": (2,), "recompute": (Recompute.FULL,)},
    {"schedules": KINDS, "zero": (0, 1)},
    {"schedules": (ScheduleKind.ONE_F_ONE_B,), "mixed": True, "tensor": (1, 2)},
]
CASES = [(model, chosen) for chosen in SCOPES for model in MODELS]


@pytest.mark.parametrize("case", few(CASES, *CASES[1:10]), ids=str)
def test_the_plan_equals_brute_force(case: tuple[str, dict[str, Any]]) -> None:
    model, chosen = case
    graph, cluster, scope = MODELS[model], small_cluster(2, 2, 3e11, 1e10), scope_of(**chosen)
    found = best_of_all(graph, cluster, scope, 2000)
    assert found is not None
    answer = search_by("hybrid", graph, cluster, scope=scope, budget_seconds=120)
    assert answer.statistics["layer_seconds"] == pytest.approx(found[0], rel=1e-9)
    assert answer.bound_seconds <= found[0] * (1 + 1e-12)
    assert answer.statistics["whole"] == 1.0


@pytest.mark.parametrize("model", ["encoder-decoder", "ladder"])
def test_settings_alone_find_the_plan_of_brute_force(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where not every plan is looked at. Estimates take towers for a chain, so that they are not
    here."""
    monkeypatch.setattr(module, "_SMALL_DEVICES", 0)
    graph, cluster = MODELS[model], small_cluster(2, 2, 3e11, 1e10)
    scope = scope_of(schedules=KINDS[:2], data=(1, 2))
    found = best_of_all(graph, cluster, scope, 2000)
    assert found is not None
    answer = search_by("hybrid", graph, cluster, scope=scope, budget_seconds=120)
    assert answer.statistics["layer_seconds"] == pytest.approx(found[0], rel=0.02)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_no_plan_is_below_the_bound(data: Any) -> None:
    graph = MODELS[data.draw(st.sampled_from(list(MODELS)))]
    rates = data.draw(st.sampled_from([(1e9, 1e8), (3e11, 1e10), (1e8, 1e8)]))
    cluster = small_cluster(2, 2, *rates)
    scope = scope_of(
        schedules=(data.draw(st.sampled_from(KINDS)),),
        zero=(data.draw(st.integers(0, 3)),),
        tensor=data.draw(st.sampled_from([(1,), (1, 2)])),
    )
    bound = space_bound(make_space(graph, cluster, scope))
    plans = list(every_plan(graph, cluster, scope))
    if plans:
        plan = data.draw(st.sampled_from(plans))
        by_layer = try_plan(graph, cluster, plan, granularity="layer")
        by_op = try_plan(graph, cluster, plan)
        assert bound <= min(by_layer.step_seconds, by_op.step_seconds) * (1 + 1e-9)


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_plain_stages_take_as_long_by_layer_as_op_by_op(data: Any) -> None:
    graph = MODELS[data.draw(st.sampled_from(list(MODELS)))]
    cluster = small_cluster(2, 2, *data.draw(st.sampled_from([(1e9, 1e8), (3e11, 1e10)])))
    scope = scope_of(schedules=(data.draw(st.sampled_from(KINDS[:2])),), data=(1,))
    plan = data.draw(st.sampled_from(list(every_plan(graph, cluster, scope))))
    by_layer = try_plan(graph, cluster, plan, granularity="layer")
    by_op = try_plan(graph, cluster, plan)
    assert by_layer.step_seconds == pytest.approx(by_op.step_seconds, rel=0.02)
