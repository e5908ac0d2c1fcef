"""What the joint search is made of: rates of pairs, narrow searches, moves, the uniform search."""

from functools import partial

import numpy as np
import pytest

from meshwright.cluster.build import multi_rail
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.cost.memory import usable_bytes
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Stop
from meshwright.search.instance import make_instance
from meshwright.search.method.bandwidth.joint.judge import Bench
from meshwright.search.method.bandwidth.joint.search import improve_shared
from meshwright.search.method.bandwidth.joint.space import FAINT, RateSpace, find_space
from meshwright.search.portfolio import search_by

joint = partial(search_by, "placement", allocate=True)
placement = partial(search_by, "placement")

RATE = 1e6
DEVICE = DeviceType(
    name="fast", flops_per_second={"fp32": 1.0}, memory_bytes=1e12, memory_bytes_per_second=1e12
)


def rails(num_hosts: int, num_rails: int = 2, devices_per_host: int = 1) -> Cluster:
    return multi_rail(
        num_hosts=num_hosts,
        num_rails=num_rails,
        devices_per_host=devices_per_host,
        rail_bytes_per_second=RATE,
        device_type=DEVICE,
        device_bytes_per_second=3 * RATE,
    )


def space_of(cluster: Cluster) -> RateSpace:
    space = find_space(cluster)
    assert space is not None
    return space


def pair_of_chains(length: int = 3) -> Graph:
    """Two chains of ops of a second, that begin at one op and end in one."""
    builder = GraphBuilder("chains", 1)
    first = builder.add_op("first", seconds={"fast": 0.1})
    ends = []
    for chain in range(2):
        before = first
        for place in range(length):
            op = builder.add_op(f"op{chain}.{place}", seconds={"fast": 1.0})
            builder.add_tensor(before, RATE, [op])
            before = op
        ends.append(before)
    last = builder.add_op("last", seconds={"fast": 0.1})
    for op in ends:
        builder.add_tensor(op, 0.5 * RATE, [last])
    return builder.finish()


def bench_of(graph: Graph, cluster: Cluster) -> Bench:
    return Bench(make_instance(graph, cluster), space_of(cluster), usable_bytes(graph, cluster))


def test_pairs_may_get_all_rails_and_devices_what_their_own_links_carry() -> None:
    space = space_of(rails(3, num_rails=4, devices_per_host=2))
    assert space.most[0, 1] == 4 * RATE
    assert space.most[0, 0] == 0
    table = space.bandwidth(space.most)
    assert table[0, 2] == 3 * RATE  # the link between a device and its host
    assert table[0, 1] == space.uniform[0, 1]  # on one host
    assert not table.flags.writeable


def test_pairs_without_a_rate_have_little_in_a_search() -> None:
    space = space_of(rails(2))
    ones = np.ones_like(space.most)
    table = space.slowed_bandwidth(np.zeros_like(space.most), 2 * ones)
    assert table[0, 1] == FAINT * 2 * RATE / 2


def test_reallocation_gives_all_rails_to_the_only_pair_in_use() -> None:
    # 0.1 s, 0.5 s for 1e6 bytes on both rails, three ops, 0.25 s back, 0.1 s.
    graph, cluster = pair_of_chains(), rails(3)
    bench = bench_of(graph, cluster)
    ones = np.ones_like(bench.space.most)
    devices = np.array([0, 0, 0, 0, 1, 1, 1, 0], np.int32)
    placed = bench.time(devices, bench.space.most, ones)
    shared = bench.reallocate(placed, ones * RATE, ones)
    assert shared.rates[0, 1] == pytest.approx(2 * RATE, rel=1e-3)
    assert shared.rates[1, 0] == pytest.approx(2 * RATE, rel=1e-3)
    assert shared.placed.seconds == pytest.approx(0.1 + 0.5 + 3 + 0.25 + 0.1, rel=1e-3)


def test_transfers_that_wait_take_longer_in_a_search() -> None:
    graph, cluster = pair_of_chains(), rails(2)
    bench = bench_of(graph, cluster)
    ones = np.ones_like(bench.space.most)
    devices = np.array([0, 0, 0, 0, 1, 1, 1, 0], np.int32)
    alone = bench.time(devices, bench.space.most, ones)
    waiting = bench.time(devices, bench.space.most, 2 * ones)
    assert waiting.seconds - alone.seconds == pytest.approx(0.75, rel=1e-3)


def test_moves_find_the_other_host_for_one_chain() -> None:
    graph, cluster = pair_of_chains(length=1), rails(2)
    bench = bench_of(graph, cluster)
    ones = np.ones_like(bench.space.most)
    everything = np.zeros(graph.num_ops, np.int32)
    shared = bench.reallocate(
        bench.time(everything, bench.space.most, ones), bench.space.most, ones
    )
    assert shared.placed.seconds == pytest.approx(2.2)
    moved = improve_shared(bench, shared, 0, lambda: False)
    assert moved.num_tried > 0
    # The last op goes with it: what the other chain sends is there before.
    assert moved.shared.placed.seconds == pytest.approx(0.1 + 0.5 + 1 + 0.1, rel=1e-3)


def test_memory_that_lacks_is_an_answer() -> None:
    cluster = multi_rail(
        num_hosts=2,
        num_rails=2,
        devices_per_host=1,
        rail_bytes_per_second=RATE,
        device_type=DeviceType(
            name="fast",
            flops_per_second={"fp32": 1.0},
            memory_bytes=10.0,
            memory_bytes_per_second=1.0,
        ),
    )
    found = joint(pair_of_chains(), cluster, budget_seconds=2.0)
    assert found.plan is None
    assert found.stop is Stop.INFEASIBLE
    assert "are missing" in found.binding
