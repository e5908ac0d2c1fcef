"""Pairs that hang alike have equal routes; what does not hang plainly is left alone."""

from collections import defaultdict

import pytest
from cluster_strategies import networks, small_clusters
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster, Device, Link
from meshwright.cluster.devices import DEVICE_TYPES

Joint = tuple[str, str, float, float]


def make_cluster(hosts: list[int], joints: list[Joint], switches: tuple[str, ...]) -> Cluster:
    """Devices d0, d1, ... so many a host h0, h1, ...; joints are links of a rate and a latency."""
    names = [f"h{host}" for host, count in enumerate(hosts) for _ in range(count)]
    return Cluster(
        name="test",
        types=DEVICE_TYPES,
        devices=tuple(
            Device(name=f"d{i}", type="t4", host=host, memory_bytes=1.0)
            for i, host in enumerate(names)
        ),
        switches=switches,
        links=tuple(
            Link(source=a, target=b, bytes_per_second=rate, latency_seconds=latency)
            for one, other, rate, latency in joints
            for a, b in ((one, other), (other, one))
        ),
    )


@st.composite
def hung_clusters(draw: st.DrawFn) -> Cluster:
    """Devices on leaves, straight or through their host, of few rates; leaves on all spines."""
    num_leaves, num_spines = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    rates = st.sampled_from([1.0, 2.0])
    joints: list[Joint] = []
    hosts = draw(st.lists(st.integers(1, 2), min_size=2, max_size=6))
    device = 0
    for host, count in enumerate(hosts):
        leaf, is_straight = f"leaf{draw(st.integers(0, num_leaves - 1))}", draw(st.booleans())
        if not is_straight:
            joints.append((f"h{host}", leaf, draw(rates), 0.5))
        for _ in range(count):
            joints.append((f"d{device}", leaf if is_straight else f"h{host}", draw(rates), 0.25))
            if is_straight and draw(st.booleans()):
                joints.append((f"d{device}", f"h{host}", 9.0, 0.125))
            device += 1
    for number in range(num_leaves):
        rate = draw(rates)
        joints += [(f"leaf{number}", f"spine{spine}", rate, 0.75) for spine in range(num_spines)]
    switches = [f"leaf{i}" for i in range(num_leaves)] + [f"spine{i}" for i in range(num_spines)]
    return make_cluster(hosts, joints, tuple(switches))


@settings(max_examples=300, deadline=None)
@given(st.one_of(hung_clusters(), networks(), small_clusters()))
def test_pairs_that_hang_alike_have_equal_routes(cluster: Cluster) -> None:
    hangings = cluster.hangings
    if hangings is None:
        return
    seen = defaultdict(set)
    for i, source in enumerate(cluster.devices):
        for j, target in enumerate(cluster.devices):
            if source.host != target.host:
                is_same = hangings.anchor[i] == hangings.anchor[j]
                values = cluster.bandwidth[i, j], cluster.latency[i, j], cluster.routing.hops[i, j]
                seen[hangings.kind[i], hangings.kind[j], is_same].add(values)
    assert all(len(values) == 1 for values in seen.values())


@given(hung_clusters())
def test_devices_on_leaves_hang_plainly(cluster: Cluster) -> None:
    assert cluster.hangings is not None


def test_a_leafs_devices_hang_from_it_and_alike() -> None:
    # 17 hosts, so two leaves; all devices are of one kind, 128 on the first leaf.
    hangings = find_cluster("h100-spineleaf-136").hangings
    assert hangings is not None
    assert set(hangings.kind.tolist()) == {0}
    anchors = hangings.anchor.tolist()
    assert len(set(anchors[:128])) == len(set(anchors[128:])) == 1
    assert len(set(anchors)) == 2


def test_hosts_hang_from_their_rack_through_their_own_node() -> None:
    hangings = find_cluster("tpuv4-fattree-72").hangings
    assert hangings is not None
    assert len(set(hangings.kind.tolist())) == 1
    assert [len(set(hangings.anchor[k : k + 32].tolist())) for k in (0, 32)] == [1, 1]


STAR = [("d0", "s", 1.0, 0.0), ("d1", "s", 1.0, 0.0), ("d2", "s", 1.0, 0.0)]


@pytest.mark.parametrize(
    ("joints", "why"),
    [
        ([*STAR, ("d0", "d1", 1.0, 0.0)], "a direct link to another host"),
        ([*STAR, ("d0", "s", 1.0, 0.0)], "two links to its anchor"),
        ([*STAR, ("d0", "t", 1.0, 0.0), ("d1", "t", 1.0, 0.0)], "two ways out"),
        (
            [*STAR[:2], ("d2", "t", 1.0, 0.0), ("s", "t", 1.0, 0.0), ("t", "u", 1.0, 0.5),
             ("u", "s", 1.0, 0.5), ("d0", "u", 1.0, 0.0)],
            "shared links of two latencies",
        ),
    ],
)  # fmt: skip
def test_what_does_not_hang_plainly_has_no_hangings(joints: list[Joint], why: str) -> None:
    assert make_cluster([1, 1, 1], joints, ("s", "t", "u")).hangings is None, why


def test_devices_that_relay_have_no_hangings() -> None:
    assert find_cluster("torus2d-3x3").hangings is None
