"""Routes: hand-worked ones, spreading, and brute force on small random networks."""

from collections import Counter
from itertools import pairwise, permutations

import networkx as nx
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.cluster import build
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster, Device, Link
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.errors import InputError


def make_cluster(
    num_devices: int,
    links: list[tuple[str, str, float]],
    *,
    switches: tuple[str, ...] = (),
    devices_relay: bool = False,
    latency: float = 0.0,
) -> Cluster:
    """Devices d0, d1, ... on hosts h0, h1, ... with directed links."""
    return Cluster(
        name="test",
        types=DEVICE_TYPES,
        devices=tuple(
            Device(name=f"d{i}", type="t4", host=f"h{i}", memory_bytes=1.0)
            for i in range(num_devices)
        ),
        switches=switches,
        links=tuple(
            Link(source=a, target=b, bytes_per_second=rate, latency_seconds=latency)
            for a, b, rate in links
        ),
        devices_relay=devices_relay,
    )


def both(*links: tuple[str, str, float]) -> list[tuple[str, str, float]]:
    return [each for a, b, rate in links for each in ((a, b, rate), (b, a, rate))]


def test_a_device_reaches_itself_at_once() -> None:
    routing = make_cluster(1, []).routing
    assert routing.bandwidth.tolist() == [[np.inf]]
    assert routing.latency.tolist() == [[0.0]]
    assert routing.hops.tolist() == [[0]]
    assert routing.links(0, 0).size == 0


def test_fewer_links_win_over_wider_ones() -> None:
    links = both(("d0", "d1", 1.0), ("d0", "s", 9.0), ("s", "d1", 9.0))
    cluster = make_cluster(2, links, switches=("s",), latency=0.5)
    assert cluster.bandwidth[0, 1] == 1.0
    assert cluster.routing.hops[0, 1] == 1
    assert cluster.latency[0, 1] == 0.5


def test_wider_routes_win_among_those_of_as_many_links() -> None:
    # Over a: min(9, 2) = 2; over b: min(5, 4) = 4.
    links = both(("d0", "a", 9.0), ("a", "d1", 2.0), ("d0", "b", 5.0), ("b", "d1", 4.0))
    cluster = make_cluster(2, links, switches=("a", "b"), latency=0.5)
    assert cluster.bandwidth[0, 1] == 4.0
    assert cluster.latency[0, 1] == 1.0
    route = [cluster.links[link].target for link in cluster.routing.links(0, 1)]
    assert route == ["b", "d1"]


def test_the_wider_of_two_parallel_links_is_taken() -> None:
    cluster = make_cluster(2, [("d0", "d1", 1.0), ("d0", "d1", 3.0), ("d1", "d0", 2.0)])
    assert cluster.routing.links(0, 1).tolist() == [1]
    assert cluster.bandwidth[0, 1] == 3.0
    assert cluster.bandwidth[1, 0] == 2.0


def test_devices_do_not_relay_unless_told() -> None:
    line = both(("d0", "d1", 1.0), ("d1", "d2", 1.0))
    with pytest.raises(InputError, match="'d2' cannot be reached from 'd0'"):
        make_cluster(3, line)
    assert make_cluster(3, line, devices_relay=True).routing.hops[0, 2] == 2


def test_a_star_of_direct_links_leaves_its_points_apart() -> None:
    # d0 reaches all and all reach d0, yet d1 and d2 have no way that passes no device.
    with pytest.raises(InputError, match="'d2' cannot be reached from 'd1'"):
        make_cluster(3, both(("d0", "d1", 1.0), ("d0", "d2", 1.0)))


def test_one_way_links_do_not_lead_back() -> None:
    with pytest.raises(InputError, match="'d0' cannot be reached from 'd1'"):
        make_cluster(2, [("d0", "d1", 1.0)])


def test_two_islands_of_switches_are_refused() -> None:
    links = both(("d0", "a", 1.0), ("d1", "a", 1.0), ("d2", "b", 1.0), ("d3", "b", 1.0))
    with pytest.raises(InputError, match="'d2' cannot be reached from 'd0'"):
        make_cluster(4, links, switches=("a", "b"))


def test_a_fat_tree_spreads_targets_over_all_its_cores() -> None:
    # k = 4: four cores; from a host to the 12 hosts of other pods, three targets a core.
    cluster = build.fat_tree(k=4)
    used = Counter(
        cluster.links[link].target
        for target in range(4, 16)
        for link in cluster.routing.links(0, target)
        if cluster.links[link].target.startswith("core")
    )
    assert used == {f"core{place}": 3 for place in range(4)}


def test_a_rails_devices_are_reached_over_all_spines() -> None:
    # 16 hosts, so 16 spines: from device 0 of host 0 to device 1 of the 15 others, one each.
    cluster = find_cluster("h100-x8x16")
    spines = [
        cluster.links[cluster.routing.links(0, 8 * host + 1)[1]].target for host in range(1, 16)
    ]
    assert len(set(spines)) == 15


def test_transfers_to_different_devices_use_different_rails() -> None:
    cluster = build.multi_rail(num_hosts=2, num_rails=4, devices_per_host=4)
    rails = {cluster.links[cluster.routing.links(0, target)[1]].target for target in range(4, 8)}
    assert rails == {"rail0", "rail1", "rail2", "rail3"}


def test_a_thousand_devices_are_routed() -> None:
    assert find_cluster("h100-x8x128").routing.hops.max() == 4


@st.composite
def networks(draw: st.DrawFn) -> Cluster:
    """Small random networks, most of them connected, with few distinct rates so ties occur."""
    num_devices = draw(st.integers(2, 5))
    switches = tuple(f"s{i}" for i in range(draw(st.integers(0, 3))))
    nodes = [*(f"d{i}" for i in range(num_devices)), *switches]
    pairs = st.tuples(st.sampled_from(nodes), st.sampled_from(nodes), st.sampled_from([1.0, 2, 3]))
    chosen = draw(st.lists(pairs, min_size=num_devices, max_size=24))
    links = [each for each in both(*chosen) if each[0] != each[1] and draw(st.integers(0, 9))]
    try:
        return make_cluster(
            num_devices, links, switches=switches, devices_relay=draw(st.booleans()), latency=0.25
        )
    except InputError:
        assume(False)
        raise


def brute_force_route(cluster: Cluster, source: str, target: str) -> tuple[int, float]:
    """The fewest links and the widest bottleneck at that, over all simple paths."""
    graph = nx.DiGraph()
    for link in cluster.links:
        widest = graph.get_edge_data(link.source, link.target, {"rate": 0})["rate"]
        graph.add_edge(link.source, link.target, rate=max(widest, link.bytes_per_second))
    if not cluster.devices_relay:
        graph.remove_nodes_from(set(cluster.index) - {source, target})
    return max(
        (-len(path) + 1, min(graph[a][b]["rate"] for a, b in pairwise(path)))
        for path in nx.all_simple_paths(graph, source, target)
    )


@settings(max_examples=150)
@given(networks())
def test_routes_are_the_widest_of_the_shortest(cluster: Cluster) -> None:
    routing = cluster.routing
    for (i, source), (j, target) in permutations(enumerate(cluster.index), 2):
        links = [cluster.links[link] for link in routing.links(i, j)]
        assert [links[0].source, links[-1].target] == [source, target]
        assert all(a.target == b.source for a, b in pairwise(links))
        assert cluster.devices_relay or not {a.target for a in links[:-1]} & set(cluster.index)
        assert routing.bandwidth[i, j] == min(link.bytes_per_second for link in links)
        assert routing.latency[i, j] == 0.25 * len(links)
        assert routing.hops[i, j] == len(links)
        assert brute_force_route(cluster, source, target) == (-len(links), routing.bandwidth[i, j])


@settings(max_examples=150)
@given(
    st.integers(1, 4),
    st.integers(0, 3),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14),
    st.booleans(),
)
def test_unreachable_pairs_are_found_exactly(
    num_devices: int, num_switches: int, pairs: list[tuple[int, int]], devices_relay: bool
) -> None:
    names = [f"d{i}" for i in range(num_devices)] + [f"s{i}" for i in range(num_switches)]
    links = [(names[a], names[b], 1.0) for a, b in pairs if a != b and max(a, b) < len(names)]
    graph = nx.DiGraph()
    graph.add_nodes_from(names)
    graph.add_edges_from((a, b) for a, b, _ in links)

    def is_reachable(a: str, b: str) -> bool:
        inner = {f"d{i}" for i in range(num_devices)} - {a, b} if not devices_relay else set()
        return bool(nx.has_path(graph.subgraph(set(names) - inner), a, b))

    expected = all(is_reachable(a, b) for a, b in permutations(names[:num_devices], 2))
    try:
        make_cluster(
            num_devices, links, switches=tuple(names[num_devices:]), devices_relay=devices_relay
        )
        connected = True
    except InputError:
        connected = False
    assert connected == expected
