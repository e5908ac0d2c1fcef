"""Bounds and methods against brute force on small instances."""

import itertools
import math
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from search_strategies import clusters, graphs, make_cluster

from meshwright.cluster.cluster import Cluster
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Stop
from meshwright.search.bound.work import placement_bound, plan_bound, work_bound
from meshwright.search.instance import Instance, make_instance
from meshwright.search.method.name import LAYERED, METHODS
from meshwright.search.portfolio import find_plan, search_by

mcmc = partial(search_by, "mcmc")

PLACEMENTS = ("single", "round-robin", "metis", "mcmc", "heft", "m-sct", "placement", "quickp")


def brute_force(instance: Instance) -> float:
    """The best time over all placements of units and all orders, each transfer alone."""
    best = math.inf
    for devices in itertools.product(range(instance.num_devices), repeat=instance.num_units):
        placed = [devices[unit] for unit in instance.unit_of.tolist()]
        for order in linear_extensions(instance.graph):
            best = min(best, run_order(instance, placed, order))
    return best


def linear_extensions(graph: Graph) -> Iterator[tuple[int, ...]]:
    edges = list(zip(*(ends.tolist() for ends in graph.edges), strict=True))
    for order in itertools.permutations(range(graph.num_ops)):
        place = {op: position for position, op in enumerate(order)}
        if all(place[source] < place[target] for source, target in edges):
            yield order


def run_order(instance: Instance, placed: list[int], order: tuple[int, ...]) -> float:
    graph, cluster = instance.graph, instance.cluster
    finish: dict[int, float] = {}
    free = [0.0] * instance.num_devices
    for op in order:
        start = free[placed[op]]
        for tensor in graph.inputs[op].tolist():
            source = int(graph.tensor_source[tensor])
            arrival = finish[source]
            if placed[source] != placed[op]:
                pair = placed[source], placed[op]
                arrival += cluster.latency[pair]
                arrival += graph.tensor_bytes[tensor] / cluster.bandwidth[pair]
            start = max(start, arrival)
        finish[op] = start + instance.seconds[op, instance.type_of[placed[op]]]
        free[placed[op]] = finish[op]
    return max(finish.values())


def three_operators() -> Graph:
    """QuickP's example: a (5 us) and b (10 us) are independent, c (5 us) reads both."""
    builder = GraphBuilder("three operators")
    seconds = {"a": 5e-6, "b": 10e-6, "c": 5e-6}
    a, b, c = (builder.add_op(name, seconds={"any": time}) for name, time in seconds.items())
    builder.add_tensor(a, 5.0, [c])
    builder.add_tensor(b, 5.0, [c])
    return builder.finish()


def test_three_operators_take_15_us_on_two_devices_and_20_on_one() -> None:
    # a beside b, c after b on b's device: a's tensor arrives at 5 + 5 = 10, c runs from 10 to 15.
    cluster = make_cluster(["fast", "fast"], rate=1e6)  # 5 bytes take 5 us
    graph = three_operators()
    instance = make_instance(graph, cluster)
    assert brute_force(instance) == pytest.approx(15e-6)
    assert find_plan(graph, cluster, "single").step_seconds == pytest.approx(20e-6)
    for method in ("heft", "mcmc"):
        answer = find_plan(graph, cluster, method)
        assert answer.step_seconds == pytest.approx(15e-6)
        assert answer.stop is Stop.PROVED  # b and c follow one another: 15 us
        assert answer.bound_seconds == pytest.approx(15e-6)


@given(graphs(max_ops=5), clusters(max_devices=2))
@settings(max_examples=40)
def test_the_optimum_lies_between_the_bound_and_every_method(
    graph: Graph, cluster: Cluster
) -> None:
    instance = make_instance(graph, cluster)
    optimum = brute_force(instance)
    assert plan_bound(instance) <= placement_bound(instance) * (1 + 1e-9)
    assert placement_bound(instance) <= optimum
    for method in PLACEMENTS:
        found = find_plan(graph, cluster, method, sharing="none").step_seconds
        assert found >= optimum * (1 - 1e-9), method
        assert method != "placement" or found == pytest.approx(optimum)


def test_the_optimum_of_six_ops_lies_between_bound_and_methods() -> None:
    # Two chains, 0-1-2 and 3-4, that join in 5.
    builder = GraphBuilder("six")
    for number, time in enumerate([2.0, 3.0, 1.0, 1.0, 4.0, 2.0]):
        builder.add_op(f"op{number}", seconds={"any": time})
    for source, target in ((0, 1), (1, 2), (3, 4), (4, 5), (2, 5)):
        builder.add_tensor(source, 1.0, [target])
    cluster = make_cluster(["fast", "fast"])
    instance = make_instance(builder.finish(), cluster)
    optimum = brute_force(instance)
    assert optimum == 8.0  # 3, 4 take 5 and 1 to move, 0, 1, 2 take 6: then op 5
    assert placement_bound(instance) == pytest.approx(8.0)  # the path 0, 1, 2, 5
    # Warmer than by default: on six ops one move changes a sixth of all.
    assert mcmc(instance.graph, cluster, beta=3.0).step_seconds == 8.0


@pytest.mark.slow
@given(graphs(), clusters())
@settings(max_examples=3)  # many more in tests/hunt
def test_no_method_goes_below_the_bounds(graph: Graph, cluster: Cluster) -> None:
    instance = make_instance(graph, cluster)
    placement, plan = placement_bound(instance), plan_bound(instance)
    of_teams = find_plan(graph, cluster, "hybrid").bound_seconds or plan  # 0: not for it
    for method in METHODS:
        for sharing in ("none", "fair"):
            budget = {"deploy": 0.2, "flexflow": 0.2, "mcts": 0.2, "auto": 20.0}.get(method, 30.0)
            answer = find_plan(graph, cluster, method, sharing=sharing, budget_seconds=budget)
            bound = placement if method in PLACEMENTS else plan
            if method in LAYERED:  # which divide ops, and are for graphs of layers only
                assert answer.step_seconds >= answer.bound_seconds
                continue
            if "hybrid_seconds" in answer.statistics:  # of `auto`, of which it is one
                bound = min(plan, of_teams)
            if method == "placement":  # and more where it branches, or has looked at everything
                assert answer.bound_seconds >= bound * (1 - 1e-9)
            else:
                assert answer.bound_seconds == pytest.approx(bound)
            assert answer.step_seconds >= answer.bound_seconds, method
            assert answer.step_seconds >= bound, method
            assert answer.stop is not Stop.INFEASIBLE or method in ("consecutive", "pipedream")


def test_equal_devices_share_the_work() -> None:
    assert work_bound(np.array([[1.0], [2.0], [6.0]]), np.array([3.0])) == pytest.approx(3.0)


def test_the_work_bound_of_two_types_is_near_their_joint_speed() -> None:
    # One device twice as fast as the other: 300 equal ops of 1 and 2 s. Loads x and 2 (300 - x)
    # are equal at x = 200: 200 s.
    seconds = np.tile([1.0, 2.0], (300, 1))
    found = work_bound(seconds, np.array([1.0, 1.0]))
    assert 0.98 * 200 <= found <= 200 * (1 + 1e-9)


@given(graphs(), clusters(max_devices=3))
@settings(max_examples=60)
def test_no_division_of_ops_beats_the_work_bound(graph: Graph, cluster: Cluster) -> None:
    # Loads of random divisions, ignoring the order of ops: the largest is never below the bound.
    instance = make_instance(graph, cluster)
    bound = plan_bound_of_work(instance)
    generator = np.random.default_rng(0)
    seconds = instance.seconds[:, instance.type_of]
    for _ in range(20):
        shares = generator.dirichlet(np.full(instance.num_devices, 0.3), instance.num_ops)
        assert (shares * seconds).sum(axis=0).max() >= bound * (1 - 1e-9)


def plan_bound_of_work(instance: Instance) -> float:
    counts = np.bincount(instance.type_of, minlength=instance.seconds.shape[1])
    return work_bound(instance.seconds, counts.astype(np.float64))
