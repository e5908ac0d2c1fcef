"""Placement and bandwidth together: never slower than uniform, as good as looking at everything."""

import itertools
from collections.abc import Iterator
from functools import partial

import numpy as np
import pytest
from host_rates import optimise_rates
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.array import Ints
from meshwright.cluster.build import fully_connected, multi_rail, torus
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.answer import Stop
from meshwright.plan.plan import Plan
from meshwright.search.bound.work import plan_bound
from meshwright.search.incumbent import Attempt
from meshwright.search.instance import make_instance
from meshwright.search.method.bandwidth.joint import joint as joint_module
from meshwright.search.method.bandwidth.joint.joint import explain_nothing
from meshwright.search.method.bandwidth.joint.search import JointSearch
from meshwright.search.method.bandwidth.joint.space import RateStart, find_space, find_starts
from meshwright.search.method.bandwidth.rate.rates import find_host_pairs
from meshwright.search.method.table import METHODS
from meshwright.search.portfolio import find_plan, search_by
from meshwright.search.problem import Problem
from meshwright.simulate.simulate import simulate

joint = partial(search_by, "placement", allocate=True)
placement = partial(search_by, "placement")

RATE = 1e6
"""Bytes a second of a rail: much more than the kbit/s that rates are rounded to."""
DEVICE = DeviceType(
    name="fast", flops_per_second={"fp32": 1.0}, memory_bytes=1e12, memory_bytes_per_second=1e12
)
EASE = 20.0
"""Seconds that small searches never need."""


def rails(num_hosts: int, num_rails: int, devices_per_host: int = 1) -> Cluster:
    return multi_rail(
        num_hosts=num_hosts,
        num_rails=num_rails,
        devices_per_host=devices_per_host,
        rail_bytes_per_second=RATE,
        device_type=DEVICE,
    )


@st.composite
def steps(draw: st.DrawFn, min_ops: int, max_ops: int) -> Graph:
    """Ops of about a second, tensors of about a second on one rail."""
    num_ops = draw(st.integers(min_ops, max_ops))
    builder = GraphBuilder("random", 4)
    phases = sorted(draw(st.sampled_from(Phase)) for _ in range(num_ops))
    for number, phase in enumerate(phases):
        builder.add_op(
            f"op{number}",
            phase=phase,
            split=Split.NONE if phase == Phase.UPDATE else Split.BATCH,
            seconds={"fast": draw(st.sampled_from([0.5, 1.0, 1.7, 3.0]))},
            state_bytes=8.0,
        )
    for source in range(num_ops - 1):
        later = st.sampled_from(range(source + 1, num_ops))
        size = draw(st.sampled_from([0.1, 0.5, 1.0, 2.0])) * RATE
        builder.add_tensor(source, size, draw(st.lists(later, min_size=1, max_size=2, unique=True)))
    return builder.finish()


def used_rates(cluster: Cluster, plan: Plan) -> np.ndarray:
    """What the allocations put on each link, by their shares."""
    number = {host: place for place, host in enumerate(cluster.hosts)}
    used = np.zeros(len(cluster.links))
    for each in plan.allocations:
        ways = cluster.ways.links[number[each.source], number[each.target]]
        shares = each.shares or (1.0,)
        for way, share in zip(ways, shares, strict=True):
            used[list(way)] += share * each.bytes_per_second
    return used


@settings(max_examples=10, deadline=None)
@given(
    graph=steps(2, 9),
    cluster=st.builds(rails, st.integers(2, 4), st.integers(1, 3)),
    sharing=st.sampled_from(["fair", "none"]),
)
def test_never_slower_than_uniform_and_never_more_than_links_carry(
    graph: Graph, cluster: Cluster, sharing: str
) -> None:
    uniform = placement(graph, cluster, sharing=sharing, budget_seconds=2.0)
    found = joint(graph, cluster, sharing=sharing, budget_seconds=3.0)
    assert found.plan is not None
    assert found.step_seconds <= uniform.step_seconds
    assert found.step_seconds <= found.statistics["uniform_seconds"]
    assert found.bound_seconds <= found.step_seconds * (1 + 1e-9)
    assert simulate(graph, cluster, found.plan, sharing=sharing).step_seconds == found.step_seconds
    used = used_rates(cluster, found.plan)
    assert bool(np.all(used <= cluster.link_bytes_per_second * (1 + 1e-9)))
    for each in found.plan.allocations:  # whole kbit/s, on every way
        for share in each.shares or (1.0,):
            kbits = share * each.bytes_per_second / 125
            assert kbits == pytest.approx(round(kbits), abs=1e-6)


def partitions(num_ops: int, num_devices: int) -> Iterator[Ints]:
    """Placements on devices that are all alike: each once, whatever the devices' names."""
    for placed in itertools.product(range(num_devices), repeat=num_ops):
        firsts = list(dict.fromkeys(placed))
        if firsts == sorted(firsts) and firsts == list(range(len(firsts))):
            yield np.array(placed, np.int32)


def orders(graph: Graph, device_of_op: Ints) -> Iterator[Ints]:
    """Topological orders, one for each way that devices can run their ops in turn."""
    source, target = graph.edges
    seen = set()
    for order in itertools.permutations(range(graph.num_ops)):
        place = np.argsort(order)
        if np.any(place[source] > place[target]):
            continue
        turns = tuple(sorted(order, key=lambda op: (device_of_op[op], place[op])))
        if turns not in seen:
            seen.add(turns)
            yield np.array(order, np.int32)


def best_of_all(graph: Graph, cluster: Cluster) -> float:
    """The shortest step over all placements, orders and rates."""
    instance, hosts = make_instance(graph, cluster), find_host_pairs(cluster)
    return min(
        optimise_rates(instance, hosts, devices, order, gap=1e-4, floor=1e-9).seconds
        for devices in partitions(graph.num_ops, cluster.num_devices)
        for order in orders(graph, devices)
    )


@settings(max_examples=10, deadline=None)
@given(graph=steps(3, 4), num_rails=st.integers(1, 3))
def test_as_fast_as_the_best_of_all_placements_orders_and_rates(
    graph: Graph, num_rails: int
) -> None:
    cluster = rails(3, num_rails)
    found = joint(graph, cluster, sharing="none", budget_seconds=EASE)
    # Without sharing every pair has a whole rail under uniform bandwidth, which may be more than
    # any allocation can give to all of them.
    best = min(best_of_all(graph, cluster), placement(graph, cluster, sharing="none").step_seconds)
    assert best * (1 - 1e-3) <= found.step_seconds <= best * 1.01
    assert found.bound_seconds <= best * (1 + 1e-6)


def fan_out(num_branches: int) -> Graph:
    """One op that several long ones read a tensor of, one a branch; they are read by a last one."""
    builder = GraphBuilder("fan", 1)
    first = builder.add_op("first", seconds={"fast": 0.01})
    last_sources = []
    for branch in range(num_branches):
        op = builder.add_op(f"branch{branch}", seconds={"fast": 4.0})
        builder.add_tensor(first, 2 * RATE, [op])
        last_sources.append(op)
    last = builder.add_op("last", seconds={"fast": 0.01})
    for op in last_sources:
        builder.add_tensor(op, 1.0, [last])
    return builder.finish()


def test_two_rails_halve_a_transfer_that_nothing_else_competes_with() -> None:
    # On two hosts: 0.01 s, then 2 s of transfer on one rail or 1 s on both, then 4 s of a branch
    # while the other one runs here, then 0.01 s: 6.02 s without and 5.02 s with an allocation.
    graph, cluster = fan_out(2), rails(2, 2)
    found = joint(graph, cluster, sharing="none", budget_seconds=EASE)
    assert found.statistics["uniform_seconds"] == pytest.approx(6.02, rel=1e-3)
    assert found.step_seconds == pytest.approx(5.02, rel=1e-3)
    assert found.plan is not None
    (there,) = [each for each in found.plan.allocations if each.shares[0] not in (0.0, 1.0)][:1]
    assert there.bytes_per_second == 2 * RATE
    assert there.shares == (0.5, 0.5)


def test_same_seed_gives_the_same_plan() -> None:
    graph, cluster = fan_out(5), rails(4, 2)
    first, second = (joint(graph, cluster, seed=3, budget_seconds=EASE) for _ in range(2))
    assert first.plan == second.plan
    assert first.step_seconds == second.step_seconds
    assert first.statistics == second.statistics


def test_interrupted_search_gives_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(JointSearch, "run", interrupted)
    found = joint(fan_out(2), rails(2, 2), sharing="none", budget_seconds=EASE)
    assert found.stop is Stop.INTERRUPTED
    assert found.plan is not None
    assert found.step_seconds <= found.statistics["uniform_seconds"]


def test_search_under_uniform_bandwidth_that_is_interrupted_is_the_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph, cluster = fan_out(2), rails(2, 2)
    uniform = placement(graph, cluster, budget_seconds=EASE)

    def interrupted(problem: Problem, attempt: Attempt) -> None:
        METHODS["placement"](problem, attempt)
        problem.clock.interrupt()

    monkeypatch.setattr(joint_module, "placement", interrupted)
    found = joint(graph, cluster, budget_seconds=EASE)
    assert found.plan == uniform.plan
    assert found.bound_seconds == uniform.bound_seconds
    assert found.stop is Stop.INTERRUPTED


def test_op_that_can_run_nowhere_is_refused_as_without_allocation() -> None:
    builder = GraphBuilder("nowhere", 1)
    builder.add_op("op", seconds={"fast": np.inf})
    found = joint(builder.finish(), rails(2, 2))
    assert found.plan is None
    assert found.stop is Stop.INFEASIBLE


def test_hosts_of_several_devices_share_their_ways() -> None:
    graph, cluster = fan_out(4), rails(2, 2, devices_per_host=2)
    found = joint(graph, cluster, budget_seconds=EASE)
    assert found.plan is not None
    assert found.step_seconds <= found.statistics["uniform_seconds"]
    assert bool(np.all(used_rates(cluster, found.plan) <= cluster.link_bytes_per_second + 1e-6))


@pytest.mark.parametrize("sharing", ["fair", "none"])
@pytest.mark.parametrize("method", ["single", "data", "metis", "heft", "consecutive", "pipeline"])
def test_every_method_is_never_slower_with_an_allocation(method: str, sharing: str) -> None:
    graph, cluster = fan_out(3), rails(3, 2)
    plain = find_plan(graph, cluster, method, budget_seconds=2.0, sharing=sharing)
    found = find_plan(graph, cluster, method, budget_seconds=2.0, sharing=sharing, allocate=True)
    if plain.plan is None:
        assert found.plan is None
        return
    assert found.step_seconds <= plain.step_seconds * (1 + 1e-9)
    assert found.statistics["uniform_seconds"] == pytest.approx(plain.step_seconds)
    assert found.bound_seconds <= found.step_seconds * (1 + 1e-9)


def test_auto_is_the_best_of_all_with_allocations() -> None:
    graph, cluster = fan_out(3), rails(3, 2)
    found = find_plan(graph, cluster, budget_seconds=8.0, allocate=True)
    alone = find_plan(graph, cluster, "placement", budget_seconds=8.0, allocate=True)
    assert found.step_seconds <= alone.step_seconds * (1 + 1e-9)
    assert found.step_seconds <= found.statistics["uniform_seconds"]
    assert found.bound_seconds <= plan_bound(make_instance(graph, cluster)) * (1 + 1e-9)


def test_one_host_has_nothing_to_allocate() -> None:
    cluster = rails(1, 2)
    assert explain_nothing(cluster) == "nothing to allocate: the cluster has one host"
    found = find_plan(fan_out(2), cluster, "placement", budget_seconds=1.0, allocate=True)
    assert found.notes == (explain_nothing(cluster),)
    assert found.plan is not None
    assert found.plan.allocations == ()


def test_ctrl_c_while_allocating_leaves_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(joint_module, "allocate", interrupted)
    found = find_plan(fan_out(2), rails(2, 2), "data", budget_seconds=1.0, allocate=True)
    assert found.plan is not None
    assert found.stop is Stop.INTERRUPTED


def test_hundreds_of_hosts_are_not_allocated() -> None:
    assert explain_nothing(rails(129, 1)).startswith("nothing is allocated: the cluster has 129 ho")


def test_devices_that_are_joined_themselves_have_nothing_to_allocate() -> None:
    cluster = torus(shape=(2, 2), device_type=DEVICE)
    assert explain_nothing(cluster).startswith("nothing to allocate: the devices of different")
    joined = fully_connected(num_devices=2, device_type=DEVICE, bytes_per_second=1.0)
    assert find_space(joined) is None


def test_starts_are_within_what_pairs_may_get() -> None:
    space = find_space(rails(5, 2))
    assert space is not None
    starts: list[RateStart] = list(find_starts(space))
    assert [len(each.hosts) for each in starts] == [2, 3, 4, 5, 5, 5, 5]
    for each in starts:
        assert bool(np.all(each.rates <= space.most))
        assert bool(np.all(each.rates[space.pairs] > 0))
        if each.rates is not space.most:  # which is more than there is
            assert bool(np.all(each.rates.sum(axis=1) <= space.leaving * 1.1))
    ring = starts[6].rates
    assert ring[0, 1] == ring[0, 4] == RATE  # half of two rails
