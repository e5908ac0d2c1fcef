"""Which interfaces carry what: rails, shares and pieces, worked out by hand."""

from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st
from rails import rails_cluster

from meshwright.cluster.build import hierarchical, multi_rail
from meshwright.cluster.cluster import Cluster, Link
from meshwright.execute.way import (
    ALIGNED_BYTES,
    LEAST_BYTES,
    Rails,
    Ring,
    cut_pieces,
    find_rails,
)
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Allocation, Part, Plan, Sync
from meshwright.program.lower import lower
from small import dag, layers


def sending(
    cluster: Cluster, hops: list[tuple[int, int]], allocations: tuple[Allocation, ...] = ()
) -> Rails:
    """The rails of a plan that sends from device to device of each hop."""
    ops = [end for hop in hops for end in hop]
    graph = dag([1.0] * len(ops), {(2 * k, 2 * k + 1): 8.0 for k in range(len(hops))})
    parts = tuple(
        Part(ops=(f"o{k}",), devices=(cluster.devices[device].name,))
        for k, device in enumerate(ops)
    )
    rails = find_rails(cluster, lower(graph, cluster, Plan(parts=parts, allocations=allocations)))
    assert rails is not None
    return rails


def ring_of(cluster: Cluster, devices: list[int], allocations: tuple[Allocation, ...] = ()) -> Ring:
    """The ring of a plan that adds gradients up over these devices."""
    graph: Graph = layers(2, gradient=8.0, batch=8.0)
    names = tuple(cluster.devices[each].name for each in devices)
    part = Part(ops=graph.op_names, devices=names, sync=Sync.RING)
    rails = find_rails(cluster, lower(graph, cluster, Plan(parts=(part,), allocations=allocations)))
    assert rails is not None
    (ring,) = rails.rings.values()
    return ring


def allocated(source: int, target: int, rate: float, *shares: float) -> Allocation:
    return Allocation(
        source=f"h{source}", target=f"h{target}", bytes_per_second=rate, shares=shares
    )


def test_hosts_with_one_interface_have_no_rails() -> None:
    cluster = hierarchical(devices_per_host=2, branching=(2, 2))
    graph = dag([1.0, 1.0], {(0, 1): 8.0})
    parts = tuple(
        Part(ops=(f"o{k}",), devices=(cluster.devices[device].name,))
        for k, device in ((0, 0), (1, 7))
    )
    assert find_rails(cluster, lower(graph, cluster, Plan(parts=parts))) is None


def test_without_allocations_a_transfer_takes_the_rail_of_its_route() -> None:
    cluster = multi_rail(num_hosts=2, num_rails=2, devices_per_host=2)
    rails = sending(cluster, [(0, 2), (0, 3), (2, 0), (2, 1)])
    for (source, target), division in rails.pairs.items():
        route = [cluster.links[link] for link in cluster.routing.links(source, target)]
        (switch,) = {link.target for link in route} & set(cluster.switches)
        assert division == ((cluster.switches.index(switch), 1.0),)
    assert {division[0][0] for division in rails.pairs.values()} == {0, 1}, "both are in use"


def test_an_allocation_divides_transfers_by_its_shares() -> None:
    cluster = rails_cluster(3, (10.0, 10.0))
    rails = sending(
        cluster,
        [(0, 1), (1, 0), (0, 2)],
        (allocated(0, 1, 12.0, 0.75, 0.25), allocated(0, 2, 3.0, 0.0, 1.0)),
    )
    assert rails.pairs[0, 1] == ((0, 0.75), (1, 0.25))
    assert rails.pairs[0, 2] == ((1, 1.0),)
    assert len(rails.pairs[1, 0]) == 1, "the other direction has no allocation"


def test_an_allocation_without_shares_leaves_the_route() -> None:
    cluster = rails_cluster(2, (10.0, 10.0))
    assert (
        sending(cluster, [(0, 1)], (allocated(0, 1, 3.0),)).pairs
        == sending(cluster, [(0, 1)]).pairs
    )


def test_within_a_host_there_are_no_rails() -> None:
    cluster = multi_rail(num_hosts=2, num_rails=2, devices_per_host=2)
    rails = sending(cluster, [(0, 1), (0, 2)])
    assert (0, 1) not in rails.pairs


def test_a_host_may_be_on_some_rails_only() -> None:
    # s0 joins h0 and h1, s1 joins h0 and h2, s2 joins h1 and h2: each has two interfaces.
    cluster = rails_cluster(3, (1.0, 1.0, 1.0), on=((0, 1), (0, 2), (1, 2)))
    rails = sending(cluster, [(0, 1), (0, 2), (2, 1)])
    assert rails.places == ({0: 0, 1: 0}, {0: 1, 2: 0}, {1: 1, 2: 1})
    assert rails.num_interfaces == (2, 2, 2)
    assert rails.pairs == {(0, 1): ((0, 1.0),), (0, 2): ((1, 1.0),), (2, 1): ((2, 1.0),)}
    assert rails.used == (0, 1, 2)


def test_cables_to_one_switch_are_rails_apart() -> None:
    cluster = rails_cluster(2, (1.0,))
    more = tuple(
        Link(source=one, target=other, bytes_per_second=1.0, latency_seconds=0.0)
        for host in ("h0", "h1")
        for one, other in ((host, "s0"), ("s0", host))
    )
    cluster = replace(cluster, links=cluster.links + more)
    rails = sending(cluster, [(0, 1)], (allocated(0, 1, 2.0, 0.5, 0.5),))
    assert rails.places == ({0: 0, 1: 0}, {0: 1, 1: 1})
    assert rails.pairs == {(0, 1): ((0, 0.5), (1, 0.5))}


def test_a_ring_is_divided_by_its_slowest_pair_on_each_rail() -> None:
    # On rail 0 the pairs have 6, 2 and 4, on rail 1 2, 6 and 4: 2 on each is what all have.
    cluster = rails_cluster(3, (10.0, 10.0))
    allocations = (
        allocated(0, 1, 8.0, 0.75, 0.25),
        allocated(1, 2, 8.0, 0.25, 0.75),
        allocated(2, 0, 8.0, 0.5, 0.5),
    )
    ring = ring_of(cluster, [0, 1, 2], allocations)
    assert ring.devices == (0, 1, 2)
    assert ring.division == ((0, 0.5), (1, 0.5))


def test_a_ring_without_allocations_is_on_one_rail() -> None:
    ring = ring_of(rails_cluster(4, (10.0, 10.0)), [0, 1, 2, 3])
    assert [share for _, share in ring.division] == [1.0]


def test_a_ring_whose_allocations_share_no_rail_is_on_one() -> None:
    cluster = rails_cluster(2, (10.0, 10.0))
    allocations = (allocated(0, 1, 8.0, 1.0, 0.0), allocated(1, 0, 8.0, 0.0, 1.0))
    assert len(ring_of(cluster, [0, 1], allocations).division) == 1


def test_small_messages_are_not_divided() -> None:
    division = ((0, 0.25), (3, 0.5), (5, 0.25))
    assert cut_pieces(LEAST_BYTES - 1, division) == ((3, 0, LEAST_BYTES - 1),)
    assert cut_pieces(0, division) == ((3, 0, 0),)
    assert [rail for rail, _, _ in cut_pieces(LEAST_BYTES, division)] == [0, 3, 5]


def test_of_equal_rails_small_messages_take_the_first() -> None:
    assert cut_pieces(64, ((1, 0.5), (2, 0.5))) == ((1, 0, 64),)


def test_pieces_are_in_proportion() -> None:
    assert cut_pieces(64_000, ((0, 0.75), (1, 0.25))) == ((0, 0, 48_000), (1, 48_000, 64_000))


@given(
    st.integers(0, 2**24),
    st.lists(st.floats(1e-6, 1.0), min_size=1, max_size=8),
)
def test_pieces_cover_a_message_once_and_are_aligned(size: int, weights: list[float]) -> None:
    total = sum(weights)
    division = tuple((rail, weight / total) for rail, weight in enumerate(weights))
    pieces = cut_pieces(size, division)
    assert pieces[0][1] == 0
    assert pieces[-1][2] == size
    assert all(before[2] == after[1] and before[0] < after[0] for before, after in pairwise(pieces))
    assert all(start % ALIGNED_BYTES == 0 for _, start, _ in pieces)
    if size >= LEAST_BYTES:
        for rail, start, end in pieces:
            assert abs(end - start - division[rail][1] * size) <= ALIGNED_BYTES
