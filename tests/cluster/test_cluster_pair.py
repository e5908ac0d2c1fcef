"""Routes of chosen pairs are those of the tables of all pairs."""

from itertools import pairwise

import numpy as np
import pytest
from cluster_strategies import networks, small_clusters
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster import cluster as cluster_module
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster, Device, Link, Routes
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cluster.pair import cut_out, find_pairs, read_pairs


def all_pairs(cluster: Cluster) -> tuple[np.ndarray, np.ndarray]:
    number = np.arange(cluster.num_devices, dtype=np.int32)
    return np.repeat(number, len(number)), np.tile(number, len(number))


def assert_equal_routes(found: Routes, expected: Routes) -> None:
    for name in ("bandwidth", "latency", "starts", "links", "hops"):
        np.testing.assert_array_equal(getattr(found, name), getattr(expected, name))


@settings(max_examples=300, deadline=None)
@given(st.one_of(networks(), small_clusters()))
def test_searched_pairs_equal_those_of_the_tables(cluster: Cluster) -> None:
    pairs = all_pairs(cluster)
    found = find_pairs(cluster.wiring, *pairs, cluster.hop_bytes_per_second)
    assert_equal_routes(found, read_pairs(cluster.routing, *pairs))


@settings(max_examples=100, deadline=None)
@given(st.one_of(networks(), small_clusters()))
def test_pairs_read_from_tables_have_the_links_that_routing_walks(cluster: Cluster) -> None:
    sources, targets = all_pairs(cluster)
    found = read_pairs(cluster.routing, sources, targets)
    for place in range(0, len(sources), 1 + len(sources) // 50):
        pair = int(sources[place]), int(targets[place])
        assert found.links_of(place).tolist() == cluster.routing.links(*pair).tolist()
        assert found.bandwidth[place] == cluster.bandwidth[pair]
        assert found.latency[place] == cluster.latency[pair]


@settings(max_examples=150, deadline=None)
@given(st.one_of(networks(), small_clusters()), st.data())
def test_a_cutout_keeps_the_routes_of_its_devices(cluster: Cluster, data: st.DataObject) -> None:
    number = st.integers(0, cluster.num_devices - 1)
    kept = np.array(sorted(data.draw(st.sets(number, min_size=1, max_size=9))), dtype=np.int32)
    cutout = cut_out(cluster.network, kept)
    places = cutout.places(kept)
    routing = cutout.routes_to(places, cluster.hop_bytes_per_second)
    square = np.ix_(kept, kept)
    np.testing.assert_array_equal(routing.bandwidth[places], cluster.bandwidth[square])
    np.testing.assert_array_equal(routing.latency[places], cluster.latency[square])
    for column, target in enumerate(kept.tolist()):
        for source in kept.tolist():
            here = routing.links(int(cutout.places(np.array([source]))[0]), column)
            assert cutout.links[here].tolist() == cluster.routing.links(source, target).tolist()


@pytest.mark.parametrize("name", ["h100-x8x12", "torus2d-9x9", "hierarchical-2x8x6"])
@pytest.mark.parametrize("num_sources", [3, 80])
def test_a_table_of_pairs_needs_no_tables_of_all(
    name: str, num_sources: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = find_cluster(name)
    sources = np.arange(num_sources)[::-1]
    targets = np.array([5, 0, 77, 31])
    bandwidth, latency = cluster.pair_table(sources, targets)
    np.testing.assert_array_equal(bandwidth, cluster.bandwidth[np.ix_(sources, targets)])
    monkeypatch.setattr(cluster_module, "MAX_TABLE_DEVICES", 0)
    other = find_cluster(name)
    found = other.pair_table(sources, targets)
    np.testing.assert_array_equal(found[0], bandwidth)
    np.testing.assert_array_equal(found[1], latency)
    assert "routing" not in vars(other)


def test_long_routes_get_the_room_they_need() -> None:
    # Two devices at the ends of a chain of thirty switches: 31 links each way.
    names = ["d0", *(f"s{i}" for i in range(30)), "d1"]
    links = [
        Link(source=a, target=b, bytes_per_second=1.0, latency_seconds=1.0)
        for one, other in pairwise(names)
        for a, b in ((one, other), (other, one))
    ]
    devices = tuple(
        Device(name=f"d{i}", type="t4", host=f"h{i}", memory_bytes=1.0) for i in range(2)
    )
    cluster = Cluster(
        name="chain",
        types=DEVICE_TYPES,
        devices=devices,
        switches=tuple(names[1:-1]),
        links=tuple(links),
    )
    ends = np.array([0, 1, 0], dtype=np.int32)
    found = find_pairs(cluster.wiring, ends, ends[::-1].copy())
    assert found.hops.tolist() == [0, 0, 0]
    found = find_pairs(cluster.wiring, ends, 1 - ends)
    assert found.hops.tolist() == [31, 31, 31]
    assert found.latency.tolist() == [31.0, 31.0, 31.0]
    assert found.links_of(0).tolist() == list(range(0, 62, 2))


def test_no_pairs_have_no_routes() -> None:
    cluster = find_cluster("h100-x8")
    nothing = np.zeros(0, dtype=np.int32)
    for found in (cluster.routes_between([], []), find_pairs(cluster.wiring, nothing, nothing)):
        assert found.starts.tolist() == [0]
        assert len(found.bandwidth) == len(found.links) == 0


@pytest.mark.parametrize("name", ["h100-spineleaf-16384", "tpuv4-fattree-16384", "h100-x8x2048"])
def test_a_hundred_thousand_pairs_need_no_tables(name: str) -> None:
    cluster = find_cluster(name).plain
    generator = np.random.default_rng(0)
    pairs = generator.integers(0, cluster.num_devices, size=(2, 100_000))
    found = cluster.routes_between(*pairs)
    assert (found.bandwidth[pairs[0] != pairs[1]] >= 50e9).all()
    assert not cluster.has_tables
