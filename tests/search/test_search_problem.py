"""A problem: what is computed once for all methods, and what a method sees of the request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from placement_strategies import instances

from meshwright.search import problem as module
from meshwright.search.bound.work import placement_bound, plan_bound
from meshwright.search.clock import Clock
from meshwright.search.instance import Instance, make_instance
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.method.pipeline.scope import PipelineScope
from meshwright.search.order.heft import schedule_heft
from meshwright.search.problem import Problem
from small import connected, dag


def test_what_follows_from_graph_and_cluster_is_computed_once_for_all_parts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    calls = {"make_instance": 0, "placement_bound": 0, "plan_bound": 0, "schedule_heft": 0}
    for name in calls:
        original = getattr(module, name)

        def counted(*given: object, name: str = name, original: object = original) -> object:
            calls[name] += 1
            return original(*given)  # type: ignore[operator]

        monkeypatch.setattr(module, name, counted)
    graph, cluster = dag([1.0, 2.0], {}), connected(2)
    problem = Problem(graph=graph, cluster=cluster, clock=Clock(9.0))
    assert set(calls.values()) == {0}, "nothing before it is asked for"
    part = problem.within(Clock(1.0))
    instance = make_instance(graph, cluster)
    for each in (part, problem, part.within(Clock())):
        assert each.placement_bound == placement_bound(instance)
        assert each.plan_bound == plan_bound(instance)
        assert each.instance is problem.instance
        each.schedule_heft(cluster.memory_bytes)
    assert set(calls.values()) == {1}
    part.schedule_heft(cluster.memory_bytes / 2)
    assert calls["schedule_heft"] == 1, "the schedule keeps to half of it, too"
    part.schedule_heft(cluster.memory_bytes * 2)
    assert calls["schedule_heft"] == 2, "with more room it may be another"
    assert part.clock.seconds == pytest.approx(1.0)
    assert problem.clock.seconds == pytest.approx(9.0)


def test_two_independent_ops_on_two_devices() -> None:
    # Side by side they take as long as the longer one.
    problem = Problem(graph=dag([1.0, 2.0], {}), cluster=connected(2))
    assert problem.placement_bound == pytest.approx(2.0)
    placed, _, seconds = problem.schedule_heft(problem.cluster.memory_bytes)
    assert seconds == 2.0
    assert placed[0] != placed[1]


def test_a_scope_is_for_the_methods_that_have_its_kind() -> None:
    scope = PipelineScope(stages=(2,))
    problem = Problem(graph=dag([1.0], {}), cluster=connected(1), scope=scope)
    assert problem.scope_of(PipelineScope) is scope
    assert problem.scope_of(Scope) == Scope()


@given(instances(), st.floats(0.1, 1.0))
def test_a_schedule_that_is_taken_again_is_the_one_that_would_be_made(
    instance: Instance, part: float
) -> None:
    problem = Problem(graph=instance.graph, cluster=instance.cluster)
    for limits in (instance.cluster.memory_bytes, part * instance.cluster.memory_bytes):
        placed, order, seconds = problem.schedule_heft(limits)
        own_placed, own_order, own_seconds = schedule_heft(instance, limits)
        assert placed.tolist() == own_placed.tolist()
        assert order.tolist() == own_order.tolist()
        assert seconds == own_seconds
