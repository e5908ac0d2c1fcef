"""The search for mappings keeps its promises beyond what can be tried out."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from mapping_strategies import best_by_trying, chain_problem, small_problems

from meshwright.cluster.catalogue import find_cluster
from meshwright.plan.answer import Stop
from meshwright.search.method.pipeline.map.assignment_walk import AssignmentWalk
from meshwright.search.method.pipeline.map.parmesan import parmesan_mapping
from meshwright.search.method.pipeline.map.problem import (
    MappingProblem,
    check_assignment,
    find_reason,
    stage_seconds,
    with_rings,
)
from meshwright.search.method.pipeline.map.solve import compile_mapping, solve_mapping
from meshwright.search.method.pipeline.map.start import consecutive_mapping, p2p_first_mapping
from quick import few


def _baseline(problem: MappingProblem) -> float:
    found = [consecutive_mapping(problem), p2p_first_mapping(problem)]
    return min(float(stage_seconds(problem, each).max()) for each in found if each is not None)


@pytest.mark.parametrize(
    "name", few(["dgx1-x2", "torus2d-4x4", "random-blk2-16", "uniform-16-s3"], "random-blk2-16")
)
@pytest.mark.parametrize(("stages", "replicas"), [(16, 1), (4, 4), (2, 8)])
def test_never_worse_than_the_usual_orders(name: str, stages: int, replicas: int) -> None:
    problem = chain_problem(
        find_cluster(name).bandwidth / 1e9, stages=stages, replicas=replicas, seed=1
    )
    answer = solve_mapping(problem, budget_seconds=0.3)
    assert answer.assignment is not None
    check_assignment(problem, answer.assignment)
    assert answer.seconds <= _baseline(problem)
    assert answer.bound_seconds <= answer.seconds
    assert answer.seconds == pytest.approx(stage_seconds(problem, answer.assignment).max())


def test_random_links_are_mapped_five_times_better_than_consecutive() -> None:
    problem = chain_problem(
        find_cluster("uniform-64").bandwidth / 1e9, stages=16, replicas=4, seed=2, sync=0.2
    )
    consecutive = consecutive_mapping(problem)
    assert consecutive is not None
    compile_mapping()
    answer = solve_mapping(problem, budget_seconds=4.0)
    assert stage_seconds(problem, consecutive).max() >= 5 * answer.seconds


def test_the_same_seed_gives_the_same_mapping() -> None:
    problem = chain_problem(
        find_cluster("uniform-32").bandwidth / 1e9, stages=8, replicas=4, seed=5
    )
    walks = []
    for _ in range(2):
        walk = AssignmentWalk(problem, 3)
        start = with_rings(problem, np.arange(32, dtype=np.int32))
        walk.begin(start, float(stage_seconds(problem, start).max()))
        walk.run(20_000, 0.7 * walk.value, 1.0, 1e-3, lambda: False)
        walks.append(walk)
    assert (walks[0].best.device_of_place == walks[1].best.device_of_place).all()
    assert walks[0].value == walks[1].value


@given(small_problems(most_places=8, most_devices=9))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_walk_adds_up_as_the_definition_does(problem: MappingProblem) -> None:
    start = consecutive_mapping(problem)
    if start is None or problem.num_devices < 2:
        return
    value = float(stage_seconds(problem, start).max())
    walk = AssignmentWalk(problem, 7)
    walk.begin(start, value)
    walk.run(2_000, 0.5 * value, 1.0, 1e-2, lambda: False)
    check_assignment(problem, walk.best)
    assert walk.value <= value
    found = float(stage_seconds(problem, walk.best).max())
    assert walk.value == pytest.approx(found, rel=1e-9, abs=1e-12)


def test_too_few_devices_name_the_product() -> None:
    problem = chain_problem(np.ones((7, 7)), stages=4, replicas=2)
    answer = solve_mapping(problem)
    assert answer.stop is Stop.INFEASIBLE
    assert answer.assignment is None
    assert answer.reason == "4 stages x 2 replicas = 8 need more than the 7 devices"


def _with(problem: MappingProblem, **changes: object) -> MappingProblem:
    names = (
        "seconds", "replicas_of_slot", "wire_bytes", "sync_bytes", "memory_bytes",
        "type_of_device", "device_memory_bytes", "bandwidth",
    )  # fmt: skip
    fields = {name: getattr(problem, name) for name in names} | changes
    return MappingProblem(**fields)


def test_a_stage_that_fits_nowhere_is_named() -> None:
    problem = chain_problem(np.ones((4, 4)), stages=2, replicas=2)
    large = _with(problem, memory_bytes=np.array([0.0, 2.0]))
    assert "stage 1 needs 2 B on each of 2 devices, but it fits on 0" in find_reason(large)
    unable = _with(problem, seconds=np.array([[np.inf], [1.0]]))
    assert "stage 0 has 2 replicas, but only 0 devices can run it" in find_reason(unable)


def test_stages_that_need_the_same_devices_are_counted() -> None:
    problem = chain_problem(np.ones((4, 4)), stages=2, replicas=2)
    narrow = _with(
        problem,
        memory_bytes=np.array([1.0, 1.0]),
        device_memory_bytes=np.array([1.0, 1.0, 1.0, 0.0]),
    )
    assert find_reason(narrow).startswith("1 stage replicas get no device")


def test_interruption_returns_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = chain_problem(
        find_cluster("uniform-32").bandwidth / 1e9, stages=8, replicas=4, seed=5
    )

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(AssignmentWalk, "run", interrupt)
    answer = solve_mapping(problem)
    assert answer.stop is Stop.LIMIT
    assert answer.is_interrupted
    assert answer.seconds <= _baseline(problem)


@given(small_problems(most_places=5, most_devices=6))
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_each_published_search_is_exact_for_its_own_term(problem: MappingProblem) -> None:
    if find_reason(problem):
        return
    transfers, reductions, both = parmesan_mapping(problem)
    for found, name in ((transfers, "sync_bytes"), (reductions, "wire_bytes")):
        alone = _with(problem, **{name: np.zeros_like(getattr(problem, name))})
        own = with_rings(alone, found.assignment.device_of_place)
        assert found.is_proved
        assert stage_seconds(alone, own).max() == pytest.approx(
            best_by_trying(alone), rel=1e-8, abs=1e-12
        )
    assert both.seconds == min(transfers.seconds, reductions.seconds)
    assert solve_mapping(problem).seconds <= both.seconds * (1 + 1e-9)
