"""The hybrid search on odd inputs, small budgets, several engines, and when it is interrupted."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hybrid_strategies import small_model

import meshwright as mw
from counted import TICK_SECONDS
from meshwright.cluster.build import fully_connected, hierarchical
from meshwright.cluster.catalogue import find_cluster
from meshwright.graph.architecture.gpt import gpt
from meshwright.plan.answer import Stop
from meshwright.plan.check import resolve
from meshwright.plan.part import Keys, Recompute, ScheduleKind
from meshwright.search.method.hybrid import compare
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.pool.engine import open_engine
from meshwright.search.pool.process import Processes
from meshwright.search.portfolio import find_plan, search_by
from quick import few
from work import count_lines

hybrid = partial(search_by, "hybrid")

LOOKS = 128
"""How often a search may look at the clock before its time is over."""
SCOPE = Scope(zero=(0, 3), recompute=(Recompute.NONE,), schedules=(ScheduleKind.ONE_F_ONE_B,))


def search(graph: Any, cluster: Any, **more: Any) -> Any:
    answer = hybrid(graph, cluster, **{"budget_seconds": LOOKS * TICK_SECONDS, **more})
    if answer.plan is not None:
        resolve(graph, cluster, answer.plan)
        assert answer.bound_seconds <= answer.step_seconds * (1 + 1e-9)
        for other in answer.runner_ups:
            assert other.step_seconds >= answer.step_seconds
            resolve(graph, cluster, other.plan)
    return answer


def simple_seconds(graph: Any, cluster: Any) -> float:
    """What one device takes, or all of them with the same plan; both are in every scope here."""
    simple = [find_plan(graph, cluster, method) for method in ("single", "data")]
    return min(answer.step_seconds for answer in simple)


@pytest.mark.parametrize("name", ["h100-x1", "h100-x2", "h100-x7", "uniform-16", "random-blk1-16"])
@pytest.mark.parametrize("batch", few([1, 4, 13], 13))
def test_any_number_of_devices_and_samples_has_a_plan(name: Any, batch: Any) -> None:
    graph, cluster = small_model(batch=batch), find_cluster(name)
    answer = search(graph, cluster, scope=SCOPE)
    assert answer.step_seconds <= simple_seconds(graph, cluster) * (1 + 1e-9)


MIXED = {
    "tag-testbed": 256, "tag-cloud": 32, "dgx1-x4": 32, "nvlink50-eth20-x4": 8192, "tpuv4-4x4": 32,
    "torus2d-4x4": 256,
}  # fmt: skip
"""Clusters, and how many looks at the clock are enough to find what is faster than simple plans."""


@pytest.mark.parametrize("name", few(list(MIXED), "tag-testbed", "torus2d-4x4"))
def test_mixed_and_switchless_clusters_have_plans(name: Any) -> None:
    graph = gpt(hidden=512, heads=8, layers=4, sequence=128, vocabulary=1024, batch=16)
    cluster = find_cluster(name)
    answer = search(graph, cluster, scope=SCOPE, budget_seconds=MIXED[name] * TICK_SECONDS)
    assert answer.step_seconds < simple_seconds(graph, cluster)


def test_of_the_ways_to_get_at_keys_the_faster_one_is_taken() -> None:
    """Four devices that share the tokens of one sample have no other choice."""
    graph = gpt(hidden=512, heads=8, layers=2, batch=1, sequence=16384, vocabulary=512)
    cluster = find_cluster("h100-x4")
    scope = replace(SCOPE, tensor=(1,), context=(4,), zero=(0,))
    found = {way: search(graph, cluster, scope=replace(scope, keys=(way,))) for way in Keys}
    for way, answer in found.items():
        assert {part.keys for part in answer.plan.parts} == {way}
    best = search(graph, cluster, scope=scope)
    assert best.step_seconds == min(answer.step_seconds for answer in found.values())


def test_more_devices_than_samples_and_layers_are_left_idle() -> None:
    # No op is divided: each of two samples is on one device a stage, of six stages at most: four
    # layers, the embedding and the head.
    scope = replace(SCOPE, tensor=(1,), context=(1,))
    answer = search(small_model(batch=2, layers=4), find_cluster("h100-spineleaf-64"), scope=scope)
    used = {device for part in answer.plan.parts for device in part.devices}
    assert 1 < len(used) <= 2 * 6


def test_devices_of_mixed_memory_hold_what_they_can() -> None:
    cluster = fully_connected(num_devices=4, device_type="h100", bytes_per_second=1e11)
    devices = list(cluster.devices)
    devices[3] = replace(devices[3], memory_bytes=1e9)
    graph = gpt(hidden=1024, heads=16, layers=6, sequence=512, vocabulary=8192, batch=16)
    # The devices of a tensor-parallel group hold the same; without one the small device has to get
    # the stage that holds less.
    scope, seconds = Scope(tensor=(1,)), 1024 * TICK_SECONDS
    cramped = replace(cluster, devices=tuple(devices))
    answer = search(graph, cramped, scope=scope, budget_seconds=seconds)
    assert answer.peak_bytes[3] <= 1e9 < answer.peak_bytes[0]


def test_experts_are_divided_only_by_widths_that_divide_them() -> None:
    graph = mw.load_graph("mixtral-8x7b").at_batch(24)
    answer = search(graph, find_cluster("h200-x6"))
    assert {8 % part.expert for part in answer.plan.parts} == {0}


def test_a_batch_that_is_not_whole_is_refused_in_one_line() -> None:
    answer = search(small_model().at_batch(2.5), find_cluster("h100-x2"))
    assert answer.plan is None
    assert answer.binding == (
        "not for this search: hybrid: the batch must be a whole number of samples, got 2.5"
    )


@pytest.mark.parametrize("untie", [False, True])
def test_tied_weights_are_not_in_the_way(untie: Any) -> None:
    # Stages of one device each are the best but for the tie, which plain stages cannot keep.
    graph = gpt(
        hidden=1024, heads=4, layers=2, sequence=64, vocabulary=512, batch=4, untie=untie
    )  # fmt: skip
    cluster = fully_connected(num_devices=4, device_type="1080ti", bytes_per_second=1e12)
    scope = Scope(
        tensor=(1,), context=(1,), zero=(0,), recompute=(Recompute.NONE,), microbatches=(2,),
        schedules=(ScheduleKind.ONE_F_ONE_B,),
    )  # fmt: skip
    answer = search(graph, cluster, scope=scope, budget_seconds=20)
    assert answer.stop is Stop.PROVED
    assert (len(answer.plan.parts) == 1) is not untie


def test_no_time_at_all_still_gives_a_plan() -> None:
    graph = mw.load_graph("llama-2-7b").at_batch(64)
    answer = search(graph, find_cluster("h100-spineleaf-64"), budget_seconds=TICK_SECONDS)
    assert answer.plan is not None
    assert answer.stop is Stop.LIMIT
    assert answer.statistics["simulated"] == 1


@pytest.mark.parametrize("name", few(["hierarchical-4x4x4", "titan-v-4x4"], "titan-v-4x4"))
def test_no_more_than_a_fifth_is_added_to_a_budget(name: Any) -> None:
    answer = search(mw.load_graph("vgg16"), find_cluster(name))
    assert answer.stop is Stop.LIMIT
    assert LOOKS * TICK_SECONDS / 2 < answer.search_seconds <= 1.2 * LOOKS * TICK_SECONDS


@pytest.mark.slow
def test_a_budget_holds_where_little_fits() -> None:
    # Few of many chains of stages fit, so that few are simulated: looking for them took minutes.
    cluster = hierarchical(
        devices_per_host=4, branching=[2], device_bytes_per_second=3e11, host_bytes_per_second=1e10
    )
    devices = tuple(replace(each, memory_bytes=6e8) for each in cluster.devices)
    graph = gpt(hidden=1024, heads=16, layers=6, sequence=512, vocabulary=8192, batch=16)
    cramped, seconds = replace(cluster, devices=devices), 32 * TICK_SECONDS
    answer, lines = count_lines(lambda: search(graph, cramped, budget_seconds=seconds))
    assert answer.stop is Stop.LIMIT
    assert lines < 10_000_000  # 4,143,547 when counted (2026-11)


@pytest.mark.slow
def test_the_same_plan_comes_twice_and_on_any_number_of_workers() -> None:
    graph = gpt(hidden=512, heads=8, layers=6, sequence=128, vocabulary=1024, batch=16)
    cluster = find_cluster("h100-x8x4")
    answers = [search(graph, cluster, budget_seconds=60) for _ in range(2)]
    answers.append(search(graph, cluster, budget_seconds=60, engine=Processes(1)))
    with open_engine("local") as engine:
        answers.append(search(graph, cluster, budget_seconds=60, engine=engine))
    first = answers[0]
    for other in answers[1:]:
        assert other.plan == first.plan
        assert other.step_seconds == first.step_seconds
        assert [each.plan for each in other.runner_ups] == [each.plan for each in first.runner_ups]


def test_an_interrupt_gives_the_best_so_far(monkeypatch: Any) -> None:
    class Interrupted(Processes):
        def __init__(self, rounds: int) -> None:
            super().__init__(1)
            self.rounds, self.items = rounds, 0

        def run(self, function: Any, context: Any, items: Any) -> Any:
            if not self.rounds:
                raise KeyboardInterrupt
            self.rounds -= 1
            self.items += len(items)
            return super().run(function, context, items)

    graph = gpt(hidden=512, heads=8, layers=4, sequence=128, vocabulary=1024, batch=16)
    monkeypatch.setattr(compare, "_FEW_MARGIN", 10.0)
    engines = [Interrupted(rounds) for rounds in (1, 2)]
    found = [search(graph, find_cluster("h100-x8"), engine=engine) for engine in engines]
    assert {answer.stop for answer in found} == {Stop.INTERRUPTED}
    assert [answer.statistics["simulated"] for answer in found] == [each.items for each in engines]
    seconds = [answer.step_seconds for answer in found]
    assert seconds == sorted(seconds, reverse=True)


def test_an_interrupt_before_anything_is_known_ends_the_search() -> None:
    class Interrupted(Processes):
        def run(self, *_: Any) -> Any:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        search(small_model(), find_cluster("h100-x2"), engine=Interrupted(1))
