"""Plans with allocations: never slower, proven, and as good as any on a grid of rates."""

from dataclasses import replace
from itertools import product
from math import sqrt
from time import perf_counter

import numpy as np
import pytest
from bandwidth_strategies import MB, Case, cases, placements, unequal_rails
from host_rates import optimise_rates
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.cluster.build import multi_rail
from meshwright.cluster.cluster import Link
from meshwright.graph.architecture.bert import bert
from meshwright.graph.stack.find import find_layers
from meshwright.plan.plan import (
    Allocation,
    Discipline,
    Part,
    Plan,
    Recompute,
    Schedule,
    ScheduleKind,
    Sync,
    place_ops,
)
from meshwright.search.instance import make_instance
from meshwright.search.method.bandwidth.rate.allocate import Allocated, allocate
from meshwright.search.method.bandwidth.rate.rates import find_host_pairs
from meshwright.search.order.list_schedule import order_seconds
from meshwright.simulate.simulate import simulate
from small import connected, dag, layers, rails, stages

SHARINGS = ("none", "fair")


def check(found: Allocated, case: Case, sharing: str) -> None:
    """What every answer says of itself."""
    assert replace(found.plan, allocations=()) == replace(case.plan, allocations=())
    simulated = simulate(case.graph, case.cluster, found.plan, sharing=sharing)
    assert found.step_seconds == pytest.approx(simulated.step_seconds, rel=1e-12)
    bare = simulate(case.graph, case.cluster, replace(case.plan, allocations=()), sharing=sharing)
    assert found.uniform_seconds == pytest.approx(bare.step_seconds, rel=1e-12)
    assert found.step_seconds <= found.uniform_seconds
    assert found.gap <= 1e-3
    if found.plan.allocations:
        assert found.bound_seconds <= found.step_seconds * (1 + 1e-9)
        assert found.step_seconds < found.uniform_seconds
    else:
        assert found.step_seconds == found.uniform_seconds


@given(cases(), st.sampled_from(SHARINGS))
@settings(max_examples=50, deadline=None)
def test_plans_of_every_kind_are_never_slower_and_the_gap_is_proven(
    case: Case, sharing: str
) -> None:
    check(allocate(case.graph, case.cluster, case.plan, sharing=sharing), case, sharing)


@given(cases(max_per_host=1))
@settings(max_examples=80, deadline=None)
def test_with_a_device_a_host_the_simulator_takes_what_the_model_says(case: Case) -> None:
    """Where links are shared it may take longer: the model leaves a pair's rate to one transfer."""
    found = allocate(case.graph, case.cluster, case.plan, sharing="none")
    assume(found.plan.allocations)
    # What is left is the gap, the floor, whole kbit/s and orders that changed.
    assert found.step_seconds <= found.model_seconds * 1.002


def with_rates(case: Case, rates: dict[tuple[str, str], float]) -> Plan:
    """The plan with these rates over all ways alike."""
    number = {host: k for k, host in enumerate(case.cluster.hosts)}
    allocations = []
    for (source, target), rate in rates.items():
        count = len(case.cluster.ways.links[number[source], number[target]])
        shares = (1 / count,) * count if count > 1 else ()
        allocations.append(
            Allocation(source=source, target=target, bytes_per_second=rate, shares=shares)
        )
    return replace(case.plan, allocations=tuple(allocations))


def grid_seconds(case: Case, sharing: str, points: int) -> float:
    """The best that the simulator finds on a grid of rates that fill exits or entries."""
    cluster = case.cluster
    pairs = [(a, b) for a in cluster.hosts for b in cluster.hosts if a != b]
    total = sum(cluster.link_bytes_per_second[way[0]] for way in cluster.ways.links[0, 1])
    shares = np.linspace(0, 1, points + 1)[1:-1].tolist()
    best = np.inf
    if len(cluster.hosts) == 2:
        return simulate(
            case.graph, cluster, with_rates(case, dict.fromkeys(pairs, total)), sharing=sharing
        ).step_seconds
    for parts in product(shares, repeat=3):  # of each of three hosts' exits to the first other
        rates = {}
        for host, part in zip(cluster.hosts, parts, strict=True):
            one, other = (pair for pair in pairs if pair[0] == host)
            rates[one], rates[other] = part * total, (1 - part) * total
        entering = {
            host: sum(r for p, r in rates.items() if p[1] == host) for host in cluster.hosts
        }
        scale = {host: min(1.0, total / entering[host]) for host in cluster.hosts}
        fitting = {pair: rate * scale[pair[1]] for pair, rate in rates.items()}
        seconds = simulate(case.graph, cluster, with_rates(case, fitting), sharing=sharing)
        best = min(best, seconds.step_seconds)
    return best


@given(placements(max_per_host=1))
@settings(max_examples=12, deadline=None)
def test_no_grid_of_rates_is_better_by_a_hundredth(case: Case) -> None:
    assume(len(case.cluster.hosts) <= 3)
    case = replace(case, plan=replace(case.plan, discipline=Discipline.ORDER))
    found = allocate(case.graph, case.cluster, case.plan, sharing="none")
    best = grid_seconds(case, "none", 8)
    assert found.step_seconds <= best * 1.01
    assert found.bound_seconds <= best * (1 + 1e-9)


def test_two_destinations_in_a_row_get_rates_as_the_roots_of_their_sizes() -> None:
    # d0 sends 1 to h1, which answers nothing, then 4 to h2 after an op that waits for h1's signal
    # (0 bytes). Exits: 2 x 10 MB/s. (sqrt 10 + sqrt 40)^2 / 20 = 4.5 s, and nothing else.
    graph = dag([0.0] * 4, {(0, 1): 10 * MB, (1, 2): 0.0, (2, 3): 40 * MB})
    cluster = rails(3, num_rails=2, rail=10 * MB, device=1e6 * MB)
    plan = place_ops(graph.op_names, [0, 1, 0, 2], ["d0", "d1", "d2"])
    found = allocate(graph, cluster, plan)
    assert found.uniform_seconds == pytest.approx(5.0)  # 1 and 4, each over one link
    assert found.step_seconds == pytest.approx((sqrt(10) + sqrt(40)) ** 2 / 20, rel=2e-3)
    rates = {(each.source, each.target): each.bytes_per_second for each in found.plan.allocations}
    assert rates["h0", "h1"] == pytest.approx(20 / 3 * MB, rel=0.05)
    assert rates["h0", "h2"] == pytest.approx(40 / 3 * MB, rel=0.05)


def test_a_ring_uses_all_interfaces() -> None:
    # 2 x 3/4 of 40 MB at 10 MB/s: 6 s over one rail, 3 s over two.
    graph = layers(1, forward=0.0, backward=0.0, gradient=40 * MB)
    cluster = rails(4, num_rails=2, rail=10 * MB, device=1e6 * MB)
    plan = stages(graph, [["d0", "d1", "d2", "d3"]], sync=Sync.RING)
    found = allocate(graph, cluster, plan)
    assert found.uniform_seconds == pytest.approx(6.0)
    assert found.step_seconds == pytest.approx(3.0, rel=2e-3)
    ring = [each for each in found.plan.allocations if each.bytes_per_second > 10 * MB]
    assert len(ring) == 4
    assert all(each.shares == pytest.approx((0.5, 0.5), abs=1e-4) for each in ring)


def test_a_plan_on_one_host_gets_no_allocations() -> None:
    graph = dag([1.0, 1.0], {(0, 1): MB})
    cluster = rails(2, per_host=2, rail=10 * MB)
    found = allocate(graph, cluster, place_ops(graph.op_names, [0, 1], ["d0", "d1"]))
    assert found.plan.allocations == ()
    assert found.step_seconds == found.model_seconds == found.bound_seconds


def test_devices_with_links_of_their_own_get_no_allocations() -> None:
    # No host between them and the network: nothing to divide.
    graph = dag([1.0, 1.0], {(0, 1): MB})
    found = allocate(
        graph, connected(2, bandwidth=MB), place_ops(graph.op_names, [0, 1], ["d0", "d1"])
    )
    assert found.plan.allocations == ()


def test_allocations_that_a_plan_has_are_kept_only_if_nothing_is_faster() -> None:
    graph = dag([0.0, 0.0], {(0, 1): 20 * MB})
    cluster = rails(2, num_rails=2, rail=10 * MB, device=1e6 * MB)
    slow = Allocation(source="h0", target="h1", bytes_per_second=MB, shares=(0.5, 0.5))
    plan = replace(place_ops(graph.op_names, [0, 1], ["d0", "d1"]), allocations=(slow,))
    found = allocate(graph, cluster, plan)
    assert found.uniform_seconds == pytest.approx(2.0)
    assert found.step_seconds == pytest.approx(1.0, rel=2e-3)


@given(placements(max_per_host=1))
@settings(max_examples=20, deadline=None)
def test_hosts_with_unequal_links_are_allocated_within_them(case: Case) -> None:
    unit = 5 * MB
    tables = [[unit, 4 * unit], [2 * unit, unit], [3 * unit, 0.0], [unit, unit]]
    cluster = unequal_rails(tables[: len(case.cluster.hosts)])
    case = replace(case, cluster=cluster)
    for sharing in SHARINGS:
        check(allocate(case.graph, cluster, case.plan, sharing=sharing), case, sharing)


@pytest.mark.slow
def test_sixty_four_hosts_in_a_ring_take_seconds_at_most() -> None:
    graph = layers(4, forward=0.01, backward=0.01, gradient=40 * MB)
    cluster = rails(64, num_rails=2, rail=100 * MB, device=1e6 * MB)
    plan = stages(graph, [[f"d{k}" for k in range(64)]], sync=Sync.RING)
    began = perf_counter()
    found = allocate(graph, cluster, plan)
    assert perf_counter() - began < 20.0
    assert found.gap <= 1e-3
    assert found.step_seconds < 0.55 * found.uniform_seconds


def host_bandwidth(table: np.ndarray) -> np.ndarray:
    """By device, a device a host."""
    bandwidth = np.where(table > 0, table, np.inf)
    bandwidth.setflags(write=False)
    return bandwidth


@given(placements(max_per_host=1), st.sampled_from((0.0, 1e-3, 0.05)))
@settings(max_examples=30, deadline=None)
def test_rates_on_arrays_time_a_placement_as_list_scheduling_does(case: Case, floor: float) -> None:
    instance = make_instance(case.graph, case.cluster)
    device = {op: part.devices[0] for part in case.plan.parts for op in part.ops}
    index = case.cluster.index
    device_of_op = np.array([index[device[op]] for op in case.graph.op_names], dtype=np.int32)
    order = np.arange(case.graph.num_ops, dtype=np.int32)
    hosts = find_host_pairs(case.cluster)
    found = optimise_rates(instance, hosts, device_of_op, order, floor=floor)
    assert found.bound_seconds <= found.seconds * (1 + 1e-12)
    if floor <= 1e-3:
        assert found.seconds <= found.bound_seconds * (1 + 3e-3)
    if floor:
        bandwidth = np.minimum(host_bandwidth(found.bytes_per_second), hosts.own_bytes_per_second)
        bandwidth.setflags(write=False)
        timed = order_seconds(replace(instance, bandwidth=bandwidth), device_of_op, order)
        assert timed == pytest.approx(found.seconds, rel=1e-9, abs=1e-12)
    again = optimise_rates(
        instance, hosts, device_of_op, order, floor=floor, start=found.bytes_per_second
    )
    assert again.seconds == pytest.approx(found.seconds, rel=3e-3)


@pytest.mark.slow
def test_twelve_thousand_ops_take_a_second() -> None:
    graph = bert(hidden=768, heads=12, layers=206, sequence=128, batch=16)
    cluster = rails(4, num_rails=2, rail=1.25e9, device=1e11)
    # As ops stand, a sixteenth at a time, in turn on four hosts.
    instance = make_instance(graph, cluster)
    on = (instance.unit_of.astype(np.int64) * 16 // instance.num_units % 4).tolist()
    plan = place_ops(graph.op_names, on, [f"d{k}" for k in range(4)])
    began = perf_counter()
    found = allocate(graph, cluster, plan)
    assert perf_counter() - began < 10.0  # 0.3 s on an idle core
    assert found.gap <= 1e-3


def test_a_link_that_only_the_route_takes_is_no_bound() -> None:
    # h0 has two links to s0, of which routes take the second and ways the first. In a ring each
    # host sends 2 x 2/3 of 5 MB at 6 MB/s, that of its ways: 1.11 s.
    ends = [(f"d{k}", f"h{k}", 20 * MB) for k in range(3)]
    ends += [("h0", "s0", 3 * MB)] * 2
    ends += [(f"h{k}", "s0", 5 * MB) for k in (1, 2)]
    ends += [(f"h{k}", "s1", 3 * MB) for k in range(3)]
    cluster = replace(
        rails(3),
        links=tuple(
            Link(source=source, target=target, bytes_per_second=rate)
            for one, other, rate in ends
            for source, target in ((one, other), (other, one))
        ),
    )
    graph = layers(1, forward=0.0, backward=0.0, gradient=5 * MB)
    case = Case(graph=graph, cluster=cluster, plan=stages(graph, [["d0", "d1", "d2"]]))
    for sharing in SHARINGS:
        found = allocate(graph, cluster, case.plan, sharing=sharing)
        check(found, case, sharing)
        assert found.step_seconds == pytest.approx(20 / 3 / 6, rel=2e-3)


def test_one_way_that_is_not_the_route_is_told_apart_from_it() -> None:
    # Routes between h0 and h1 take the slow link between them, their one way the switch.
    ends = [("d0", "h0", 100 * MB), ("d1", "h1", 100 * MB), ("h0", "h1", 1 * MB)]
    ends += [("h0", "s0", 10 * MB), ("h1", "s0", 10 * MB)]
    cluster = replace(
        rails(2, num_rails=1),
        links=tuple(
            Link(source=source, target=target, bytes_per_second=rate)
            for one, other, rate in ends
            for source, target in ((one, other), (other, one))
        ),
    )
    graph = dag([0.0, 0.0], {(0, 1): 10 * MB})
    plan = place_ops(graph.op_names, [0, 1], ["d0", "d1"])
    found = allocate(graph, cluster, plan)
    check(found, Case(graph=graph, cluster=cluster, plan=plan), "fair")
    assert found.uniform_seconds == pytest.approx(10.0)
    assert found.step_seconds == pytest.approx(1.0, rel=2e-3)
    assert {each.shares for each in found.plan.allocations} == {(1.0,)}


@pytest.mark.parametrize(
    "team",
    [{"tensor": 2}, {"context": 2}, {"zero": 2}, {"zero": 3}, {"zero": 1}, {"tensor": 1}],
    ids=str,
)
def test_teams_across_hosts_keep_the_network_as_it_is(team: dict[str, int]) -> None:
    """What they say within ops is timed without rates, and would starve under those of others."""
    graph = bert(hidden=64, heads=4, layers=4, sequence=32, batch=8)
    stack = find_layers(graph)
    half = stack.num_layers // 2
    held = [
        tuple(
            name
            for name, layer in zip(graph.op_names, stack.layer_of_op, strict=True)
            if (layer >= half) == is_last
        )
        for is_last in (False, True)
    ]
    cluster = multi_rail(
        num_hosts=4, num_rails=2, devices_per_host=1, rail_bytes_per_second=10 * MB
    )
    names = [device.name for device in cluster.devices]
    parts = tuple(
        Part(ops=ops, devices=devices, recompute=Recompute.FULL, **team)  # type: ignore[arg-type]
        for ops, devices in zip(held, (tuple(names[:2]), tuple(names[2:])), strict=True)
    )
    plan = Plan(parts=parts, schedule=Schedule(kind=ScheduleKind("gpipe"), microbatches=2))
    found = allocate(graph, cluster, plan)
    assert found.step_seconds <= found.uniform_seconds
    assert bool(found.plan.allocations) == (team in ({"zero": 1}, {"tensor": 1}))
