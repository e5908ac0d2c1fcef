"""Placements on some hosts by themselves, and with links slowed from the start."""

import numpy as np
import pytest
from search_strategies import make_cluster

from meshwright.cluster.build import multi_rail
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.cost.memory import usable_bytes
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph
from meshwright.search.instance import make_instance
from meshwright.search.method.placement.apart import host_counts, host_sets, narrow, slowed
from meshwright.search.portfolio import search_by

RATE = 1e6


def hosts(count: int) -> Cluster:
    kind = DeviceType(
        name="fast", flops_per_second={"fp32": 1.0}, memory_bytes=1e12,
        memory_bytes_per_second=1e12,
    )  # fmt: skip
    return multi_rail(
        num_hosts=count, num_rails=1, devices_per_host=1, rail_bytes_per_second=RATE,
        device_type=kind,
    )  # fmt: skip


def fans(count: int = 6) -> Graph:
    """One op, several that read it, and one that reads these: each transfer 0.2 s alone."""
    builder = GraphBuilder("fans")
    first = builder.add_op("first", seconds={"fast": 0.1})
    middle = [builder.add_op(f"op{k}", seconds={"fast": 0.5}) for k in range(count)]
    last = builder.add_op("last", seconds={"fast": 0.1})
    for op in middle:
        builder.add_tensor(first, 0.2 * RATE, [op])
        builder.add_tensor(op, 0.2 * RATE, [last])
    return builder.finish()


def test_hosts_that_compute_most_come_first() -> None:
    cluster = make_cluster(["slow", "fast", "slow", "fast"])
    instance = make_instance(fans(), cluster)
    assert instance.num_devices == 4
    sets = [each.tolist() for each in host_sets(instance)]
    assert sets[-1] == [0, 1, 2, 3]
    assert [len(each) for each in sets] == host_counts(4) == [2, 3, 4]
    assert host_counts(12) == [2, 3, 4, 8, 12]


def test_a_narrow_search_keeps_to_its_devices() -> None:
    graph, cluster = fans(), hosts(4)
    place = narrow(make_instance(graph, cluster), np.array([1, 3]), usable_bytes(graph, cluster))
    assert place.can_run
    placed = place.search(0, lambda: False)
    assert set(placed.device_of_unit.tolist()) <= {1, 3}
    improved = place.search(1, lambda: False, placed.device_of_unit)
    assert set(improved.device_of_unit.tolist()) <= {1, 3}
    assert improved.seconds <= placed.seconds


def test_only_transfers_between_hosts_are_slowed() -> None:
    cluster = multi_rail(num_hosts=2, num_rails=1, devices_per_host=2)
    instance = make_instance(fans(), cluster)
    table = slowed(instance, 2.0).bandwidth
    assert table[0, 1] == instance.bandwidth[0, 1]
    assert table[0, 2] == pytest.approx(instance.bandwidth[0, 2] / 2)


def test_links_that_all_want_at_once_are_used_by_few() -> None:
    # Of six ops of 0.5 s alone as many go to the other host as its link brings in time: k of them
    # are there and back after 0.1 + 0.2 k + ..., so that two hosts share them, not three or four.
    graph, cluster = fans(), hosts(4)
    answer = search_by("placement", graph, cluster, sharing="fair", budget_seconds=0.1)
    assert answer.plan is not None
    alone = sum(each.max() for each in make_instance(graph, cluster).seconds)
    assert answer.step_seconds < alone
