"""The whole search for placements: against brute force, other methods, memory and the clock."""

from dataclasses import replace
from functools import partial
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from placement_strategies import ROUNDED, instances, least_step

import meshwright as mw
from counted import counted_clock
from meshwright.cluster.cluster import Cluster
from meshwright.cost.memory import usable_bytes
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.answer import Answer, Stop
from meshwright.search.clock import Clock
from meshwright.search.instance import Instance, make_instance
from meshwright.search.method.placement.improve import improve
from meshwright.search.method.placement.level_search import search_rounds
from meshwright.search.method.placement.placement_walk import PlacementWalk
from meshwright.search.portfolio import find_plan, search_by
from meshwright.simulate.simulate import simulate
from small import connected, dag, layers

placement = partial(search_by, "placement")

SHARINGS = ("none", "fair")


def check_answer(answer: Answer, graph: Graph, cluster: Cluster, sharing: str) -> None:
    """What every answer with a plan says of itself."""
    assert answer.plan is not None
    timeline = simulate(graph, cluster, answer.plan, sharing=sharing)
    assert answer.step_seconds == timeline.step_seconds
    assert (np.array(timeline.peak_bytes) <= usable_bytes(graph, cluster) * (1 + 1e-9)).all()
    assert answer.bound_seconds <= answer.step_seconds
    assert (answer.stop is Stop.PROVED) == (
        answer.step_seconds <= answer.bound_seconds * (1 + 1e-9)
    )


def with_memory(cluster: Cluster, *memory_bytes: float) -> Cluster:
    devices = zip(cluster.devices, memory_bytes, strict=True)
    return replace(
        cluster, devices=tuple(replace(device, memory_bytes=size) for device, size in devices)
    )


@given(instances(max_ops=6, max_devices=2), st.sampled_from(SHARINGS))
@settings(max_examples=25)
def test_the_optimum_lies_between_the_bound_and_the_value(instance: Instance, sharing: str) -> None:
    answer = placement(instance.graph, instance.cluster, sharing=sharing, budget_seconds=5.0)
    check_answer(answer, instance.graph, instance.cluster, sharing)
    optimum = least_step(instance)
    assert optimum <= answer.step_seconds * (1 + 1e-9)
    if sharing == "none":
        assert answer.bound_seconds <= optimum * (1 + 1e-9)
        assert answer.step_seconds == pytest.approx(optimum, rel=1e-9, abs=0)


@given(instances(min_ops=3, max_ops=5, min_devices=3, times=ROUNDED))
@settings(max_examples=15)
def test_the_optimum_on_three_devices_lies_between_bound_and_value(instance: Instance) -> None:
    answer = placement(instance.graph, instance.cluster, sharing="none", budget_seconds=5.0)
    optimum = least_step(instance)
    assert answer.bound_seconds <= optimum * (1 + 1e-9)
    assert answer.step_seconds == pytest.approx(optimum, rel=1e-9, abs=0)


@given(instances(min_ops=3, max_ops=6, min_devices=2, max_devices=2), st.integers(0, 99))
@settings(max_examples=20)
def test_rounds_of_walks_only_get_better_down_to_the_optimum(instance: Instance, seed: int) -> None:
    # Without what looks at all of a small step afterwards.
    limits = usable_bytes(instance.graph, instance.cluster)
    found = list(islice(search_rounds(instance, limits, seed, lambda: False), 3))
    optimum = least_step(instance)
    ranks = [each.rank for each in found]
    assert ranks == sorted(ranks, reverse=True)
    assert optimum * (1 - 1e-12) <= found[-1].seconds <= 1.2 * optimum
    assert found[-1].lacking_bytes == 0


@given(instances(min_ops=2, max_ops=6, min_devices=2, max_devices=2), st.sampled_from([0.5, 9.0]))
@settings(max_examples=15)
def test_the_bound_of_neighbourhoods_holds_for_all_placements(
    instance: Instance, part: float
) -> None:
    limits = np.full(instance.num_devices, part * float(instance.unit_bytes.sum()))
    placed = next(search_rounds(instance, limits, 0, lambda: False))
    found = improve(instance, placed, limits, 0, Clock(5.0), target=0.0)
    assert found.placed.rank <= placed.rank
    if part > 1:  # brute force knows no limits
        assert found.bound_seconds <= least_step(instance)


def test_what_is_saved_elsewhere_raises_no_bound() -> None:
    # b reads what f has saved but no tensor of it, so on two devices they run side by side. If it
    # had to wait there for 9 s, 2 s on one device would be the optimum.
    builder = GraphBuilder("saved")
    op = builder.add_op("f", seconds={"any": 1.0}, saved_bytes=1.0)
    builder.add_op("b", phase=Phase.BACKWARD, seconds={"any": 1.0}, partner=op)
    builder.add_op("c", seconds={"any": 0.5})
    instance = make_instance(builder.finish(), connected(2, latency=9.0))
    placed = next(search_rounds(instance, np.full(2, 9.0), 0, lambda: False))
    found = improve(instance, placed, np.full(2, 9.0), 0, Clock(5.0), target=0.0)
    assert found.bound_seconds <= least_step(instance) == 1.5


def test_merged_ops_raise_no_bound() -> None:
    # Two units of 150 ops each, the second a step behind the first: 151 s. As two merged ops 300.
    builder = GraphBuilder("two units")
    for number in range(150):
        first = builder.add_op(f"a{number}", group=0, seconds={"any": 1.0})
        second = builder.add_op(f"b{number}", group=1, seconds={"any": 1.0})
        builder.add_tensor(first, 0.0, [second] if number == 149 else [second, second + 1])
        if number < 149:
            builder.add_tensor(second, 0.0, [second + 2])
    instance = make_instance(builder.finish(), connected(2))
    placed = PlacementWalk(instance, np.full(2, 9.0), 0).time(np.array([0, 1], np.int32))
    assert placed.seconds == 151
    found = improve(instance, placed, np.full(2, 9.0), 0, Clock(5.0), target=0.0)
    assert found.bound_seconds <= 151
    assert found.placed.seconds <= 151


def test_two_branches_run_side_by_side() -> None:
    # 1, then 4 beside 4 with 0.25 to move, then 1.
    edges = {(0, 1): 0.25, (0, 2): 0.25, (1, 3): 0.25, (2, 3): 0.25}
    answer = placement(dag([1.0, 4.0, 4.0, 1.0], edges), connected(2))
    assert answer.step_seconds == 6.25
    assert answer.stop is Stop.PROVED


def test_two_branches_that_cost_more_to_move_stay() -> None:
    edges = {(0, 1): 5.0, (0, 2): 5.0, (1, 3): 5.0, (2, 3): 5.0}
    answer = placement(dag([1.0, 4.0, 4.0, 1.0], edges), connected(2))
    assert answer.step_seconds == 10
    assert answer.stop is Stop.PROVED


def test_one_device_runs_everything() -> None:
    answer = placement(layers(5, activation=1.0), connected(1))
    assert answer.step_seconds == 15
    assert answer.stop is Stop.PROVED


@pytest.mark.parametrize("num_devices", [1, 3])
def test_one_op_runs_alone(num_devices: int) -> None:
    answer = placement(dag([2.0], {}), connected(num_devices))
    assert (answer.step_seconds, answer.stop) == (2.0, Stop.PROVED)


def test_ops_without_edges_are_dealt_out() -> None:
    # 60 ops of 1 s on three devices.
    answer = placement(dag([1.0] * 60, {}), connected(3))
    assert (answer.step_seconds, answer.stop) == (20.0, Stop.PROVED)


def forced(seconds: list[dict[str, float]]) -> Graph:
    """A chain of ops with these times by type."""
    builder = GraphBuilder("forced")
    for number, times in enumerate(seconds):
        builder.add_op(f"o{number}", seconds=times)
        if number:
            builder.add_tensor(number - 1, 1.0, [number])
    return builder.finish()


def test_ops_go_where_they_can_run() -> None:
    # o1 runs on d1 only, 1 to move there and back.
    one, other = {"unit": 1.0, "other": np.inf}, {"unit": np.inf, "other": 3.0}
    cluster = connected(2, types=["unit", "other"])
    answer = placement(forced([one, other, one]), cluster)
    assert (answer.step_seconds, answer.stop) == (1 + 1 + 3 + 1 + 1, Stop.PROVED)


def test_many_ops_of_two_types_go_where_they_can_run() -> None:
    one, other = {"unit": 1.0, "other": np.inf}, {"unit": 2.0, "other": 1.0}
    graph = forced([one if number % 3 else other for number in range(90)])
    cluster = connected(3, 100.0, types=["unit", "other", "other"])
    for sharing in SHARINGS:
        answer = placement(graph, cluster, sharing=sharing, budget_seconds=2.0)
        check_answer(answer, graph, cluster, sharing)
        assert answer.step_seconds <= 60 + 30 * 1.02  # a chain: o0 there and back each time


def test_an_op_that_no_device_can_run_is_named() -> None:
    graph = forced([{"unit": 1.0}, {"unit": np.inf}])
    answer = placement(graph, connected(2))
    assert answer.stop is Stop.INFEASIBLE
    assert answer.plan is None
    assert "o1" in answer.binding


def stateful(count: int, state_bytes: float) -> Graph:
    """A chain of ops of 1 s that exchange much: on one device unless memory is short."""
    builder = GraphBuilder("stateful")
    for number in range(count):
        builder.add_op(f"o{number}", seconds={"any": 1.0}, state_bytes=state_bytes)
        if number:
            builder.add_tensor(number - 1, 50.0, [number])
    return builder.finish()


@pytest.mark.parametrize("sharing", SHARINGS)
def test_memory_divides_a_chain_once(sharing: str) -> None:
    # Eight ops of 1,000 bytes and tensors of 50, devices of 4,300: four and four, 50 to move.
    graph, cluster = stateful(8, 1000.0), with_memory(connected(2, 10.0), 4300.0, 4300.0)
    answer = placement(graph, cluster, sharing=sharing, budget_seconds=5.0)
    check_answer(answer, graph, cluster, sharing)
    assert answer.step_seconds == 8 + 5


def test_memory_that_is_uneven_is_used() -> None:
    # Six ops on the large device, two on the small one.
    graph, cluster = stateful(8, 1000.0), with_memory(connected(2, 10.0), 2300.0, 6300.0)
    answer = placement(graph, cluster, budget_seconds=5.0)
    check_answer(answer, graph, cluster, "fair")
    assert answer.step_seconds == 8 + 5


@given(instances(min_ops=3, max_ops=8, min_devices=2), st.sampled_from([0.3, 0.5, 0.7, 1.0]))
@settings(max_examples=20)
def test_little_memory_is_kept_to_or_found_lacking(instance: Instance, part: float) -> None:
    graph = instance.graph
    size = part * float((graph.state_bytes + graph.saved_bytes).sum()) + 4.0
    cluster = with_memory(instance.cluster, *[size] * instance.num_devices)
    answer = placement(graph, cluster, budget_seconds=2.0)
    if answer.plan is not None:
        check_answer(answer, graph, cluster, "fair")
    else:
        assert answer.stop is Stop.INFEASIBLE
        assert "bytes) are missing" in answer.binding
        assert answer.statistics["missing_bytes"] > 0
        assert answer.step_seconds == np.inf


def test_a_step_that_fits_nowhere_names_the_bytes_and_the_devices() -> None:
    # 9,000 bytes of state on two devices of 4,000: three ops of 1,500 and more need a third.
    graph, cluster = stateful(6, 1500.0), with_memory(connected(2), 4000.0, 4000.0)
    answer = find_plan(graph, cluster, "placement", budget_seconds=2.0)
    assert answer.stop is Stop.INFEASIBLE
    assert "(1,000 bytes) are missing" in answer.binding
    assert "3 devices" in answer.binding
    # By itself it has no proof, but says what its best plan lacks.
    alone = placement(graph, cluster, budget_seconds=2.0)
    assert alone.stop is Stop.INFEASIBLE
    assert "bytes) are missing" in alone.binding
    assert alone.statistics["missing_bytes"] >= 1000


def test_a_gap_ends_the_search_within_it() -> None:
    # A binary tree of uneven ops: what needs no search is proven to be within nine times the bound,
    # and the proof of the optimum takes rounds and an exact search.
    seconds = [1.0 + 7 * number % 5 for number in range(16)]
    edges = [(i, j, 3.0) for i in range(16) for j in (2 * i + 1, 2 * i + 2) if j < 16]
    graph, cluster = dag(seconds, edges), connected(3)
    exact = placement(graph, cluster, sharing="none")
    near = placement(graph, cluster, sharing="none", gap=9.0)
    assert (exact.stop, near.stop) == (Stop.PROVED, Stop.GAP)
    assert near.statistics == {"rounds": 0.0}
    assert exact.statistics["neighbourhoods"] > 0
    assert near.bound_seconds < exact.bound_seconds <= exact.step_seconds <= near.step_seconds


def test_one_seed_gives_one_answer() -> None:
    graph, cluster = layers(12, weight=1.5, activation=1.0, gradient=2.0), connected(3, 2.0)
    one, other = (placement(graph, cluster, seed=5, budget_seconds=60.0) for _ in range(2))
    assert one.step_seconds == other.step_seconds
    assert one.plan == other.plan
    assert one.bound_seconds == other.bound_seconds


@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("looks", [1, 40])
def test_a_budget_is_kept_to(sharing: str, looks: int) -> None:
    graph, cluster = mw.load_graph("inception-v3"), mw.cluster("nvlink50-eth20-x2")
    with counted_clock() as clock:
        answer = placement(
            graph, cluster, budget_seconds=looks * clock.tick_seconds, sharing=sharing
        )
        assert clock.looks <= looks + 24  # what is begun ends, and has a look when it does
    assert answer.stop is Stop.LIMIT
    check_answer(answer, graph, cluster, sharing)


@pytest.mark.parametrize(
    "name", ["alexnet-32", "inception-v3", "bert-small", "resnet50", "transformer"]
)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_no_shipped_step_is_slower_than_by_heft_or_on_one_device(name: str, sharing: str) -> None:
    graph, cluster = mw.load_graph(name), mw.cluster("nvlink50-eth20-x2")
    answer = placement(graph, cluster, sharing=sharing, budget_seconds=0.1)
    check_answer(answer, graph, cluster, sharing)
    for method in ("heft", "single"):
        other = find_plan(graph, cluster, method, sharing=sharing)
        assert answer.step_seconds <= other.step_seconds * (1 + 1e-9), method
