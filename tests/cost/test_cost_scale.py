"""Collectives priced without tables of all pairs equal those with them, and at what pace."""

from time import process_time

import numpy as np
import pytest

from meshwright.cluster import cluster as cluster_module
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster, Device, Link
from meshwright.cost.collective import Collective, collective_model
from meshwright.cost.ring import order_hosts

NAMES = (
    "h100-x8x40", "h100-x4x70", "tpuv4-4x4x4", "dgx1-x4", "tag-cloud", "mesh2d-8x8", "uniform-60",
    "fat-tree-k8", "spine-leaf-3x6x10x2-o9", "multi-rail-4x8x4", "hierarchical-2x4x4x4-o2",
    "h100-spineleaf-520", "h100-spineleaf-272-o300", "tpuv4-fattree-432",
)  # fmt: skip


def lines(cluster: Cluster, collective: Collective, devices: list[int]) -> list[tuple[object, ...]]:
    return [
        (
            line.algorithm,
            line.latency_seconds,
            line.seconds_per_byte,
            line.amount_per_byte,
            line.links.tolist(),
            line.link_share.tolist(),
        )
        for line in collective_model(cluster, collective, devices).lines
    ]


@pytest.mark.parametrize("name", NAMES)
def test_collectives_cost_the_same_with_and_without_tables(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster, other = find_cluster(name), find_cluster(name)
    generator = np.random.default_rng(7)
    count = cluster.num_devices
    groups = [list(range(count)), [count - 1, 0], list(range(0, count, 8))]
    groups += [generator.permutation(count)[:size].tolist() for size in (3, 20, 57)]
    for devices in groups:
        for collective in Collective:
            expected = lines(cluster, collective, devices)
            with monkeypatch.context() as patch:
                patch.setattr(cluster_module, "MAX_TABLE_DEVICES", 0)
                assert lines(other, collective, devices) == expected
    assert "routing" not in vars(other)


def uneven_cluster() -> Cluster:
    """Sixty hosts of one device on six leaves of two spines; rates and leaves are mixed."""
    generator = np.random.default_rng(3)
    devices = tuple(
        Device(name=f"d{i}", type="t4", host=f"h{i}", memory_bytes=1.0) for i in range(60)
    )
    joints = [
        (f"d{i}", f"leaf{generator.integers(6)}", int(generator.integers(1, 4))) for i in range(60)
    ]
    joints += [(f"leaf{i}", f"spine{k}", 1 + i % 2) for i in range(6) for k in range(2)]
    links = [
        Link(source=a, target=b, bytes_per_second=float(rate), latency_seconds=0.5)
        for one, other, rate in joints
        for a, b in ((one, other), (other, one))
    ]
    switches = [f"leaf{i}" for i in range(6)] + ["spine0", "spine1"]
    return Cluster(
        name="uneven",
        types=find_cluster("t4-x1").types,
        devices=devices,
        switches=tuple(switches),
        links=tuple(links),
    )


def test_a_ring_over_classes_of_hosts_is_that_over_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = order_hosts(uneven_cluster(), tuple(range(60)))
    assert expected != tuple((device,) for device in range(60))
    monkeypatch.setattr(cluster_module, "MAX_TABLE_DEVICES", 0)
    cluster = uneven_cluster()
    assert cluster.hangings is not None
    assert order_hosts(cluster, tuple(range(60))) == expected


def test_transfers_take_the_same_without_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = find_cluster("dgx1-x4").routes_between(np.arange(32), np.arange(32)[::-1])
    monkeypatch.setattr(cluster_module, "MAX_TABLE_DEVICES", 0)
    found = find_cluster("dgx1-x4").routes_between(np.arange(32), np.arange(32)[::-1])
    np.testing.assert_array_equal(found.latency, expected.latency)
    np.testing.assert_array_equal(found.bandwidth, expected.bandwidth)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["h100-spineleaf-16384", "tpuv4-fattree-16384"])
def test_sixteen_thousand_devices_are_priced_within_a_second(name: str) -> None:
    cluster = find_cluster(name)
    groups = (range(8), range(0, 16384, 256), range(16384))
    for seconds, devices in zip((0.01, 0.05, 2.0), groups, strict=True):
        collective_model(cluster, Collective.ALL_REDUCE, devices)  # kernels, once
        spent = []
        for _ in range(2):
            begin = process_time()
            collective_model(cluster, Collective.ALL_REDUCE, devices)
            spent.append(process_time() - begin)
        # Promised are 2 ms, 8 ms and 1 s; more is allowed here, for other machines.
        assert min(spent) < seconds, f"{len(devices)} devices: {min(spent):.3f} s"
    assert not cluster.has_tables
