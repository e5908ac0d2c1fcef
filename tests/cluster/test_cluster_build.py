"""Builders: hand-worked counts and rates, symmetry, determinism, refusals."""

import re
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster import build
from meshwright.cluster.builder.grid import HOP_BYTES_PER_SECOND
from meshwright.cluster.cluster import Cluster, Device, Link
from meshwright.errors import InputError


def pair_rates(cluster: Cluster) -> Counter[float]:
    """How many unordered pairs have each bandwidth, in GB/s."""
    upper = np.triu_indices(cluster.num_devices, 1)
    return Counter(round(rate / 1e9, 6) for rate in cluster.bandwidth[upper].tolist())


def test_dgx1_has_eight_double_eight_single_and_twelve_pcie_pairs() -> None:
    # 28 pairs; 8 devices x 6 NVLinks / 2 = 24 links = 8 doubles + 8 singles.
    assert pair_rates(build.dgx1()) == {43.2: 8, 21.4: 8, 10.1: 12}


def test_four_dgx1_are_joined_by_slow_ethernet() -> None:
    # Pairs of different hosts: 6 pairs of hosts x 64.
    assert pair_rates(build.dgx1(num_hosts=4)) == {43.2: 32, 21.4: 32, 10.1: 48, 1.4: 384}


def test_titan_v_hosts_have_pcie_inside_and_ethernet_between() -> None:
    assert pair_rates(build.titan_v_hosts()) == {11.0: 4 * 6, 1.1: 6 * 16}


def test_nvlink_pairs_have_one_fast_pair_a_host() -> None:
    assert pair_rates(build.nvlink_pairs(num_hosts=3)) == {50.0: 3, 20.0: 12}


def test_tag_testbed_has_sixteen_devices_of_three_types() -> None:
    cluster = build.tag_testbed()
    assert Counter(device.type for device in cluster.devices) == {
        "v100-32": 4, "1080ti": 8, "p100": 4,
    }  # fmt: skip
    assert len(cluster.hosts) == 7
    assert cluster.bandwidth[0, 3] == 43.2e9
    # 100 Gbit/s = 12.5 GB/s is wider than PCIe, which stays the bottleneck.
    assert cluster.bandwidth[0, 15] == 11e9


def test_tag_cloud_has_ten_gigabit_between_hosts() -> None:
    cluster = build.tag_cloud()
    assert Counter(device.type for device in cluster.devices) == {"v100-16": 16, "t4": 16}
    assert cluster.bandwidth[0, 31] == 1.25e9


@pytest.mark.parametrize(
    ("hops", "gigabytes"),
    [(1, 78.1), (2, 39.0), (10, 1.46), (20, 0.098), (21, 0.088), (31, 0.088),
     (32, 0.078), (51, 0.078), (52, 0.068), (60, 0.068)],
)  # fmt: skip
def test_mesh_bandwidth_follows_the_hop_table(hops: int, gigabytes: float) -> None:
    line = build.mesh(shape=(61,))
    assert line.routing.hops[0, hops] == hops
    assert line.bandwidth[0, hops] == pytest.approx(gigabytes * 1e9)


def test_a_torus_wraps_around() -> None:
    # 8x8: the mesh's corners are 14 hops apart, the torus's 2, its farthest 4 + 4.
    assert build.mesh(shape=(8, 8)).routing.hops[0, 63] == 14
    torus = build.torus(shape=(8, 8))
    assert torus.routing.hops[0, 63] == 2
    assert torus.routing.hops.max() == 8
    assert torus.bandwidth[0, 63] == HOP_BYTES_PER_SECOND[1]


def test_a_ring_of_two_has_one_connection() -> None:
    assert len(build.torus(shape=(2,)).links) == 2
    assert len(build.torus(shape=(2, 2)).links) == 8
    # 4x4x4: 64 devices x 6 neighbours.
    assert len(build.link_torus(shape=(4, 4, 4)).links) == 384


def test_a_link_torus_is_as_wide_as_its_links() -> None:
    cluster = build.link_torus(shape=(4, 4, 4))
    assert cluster.bandwidth[0, 63] == 50e9
    assert cluster.latency[0, 63] == pytest.approx(3e-6)
    assert len(cluster.hosts) == 16


@pytest.mark.parametrize("k", [2, 4, 6])
def test_a_fat_tree_has_its_counts(k: int) -> None:
    cluster = build.fat_tree(k=k)
    assert cluster.num_devices == k**3 // 4
    assert len(cluster.switches) == (k // 2) ** 2 + k * k
    # Device, host, edge, aggregation, core and back down: eight links between pods.
    assert cluster.routing.hops.max() == 8
    ports = Counter(link.source for link in cluster.links if link.source in cluster.switches)
    assert set(ports.values()) == {k}


def test_oversubscription_divides_what_goes_up() -> None:
    cluster = build.hierarchical(
        devices_per_host=2,
        branching=(4, 3, 2),
        oversubscription=(2, 3),
        host_bytes_per_second=10e9,
    )
    assert cluster.num_devices == 48
    rate = {(link.source, link.target): link.bytes_per_second for link in cluster.links}
    assert rate["host0", "tier1-0"] == 10e9
    assert rate["tier1-0", "tier2-0"] == 4 * 10e9 / 2
    assert rate["tier2-1", "tier3-0"] == 3 * (4 * 10e9 / 2) / 3


def test_spine_leaf_carries_its_ratio() -> None:
    cluster = build.spine_leaf(
        num_spines=4, num_leaves=3, hosts_per_leaf=6, devices_per_host=1, oversubscription=3,
        host_bytes_per_second=50e9,
    )  # fmt: skip
    up = [link for link in cluster.links if (link.source, link.target[:5]) == ("leaf1", "spine")]
    assert len(up) == 4
    assert sum(link.bytes_per_second for link in up) == pytest.approx(6 * 50e9 / 3)


def test_multi_rail_hosts_have_a_link_to_each_rail() -> None:
    cluster = build.multi_rail(num_hosts=3, num_rails=5, devices_per_host=2)
    assert sum(link.source == "host1" for link in cluster.links) == 5 + 2
    assert cluster.bandwidth[0, 2] == 25e9
    assert cluster.bandwidth[0, 1] == 300e9


def test_equal_ranks_of_two_hosts_are_two_links_apart() -> None:
    cluster = build.rail_pod(device_type="h100", num_hosts=40)
    plain = cluster.plain
    hops, bandwidth = cluster.routing.hops, plain.bandwidth
    assert hops[3, 8 * 5 + 3] == 2  # one rail, one unit
    assert hops[3, 8 * 5 + 4] == 4  # over a spine
    assert hops[3, 8 * 35 + 3] == 4  # another unit
    assert (bandwidth[0, 1], bandwidth[0, 8]) == (450e9, 50e9)
    # NVLink 2 x 0.95 us; NIC 2 x 2 us; two links of a spine more.
    assert plain.latency[0, 1] == pytest.approx(1.9e-6)
    assert plain.latency[0, 8] == pytest.approx(4e-6)
    assert plain.latency[0, 9] == pytest.approx(4.6e-6)


def test_random_rates_convert_from_megabytes_a_microsecond() -> None:
    # 1e-2 MB/us = 1e-2 * 1e6 / 1024 = 9.765625 GB/s; 1e-4 is a hundredth of it.
    cluster = build.random_blk_1(num_devices=64)
    rates = cluster.bandwidth[~np.eye(64, dtype=bool)]
    assert rates.min() == pytest.approx(0.09765625e9)
    assert rates.max() <= 9.765625e9


def test_random_blk_2_falls_with_distance_between_blocks() -> None:
    # Seed 5 draws blocks of 11, 13, 1, 13, 8, 9 and 11 devices, the last of them cut off at 64.
    sizes = np.random.default_rng(5).integers(1, 17, size=64)
    assert sizes[:7].tolist() == [11, 13, 1, 13, 8, 9, 11]
    cluster = build.random_blk_2(num_devices=64, seed=5)
    block = np.repeat(np.arange(7), (11, 13, 1, 13, 8, 9, 9))
    is_pair = (block[:, None] == block) & ~np.eye(64, dtype=bool)
    mean = cluster.bandwidth[is_pair].mean()
    for source, target, distance in ((0, 11, 1), (10, 23, 1), (0, 24, 2), (24, 63, 4), (0, 63, 6)):
        assert cluster.bandwidth[source, target] == pytest.approx(mean / 10 / distance)
        assert cluster.bandwidth[target, source] == pytest.approx(mean / 10 / distance)


def test_mixed_clusters_keep_to_their_ranges() -> None:
    sizes, kinds = set(), set()
    for seed in range(200):
        cluster = build.mixed(seed=seed)
        sizes.add(len(cluster.hosts))
        for host in cluster.hosts:
            members = [each for each in cluster.devices if each.host == host]
            assert 1 <= len(members) <= 8
            assert len({each.type for each in members}) == 1
            kinds.add(members[0].type)
        of_host = [each.host for each in cluster.devices]
        for i, one in enumerate(of_host):
            for j, other in enumerate(of_host):
                gbit = cluster.bandwidth[i, j] * 8 / 1e9
                if i != j:
                    low, high = (64, 160) if one == other else (20, 50)
                    assert low <= gbit <= high
    assert sizes == {1, 2, 3, 4, 5, 6}
    assert kinds == {"v100-32", "1080ti", "p100"}


def test_a_mixed_cluster_follows_from_its_seed() -> None:
    assert build.mixed(seed=7).links == build.mixed(seed=7).links
    assert build.mixed(seed=7).links != build.mixed(seed=8).links


def test_a_matrix_gives_each_direction_its_rate() -> None:
    cluster = build.from_matrix(bytes_per_second=[[0, 3], [4, 0]], device_type="t4")
    assert (cluster.bandwidth[0, 1], cluster.bandwidth[1, 0]) == (3.0, 4.0)


def test_a_link_list_looks_up_its_types() -> None:
    devices = [Device(name=f"d{i}", type="t4", host="h", memory_bytes=1.0) for i in range(2)]
    links = [
        Link(source=a, target=b, bytes_per_second=7.0) for a, b in (("d0", "d1"), ("d1", "d0"))
    ]
    cluster = build.from_links(devices=devices, links=links)
    assert cluster.types["t4"].name == "t4"
    assert cluster.bandwidth[0, 1] == 7.0


def test_a_type_alone_on_a_host_has_no_switches() -> None:
    cluster = build.one_host(device_type="v100-32", num_devices=4)
    # The first four of a cube mesh: 0-3, 1-2, 2-3 double, 0-1, 0-2, 1-3 single.
    # 50 and 25 GB/s, of which 0.856 are reached.
    assert pair_rates(cluster.plain) == {50.0: 3, 25.0: 3}
    assert pair_rates(cluster) == {42.8: 3, 21.4: 3}
    assert build.one_host(device_type="cpu", num_devices=1).links
    switched = build.one_host(device_type="v100-16", num_devices=16)
    assert pair_rates(switched.plain) == {150.0: 120}


SYMMETRIC: list[Callable[[int], Cluster]] = [
    lambda n: build.fully_connected(num_devices=n, device_type="t4", bytes_per_second=5.0),
    lambda n: build.dgx1(num_hosts=n),
    lambda n: build.mesh(shape=(n, 3)),
    lambda n: build.torus(shape=(n, 2, 3)),
    lambda n: build.fat_tree(k=2 * (1 + n % 2)),
    lambda n: build.rail_pod(device_type="b200", num_hosts=n),
    lambda n: build.random_blk_2(num_devices=n, seed=n),
    lambda n: build.hierarchical(devices_per_host=2, branching=(n, 2)),
]


@settings(max_examples=40)
@given(st.sampled_from(SYMMETRIC), st.integers(1, 6))
def test_symmetric_builders_are_symmetric(builder: Callable[[int], Cluster], size: int) -> None:
    routing = builder(size).routing
    np.testing.assert_array_equal(routing.bandwidth, routing.bandwidth.T)
    np.testing.assert_array_equal(routing.hops, routing.hops.T)
    np.testing.assert_allclose(routing.latency, routing.latency.T)


@settings(max_examples=20)
@given(
    st.sampled_from([build.random_blk_1, build.random_blk_2, build.uniform_dist]),
    st.integers(2, 12),
    st.integers(0, 2**63 - 1),
)
def test_the_same_seed_gives_the_same_cluster(
    builder: Callable[..., Cluster], num_devices: int, seed: int
) -> None:
    one, other = (builder(num_devices=num_devices, seed=seed) for _ in range(2))
    assert one.links == other.links
    assert one.links != builder(num_devices=num_devices, seed=(seed + 1) % 2**63).links


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: build.fat_tree(k=3), "k must be even"),
        (lambda: build.mesh(shape=()), "shape must have one to three sizes, got 0"),
        (lambda: build.mesh(shape=(4, 0)), "shape[1] must be at least 1, got 0"),
        (lambda: build.mesh(shape=(4000, 4000)), "must be at most 16,384 devices"),
        (lambda: build.dgx1(num_hosts=10**9), "num_hosts must be at most 16384"),
        (lambda: build.uniform_dist(num_devices=3, seed=-1), "seed must be from 0"),
        (lambda: build.mixed(seed=-1), "seed must be from 0"),
        (lambda: build.uniform_dist(num_devices=9999), "num_devices must be at most 2048"),
        (lambda: build.hierarchical(devices_per_host=1, branching=(2, 2), oversubscription=(1, 2)),
         "oversubscription must have one ratio for each of the 1 tiers"),
        (lambda: build.fully_connected(num_devices=2, device_type="x9", bytes_per_second=1.0),
         "unknown device type 'x9'"),
        (lambda: build.fully_connected(num_devices=2, device_type="t4", bytes_per_second=-1.0),
         "from device 0 to 1 must be positive and finite, got -1.0"),
        (lambda: build.from_matrix(bytes_per_second=[[1, 2]], device_type="t4"), "square matrix"),
        (lambda: build.from_matrix(bytes_per_second=[[1, 2], [3]], device_type="t4"), "square"),
        (lambda: build.rail_pod(device_type="t4", num_hosts=2), "device_type must be one of"),
        (lambda: build.one_host(device_type="h100", num_devices=17), "for more use h100-x8x"),
    ],
)  # fmt: skip
def test_bad_arguments_are_named(make: Callable[[], Cluster], message: str) -> None:
    with pytest.raises(InputError, match=re.escape(message)):
        make()
