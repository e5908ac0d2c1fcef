"""The hybrid search against every plan of its scope, written out and simulated one by one."""

from functools import partial
from typing import Any

import pytest
from hybrid_brute_force import best_of_all, small_cluster
from hybrid_strategies import small_model
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from meshwright.cluster.build import fully_connected
from meshwright.plan.plan import Recompute, ScheduleKind
from meshwright.search.method.hybrid import hybrid as module
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.portfolio import search_by
from meshwright.simulate.simulate import simulate
from quick import few

hybrid = partial(search_by, "hybrid")


@st.composite
def instances(draw: Any) -> Any:
    """Arguments of a model, of a cluster and of a scope."""
    model = {
        "hidden": draw(st.sampled_from([32, 256, 1024])),
        "sequence": draw(st.sampled_from([32, 64])),
        "batch": draw(st.sampled_from([4, 6])),
    }
    cluster = (
        draw(st.sampled_from([2, 4])),
        draw(st.sampled_from([2, 3, 4])),
        draw(st.sampled_from([1e9, 2e10, 3e11])),
        draw(st.sampled_from([1e8, 1e10])),
        draw(st.sampled_from([None, 1e8, 3e8])),
    )
    assume(cluster[0] * cluster[1] <= 8)
    scope = {
        "tensor": draw(st.sampled_from([(1, 2), (2,), (1,), (4,)])),
        "context": draw(st.sampled_from([(1,), (1, 2), (2,)])),
        "zero": draw(st.sampled_from([(0,), (1,), (2,), (3,), (0, 1)])),
        "recompute": draw(st.sampled_from([(each,) for each in Recompute])),
        "microbatches": (draw(st.sampled_from([1, 2, 3])),),
        "schedules": draw(
            st.sampled_from(
                [
                    (ScheduleKind.ONE_F_ONE_B,),
                    (ScheduleKind.GPIPE,),
                    (ScheduleKind.ZERO_BUBBLE,),
                    (ScheduleKind.GPIPE, ScheduleKind.ZERO_BUBBLE),
                    (ScheduleKind.ONE_F_ONE_B, ScheduleKind.INTERLEAVED),
                ]
            )
        ),
        "mixed": draw(st.booleans()),
        "pipeline": draw(st.sampled_from([(), (), (2,), (1, 3)])),
        "data": draw(st.sampled_from([(), (), (1,), (2,), (1, 2)])),
    }
    return model, cluster, scope


EIGHT = (2, 4, 3e11, 1e10, None)
EVERY = tuple(ScheduleKind)
NONE, FULL = (Recompute.NONE,), (Recompute.FULL,)


def scope_of(**more: Any) -> Any:
    return {
        "tensor": (2,), "context": (1,), "zero": (0,), "recompute": NONE, "microbatches": (2,),
        "schedules": (ScheduleKind.ONE_F_ONE_B,), "mixed": True, **more,
    }  # fmt: skip


LARGE = {"hidden": 1024, "sequence": 64, "batch": 4}


def is_best_of_all(instance: Any) -> Any:
    """Whether the search finds it; None: there are too many plans to look at."""
    model, shape, chosen = instance
    graph, cluster, scope = small_model(**model), small_cluster(*shape), Scope(**chosen)
    found = best_of_all(graph, cluster, scope)
    if found is None:
        return None
    answer = hybrid(graph, cluster, scope=scope, budget_seconds=120)
    if found[0] == float("inf"):
        return answer.plan is None
    assert answer.statistics["layer_seconds"] == pytest.approx(found[0], rel=1e-9)
    return answer.statistics["whole"] == 1.0


@pytest.mark.parametrize(
    ("shape", "chosen"),
    [
        (EIGHT, {"schedules": (ScheduleKind.ZERO_BUBBLE,)}),
        (EIGHT, {"tensor": (1,), "zero": (1,), "schedules": (ScheduleKind.ZERO_BUBBLE,)}),
        (EIGHT, {"tensor": (1,), "context": (2,), "zero": (3,)}),
        (EIGHT, {"recompute": FULL, "schedules": (ScheduleKind.INTERLEAVED,)}),
        (EIGHT, {"pipeline": (2,), "data": (2,), "chunks": (1, 2), "schedules": EVERY}),
        (EIGHT, {"tensor": (1, 2), "pipeline": (3,), "zero": (1,), "data": (2,)}),
        (
            EIGHT,
            {"tensor": (1,), "data": (1, 2), "zero": (0, 1), "chunks": (1,), "recompute": FULL},
        ),
        (EIGHT, {"pipeline": (2,), "chunks": (2,), "recompute": FULL, "schedules": EVERY}),
        (EIGHT, {"tensor": (4,), "pipeline": (2,), "data": (1,), "zero": (1,)}),
        # ZeRO has something to do on four devices only, so that one of many sizes is left.
        ((4, 2, 3e11, 1e10, 1.5e8), {"zero": (3,), "recompute": FULL}),
    ],
)
def test_on_eight_devices_the_plan_equals_brute_force(shape: Any, chosen: Any) -> None:
    assert is_best_of_all((LARGE, shape, scope_of(**chosen)))


ALONE: list[dict[str, Any]] = [
    {"tensor": (1, 2), "zero": (0, 3)},
    {"tensor": (1,), "context": (1, 2), "schedules": (ScheduleKind.GPIPE,)},
    {"tensor": (1, 2, 4), "pipeline": (2,), "recompute": tuple(Recompute)},
    {"tensor": (1, 2), "schedules": EVERY, "zero": (1,)},
]


@pytest.mark.parametrize("chosen", few(ALONE, ALONE[1], ALONE[3]))
def test_settings_alone_find_the_plan_of_brute_force(
    chosen: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where stages are of one size, and not every plan is looked at."""
    monkeypatch.setattr(module, "_SMALL_DEVICES", 0)
    graph, cluster = small_model(**LARGE), small_cluster(*EIGHT)
    scope = Scope(**scope_of(**chosen, mixed=False))
    found = best_of_all(graph, cluster, scope)
    assert found is not None
    answer = hybrid(graph, cluster, scope=scope, budget_seconds=120)
    assert answer.statistics["whole"] == 0.0
    assert answer.statistics["layer_seconds"] == pytest.approx(found[0], rel=1e-9)


@pytest.mark.slow
@given(instances())
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.filter_too_much]
)  # some scopes have thousands of plans
def test_the_plan_equals_brute_force_over_the_scope(instance: Any) -> None:
    is_best = is_best_of_all(instance)
    assume(is_best is not None)
    assert is_best


def test_the_plan_of_two_layers_on_four_devices_is_the_best_of_all() -> None:
    graph = small_model()
    cluster = fully_connected(num_devices=4, device_type="h100", bytes_per_second=1e10)
    scope = Scope(
        tensor=(1, 2),
        context=(1,),
        zero=(0,),
        recompute=(Recompute.NONE,),
        microbatches=(2,),
        schedules=(ScheduleKind.ONE_F_ONE_B,),
    )
    expected, count = best_of_all(graph, cluster, scope)
    answer = hybrid(graph, cluster, scope=scope, budget_seconds=60)
    assert count > 20
    assert answer.statistics["layer_seconds"] == pytest.approx(expected, rel=1e-9)
    assert answer.statistics["whole"] == 1.0
    assert answer.plan is not None
    by_op = simulate(graph, cluster, answer.plan, granularity="op").step_seconds
    assert answer.step_seconds == by_op
    assert expected * 0.9 < by_op < expected * 1.1
