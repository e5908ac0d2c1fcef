"""The integer programme against brute force, and its bound, limits and symmetry."""

import itertools
import math
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from search_strategies import clusters, graphs, make_cluster

from meshwright.array import Ints
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph
from meshwright.search.bound.work import placement_bound
from meshwright.search.clock import Clock
from meshwright.search.instance import Instance, make_instance
from meshwright.search.method.quickp.programme import programme
from meshwright.search.method.quickp.programme.data import (
    device_swaps,
    neighbours,
    num_parallel_pairs,
    reachability,
)
from meshwright.search.method.quickp.programme.model import Status
from meshwright.search.method.quickp.programme.programme import keeps_to, solve_programme
from meshwright.search.order.list_schedule import order_seconds
from meshwright.search.solver import run_solver
from small import connected, dag

BUDGET = 20.0
"""Far more than these need: what ends them is the proof."""


def placements(instance: Instance, limits: np.ndarray) -> Iterator[Ints]:
    for devices in itertools.product(range(instance.num_devices), repeat=instance.num_units):
        placed = np.array(devices, dtype=np.int32)[instance.unit_of]
        if keeps_to(instance, placed, limits):
            yield placed


def topological_orders(instance: Instance) -> Iterator[Ints]:
    edges = [
        (int(edge["op"]), op)
        for op in range(instance.num_ops)
        for edge in instance.in_edges[instance.in_start[op] : instance.in_start[op + 1]]
    ]
    for order in itertools.permutations(range(instance.num_ops)):
        place = {op: position for position, op in enumerate(order)}
        if all(place[source] < place[reader] for source, reader in edges):
            yield np.array(order, dtype=np.int32)


def brute_force(instance: Instance, limits: np.ndarray, orders: list[Ints]) -> float:
    """The best time over all placements that keep to the limits and all of these orders."""
    times = (
        order_seconds(instance, placed, order)
        for placed in placements(instance, limits)
        for order in orders
    )
    return min(times, default=math.inf)


def own_order(instance: Instance) -> Ints:
    return np.arange(instance.num_ops, dtype=np.int32)


@given(graphs(max_ops=5), clusters(max_devices=2))
@settings(max_examples=25, deadline=None)
def test_a_free_order_gives_the_optimum_over_placements_and_orders(
    graph: Graph, cluster: Cluster
) -> None:
    instance = make_instance(graph, cluster)
    optimum = brute_force(instance, cluster.memory_bytes, list(topological_orders(instance)))
    found = solve_programme(instance, order="free", clock=Clock(BUDGET))
    assert found.bound_seconds <= optimum
    assert found.is_optimal
    assert found.seconds == pytest.approx(optimum, rel=1e-6)
    assert found.seconds == order_seconds(instance, found.device_of_op, found.order)


@given(graphs(max_ops=6), clusters(max_devices=3))
@settings(max_examples=25, deadline=None)
def test_a_fixed_order_gives_the_optimum_over_placements(graph: Graph, cluster: Cluster) -> None:
    instance = make_instance(graph, cluster)
    optimum = brute_force(instance, cluster.memory_bytes, [own_order(instance)])
    found = solve_programme(instance, order="fixed", clock=Clock(BUDGET))
    assert found.bound_seconds <= optimum
    assert found.is_optimal
    assert found.seconds == pytest.approx(optimum, rel=1e-6)
    assert found.order.tolist() == list(range(instance.num_ops))


@given(graphs(max_ops=5), clusters(max_devices=3))
@settings(max_examples=25, deadline=None)
def test_limits_on_memory_are_kept_or_proved_to_be_too_low(graph: Graph, cluster: Cluster) -> None:
    instance = make_instance(graph, cluster)
    limits = np.full(instance.num_devices, 0.6 * float(instance.unit_bytes.sum()))
    limits[-1] *= 0.5
    optimum = brute_force(instance, limits, [own_order(instance)])
    found = solve_programme(instance, order="fixed", limits=limits, clock=Clock(BUDGET))
    if optimum == math.inf:
        assert found.status is Status.INFEASIBLE
        assert not found.fits
        assert not found.is_optimal
    else:
        assert found.fits
        assert keeps_to(instance, found.device_of_op, limits)
        assert found.bound_seconds <= optimum
        assert found.seconds == pytest.approx(optimum, rel=1e-6)


@given(graphs(max_ops=7))
@settings(max_examples=15, deadline=None)
def test_breaking_the_symmetry_of_hosts_and_devices_keeps_an_optimum(graph: Graph) -> None:
    # Two hosts of two devices, fast inside and slow between: devices and hosts may be swapped.
    rates = np.full((4, 4), 0.5)
    rates[:2, :2] = rates[2:, 2:] = 3.0
    cluster = make_cluster(["fast"] * 4, rates=rates)
    instance = make_instance(graph, cluster)
    optimum = brute_force(instance, cluster.memory_bytes, [own_order(instance)])
    found = solve_programme(instance, order="fixed", clock=Clock(BUDGET))
    assert found.seconds == pytest.approx(optimum, rel=1e-6)


@pytest.mark.parametrize("there", [0.1, 10.0])
def test_links_may_be_faster_one_way_than_the_other(there: float) -> None:
    # Groups {a, e, d} and {b, c}: a -> b goes one way, c -> d the other, b and c beside e.
    rates = np.array([[1.0, there], [1.0, 1.0]])
    builder = GraphBuilder("both ways")
    for name, group, seconds in (
        ("a", 0, 1.0), ("e", 0, 8.0), ("b", 1, 4.0), ("c", 1, 4.0), ("d", 0, 1.0),
    ):  # fmt: skip
        builder.add_op(name, group=group, seconds={"any": seconds})
    for source, reader in ((0, 2), (2, 3), (3, 4)):
        builder.add_tensor(source, 2.0, [reader])
    cluster = make_cluster(["fast", "fast"], rates=rates)
    instance = make_instance(builder.finish(), cluster)
    for order, orders in (
        ("fixed", [own_order(instance)]),
        ("free", list(topological_orders(instance))),
    ):
        optimum = brute_force(instance, cluster.memory_bytes, orders)
        found = solve_programme(instance, order=order, clock=Clock(BUDGET))  # type: ignore[arg-type]
        assert found.bound_seconds <= optimum
        assert found.is_optimal
        assert found.seconds == pytest.approx(optimum, rel=1e-6)


def test_swaps_are_those_that_change_nothing() -> None:
    instance = make_instance(dag([1.0], {}), connected(3))
    limits = np.array([5.0, 5.0, 7.0])
    assert [(low, high) for low, high, _ in device_swaps(instance, limits)] == [([0], [1])]


def two_joined(seconds: tuple[float, float, float], size: float) -> Instance:
    """o0 and o1 are independent, o2 reads both."""
    return make_instance(dag(seconds, {(0, 2): size, (1, 2): size}), connected(2))


def test_three_ops_take_15_s_where_transfers_take_5() -> None:
    # o1 (10) and o2 (5) on one device, o0 (5) on the other: its tensor arrives at 10.
    found = solve_programme(two_joined((5.0, 10.0, 5.0), 5.0), order="free")
    assert found.seconds == 15.0
    assert found.status is Status.OPTIMAL


def test_the_bound_counts_transfers_that_the_instances_own_bound_does_not() -> None:
    # Apart: 6 + 5 + 4; on one device: 6 + 6 + 4 = 16. The path alone is 10, half the work 8.
    found = solve_programme(two_joined((6.0, 6.0, 4.0), 5.0), order="free")
    assert found.seconds == 15.0
    assert found.bound_seconds == pytest.approx(15.0)


def test_a_fixed_order_is_that_of_the_start() -> None:
    # On one device that has all the memory: o0 first lets o2 follow on; the order is all there is.
    instance = two_joined((1.0, 2.0, 3.0), 100.0)
    sort = np.array([1, 0, 2], dtype=np.int32)
    found = solve_programme(instance, start=(np.zeros(3, np.int32), sort))
    assert found.order.tolist() == [1, 0, 2]
    assert found.seconds == 6.0


def test_the_start_is_the_answer_at_worst() -> None:
    instance = make_instance(dag([1.0, 2.0, 1.5, 3.0, 0.7, 1.1], {(0, 3): 1.0}), connected(3))
    placed = np.array([0, 1, 2, 0, 1, 2], dtype=np.int32)
    start = placed, own_order(instance)
    found = solve_programme(instance, order="free", start=start, clock=Clock(1e-3))
    assert found.seconds <= order_seconds(instance, *start)
    assert found.fits
    assert found.bound_seconds <= found.seconds


def test_what_is_too_large_is_said_and_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programme, "MAX_PAIRS", 2)
    instance = make_instance(dag([1.0] * 3, {}), connected(2))
    found = solve_programme(instance, order="free")
    assert found.status is Status.TOO_LARGE
    assert found.seconds == 3.0  # all on one device
    assert found.bound_seconds == placement_bound(instance)
    assert found.statistics["pairs"] == 3


def test_nothing_is_built_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programme, "Model", lambda *_: pytest.fail("it was built"))
    instance = make_instance(dag([1.0] * 3, {}), connected(2))
    found = solve_programme(instance, order="free", clock=Clock(0.0))
    assert (found.seconds, found.fits, found.is_within(0.0)) == (3.0, True, False)


def test_reachability_follows_paths_beyond_one_word() -> None:
    # A chain of 130 ops and one apart: op 0 reaches 129 others, and 130 pairs are parallel.
    graph = dag([1.0] * 131, [(i, i + 1, 0.0) for i in range(129)])
    reach = reachability(make_instance(graph, connected(2)))
    assert int(np.bitwise_count(reach[0]).sum()) == 129
    assert num_parallel_pairs(reach) == 130


def test_only_neighbours_of_two_units_are_ordered() -> None:
    # Units a = {0, 1} and b = {2, 3}, no edges: 0 before 1, 1 before 2, 2 before 3 says it all.
    builder = GraphBuilder("units")
    for number, group in enumerate([0, 0, 1, 1]):
        builder.add_op(f"o{number}", group=group, seconds={"any": 1.0})
    instance = make_instance(builder.finish(), connected(2))
    found = list(neighbours(instance, own_order(instance), reachability(instance)))
    assert found == [(0, 1), (1, 2), (2, 3)]


def test_one_seed_and_the_solvers_clock_give_one_answer() -> None:
    graph = dag([1.0 + 0.1 * i for i in range(14)], [(i, i + 3, 0.5) for i in range(11)])
    instance = make_instance(graph, connected(3))
    runs = [
        solve_programme(instance, order="free", seed=3, deterministic_seconds=0.05)
        for _ in range(2)
    ]
    assert runs[0].device_of_op.tolist() == runs[1].device_of_op.tolist()
    assert runs[0].order.tolist() == runs[1].order.tolist()
    assert runs[0].bound_seconds == runs[1].bound_seconds


@pytest.fixture
def heard() -> Iterator[None]:
    """Ctrl-C as in a terminal: what a shell starts in the background ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heard")
def test_ctrl_c_ends_it_with_the_best_so_far_and_python_hears_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # 40 independent ops of odd lengths on 3 devices: an even division is hard to prove.
    seconds = [1.0 + math.sqrt(i) for i in range(40)]
    edges = [(i, j, 0.01) for i in range(20) for j in (20 + i, 39 - i) if j >= 20]
    instance = make_instance(dag(seconds, edges), connected(3))
    timer = threading.Timer(1.0, os.kill, [os.getpid(), signal.SIGINT])

    def run_timed(*arguments: Any) -> Any:
        timer.start()  # not before: kernels may have to be compiled first
        return run_solver(*arguments)

    monkeypatch.setattr(programme, "run_solver", run_timed)
    clock = Clock(60.0)
    found = solve_programme(instance, order="free", clock=clock)
    timer.join()
    assert clock.is_interrupted
    assert found.statistics["solve_seconds"] < 30
    assert found.fits
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    with pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)


def test_what_it_cannot_do_is_refused() -> None:
    instance = two_joined((1.0, 1.0, 1.0), 1.0)
    with pytest.raises(InputError, match="order: must be one of fixed, free, got 'any'"):
        solve_programme(instance, order="any")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="workers: must be 1 or 2, got 8"):
        solve_programme(instance, workers=8)
