"""Allocations over several ways between hosts, worked out by hand.

Rails carry a byte a second and device links a hundred unless said; there is no latency then.
"""

import pytest
from allocated_plans import allocated, placed, ring

from link_use import link_use, link_utilisation
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Allocation, Part, Plan, Sync
from meshwright.program.program import Kind
from meshwright.simulate.allocation import crossed_links
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline
from small import connected, dag, rails, star

SHARINGS = pytest.mark.parametrize("sharing", ["none", "fair"])


def all_ways_round(num_hosts: int, rate: float, *shares: float) -> tuple[Allocation, ...]:
    """From each host to the next on the ring."""
    return tuple(allocated(k, (k + 1) % num_hosts, rate, *shares) for k in range(num_hosts))


def beside(gradient: float, sent: float) -> tuple[Graph, tuple[Part, ...]]:
    """A ring on d0 and d2, and a transfer from d1 to d3, both from the start."""
    builder = GraphBuilder("beside")
    backward = builder.add_op("b0", phase=Phase.BACKWARD, seconds={"any": 0.0})
    update = builder.add_op("u0", phase=Phase.UPDATE, split=Split.NONE, seconds={"any": 0.0})
    builder.add_tensor(backward, gradient, [update], partial=True, fixed_bytes=gradient)
    one, other = (builder.add_op(f"o{k}", seconds={"any": 0.0}) for k in range(2))
    builder.add_tensor(one, sent, [other])
    parts = (
        Part(ops=("b0", "u0"), devices=("d0", "d2"), sync=Sync.RING),
        Part(ops=("o0",), devices=("d1",)),
        Part(ops=("o1",), devices=("d3",)),
    )
    return builder.finish(), parts


def receives(timeline: Timeline) -> list[float]:
    """When each transfer ended."""
    kinds = timeline.program.instructions["kind"]
    return [float(each) for each in timeline.finish[kinds == Kind.RECEIVE]]


@SHARINGS
@pytest.mark.parametrize(
    ("rate", "shares", "device", "expected"),
    [
        (1.5, (2 / 3, 1 / 3), 100.0, 4.0),  # 1 and 0.5 B/s: more than one way carries
        (2.0, (0.5, 0.5), 100.0, 3.0),
        (0.5, (0.5, 0.5), 100.0, 12.0),
        (3.0, (0.5, 0.5), 100.0, 3.0),  # links of 1 B/s with a half each: 2 B/s
        (3.0, (0.75, 0.25), 100.0, 4.5),  # 0.75 r <= 1: 4/3 B/s
        (2.0, (0.5, 0.5), 1.2, 5.0),  # the device's own link
        (2.0, (0.0, 1.0), 100.0, 6.0),  # one way only
    ],
)
def test_a_transfer_takes_all_its_ways_at_once(
    sharing: str, rate: float, shares: tuple[float, ...], device: float, expected: float
) -> None:
    graph = dag([0, 0], {(0, 1): 6})
    plan = placed(graph, [0, 1], allocated(0, 1, rate, *shares))
    timeline = simulate(graph, rails(2, device=device), plan, sharing=sharing)
    assert timeline.step_seconds == pytest.approx(expected)


@SHARINGS
def test_latency_is_the_routes(sharing: str) -> None:
    graph = dag([0, 0], {(0, 1): 6})
    plan = placed(graph, [0, 1], allocated(0, 1, 1.5, 2 / 3, 1 / 3))
    timeline = simulate(graph, rails(2, latency=0.25), plan, sharing=sharing)
    assert timeline.step_seconds == pytest.approx(4 * 0.25 + 4)


def test_allocations_that_fill_both_interfaces_do_not_slow_each_other() -> None:
    # h0 gives 1.5 B/s to h1 (1 + 0.5) and 0.5 to h2 (all on the second way): 6 and 2 bytes, 4 s.
    graph = dag([0, 0, 0], {(0, 1): 6, (0, 2): 2})
    limits = allocated(0, 1, 1.5, 2 / 3, 1 / 3), allocated(0, 2, 0.5, 0, 1)
    timeline = simulate(graph, rails(3), placed(graph, [0, 1, 2], *limits), with_links=True)
    assert receives(timeline) == pytest.approx([4, 4])
    uses = {
        f"{link.source} -> {link.target}": float(link_use(timeline, number)[1].max())
        for number, link in enumerate(rails(3).links)
    }
    used = {name: rate for name, rate in uses.items() if rate}
    assert used == pytest.approx(
        {
            "d0 -> h0": 2.0, "h0 -> s0": 1.0, "h0 -> s1": 1.0,
            "s0 -> h1": 1.0, "s1 -> h1": 0.5, "h1 -> d1": 1.5, "s1 -> h2": 0.5, "h2 -> d2": 0.5,
        }
    )  # fmt: skip
    # Of the step each allocation is in use all the time.
    assert link_utilisation(timeline)[-2:] == pytest.approx([1, 1])


def test_two_pairs_of_devices_share_the_allocation_of_their_hosts() -> None:
    # d0 -> d2 and d1 -> d3 have 1 B/s each: 3 bytes at 3 s, then 2 B/s for the other's last 4.
    graph = dag([0, 0, 0, 0], {(0, 2): 3, (1, 3): 7})
    plan = placed(graph, [0, 1, 2, 3], allocated(0, 1, 2.0, 0.5, 0.5))
    cluster = rails(2, per_host=2)
    assert receives(simulate(graph, cluster, plan)) == pytest.approx([3, 5])
    assert receives(simulate(graph, cluster, plan, sharing="none")) == pytest.approx([1.5, 3.5])


def test_what_is_beyond_the_links_is_shared_fairly_between_allocations() -> None:
    # Both want 2 B/s over h0's two links of 1: each gets 1, and then 2.
    graph = dag([0, 0, 0], {(0, 1): 2, (0, 2): 4})
    limits = allocated(0, 1, 2, 0.5, 0.5), allocated(0, 2, 2, 0.5, 0.5)
    timeline = simulate(graph, rails(3), placed(graph, [0, 1, 2], *limits))
    assert receives(timeline) == pytest.approx([2, 3])


@SHARINGS
@pytest.mark.parametrize(
    ("rate", "shares", "expected"),
    [
        (2.0, (0.5, 0.5), 6.0),  # 2 (p - 1) / p x 8 bytes = 12 on each edge
        (1.5, (2 / 3, 1 / 3), 8.0),
        (0.5, (0.5, 0.5), 24.0),
        (0.5, (), 24.0),  # on the route
        (1.0, (), 12.0),
        (9.0, (), 12.0),  # links of 1 B/s
        (9.0, (0.5, 0.5), 6.0),
    ],
)
def test_a_ring_has_what_its_edges_are_allocated(
    sharing: str, rate: float, shares: tuple[float, ...], expected: float
) -> None:
    graph, plan = ring(8, range(4), *all_ways_round(4, rate, *shares))
    assert simulate(graph, rails(4), plan, sharing=sharing).step_seconds == pytest.approx(expected)


@SHARINGS
def test_a_ring_without_allocations_has_one_rail(sharing: str) -> None:
    graph, plan = ring(8, range(4))
    assert simulate(graph, rails(4), plan, sharing=sharing).step_seconds == pytest.approx(12)


@SHARINGS
def test_a_ring_has_of_each_way_what_its_slowest_edge_has(sharing: str) -> None:
    # By way: (1, 0.5), (0.5, 1), (1, 1), (0.75, 0.75): least 0.5 + 0.5 = 1 B/s for 12 bytes.
    edges = (
        allocated(0, 1, 1.5, 2 / 3, 1 / 3),
        allocated(1, 2, 1.5, 1 / 3, 2 / 3),
        allocated(2, 3, 2.0, 0.5, 0.5),
        allocated(3, 0, 1.5, 0.5, 0.5),
    )
    graph, plan = ring(8, range(4), *edges)
    assert simulate(graph, rails(4), plan, sharing=sharing).step_seconds == pytest.approx(12)


@SHARINGS
def test_edges_without_an_allocation_keep_their_route(sharing: str) -> None:
    # 12 bytes at 1 B/s on the rail of the route, though h0 -> h1 could have 2.
    graph, plan = ring(8, range(4), allocated(0, 1, 2.0, 0.5, 0.5))
    assert simulate(graph, rails(4), plan, sharing=sharing).step_seconds == pytest.approx(12)


def test_a_ring_and_a_transfer_share_an_allocation() -> None:
    # The ring of d0 and d2 moves 4 bytes each way; d1 sends 4 to d3: 1 B/s each of h0 -> h1's 2.
    graph, plan = ring(4, [0, 2], allocated(0, 1, 2, 0.5, 0.5), allocated(1, 0, 2, 0.5, 0.5))
    cluster = rails(2, per_host=2)
    assert simulate(graph, cluster, plan).step_seconds == pytest.approx(2)
    merged, parts = beside(4.0, 4.0)
    timeline = simulate(merged, cluster, Plan(parts=parts, allocations=plan.allocations))
    assert timeline.step_seconds == pytest.approx(4)
    assert receives(timeline) == pytest.approx([4])


def test_a_collective_without_a_common_way_is_refused() -> None:
    edges = (
        allocated(0, 1, 1, 1, 0),
        allocated(1, 2, 1, 0, 1),
        allocated(2, 3, 1, 1, 0),
        allocated(3, 0, 1, 1, 0),
    )
    graph, plan = ring(8, range(4), *edges)
    with pytest.raises(InputError) as error:
        simulate(graph, rails(4), plan)
    assert str(error.value) == (
        "all_reduce on 4 devices: must have one way with a rate between all hosts that send to "
        "each other, but the limits between them have none in common"
    )


def test_links_crossed_are_of_the_route_or_of_all_ways() -> None:
    cluster = rails(3)
    limits = allocated(0, 1, 1, 0.5, 0.5), allocated(0, 2, 1, 1, 0)
    found = crossed_links(cluster, limits, [(0, 1), (0, 2), (1, 0)])
    ends = {
        pair: {(cluster.links[k].source, cluster.links[k].target) for k in links}
        for pair, links in found.items()
    }
    assert ends[0, 1] == {
        ("d0", "h0"), ("h0", "s0"), ("h0", "s1"), ("s0", "h1"), ("s1", "h1"), ("h1", "d1"),
    }  # fmt: skip
    assert ends[0, 2] == {("d0", "h0"), ("h0", "s0"), ("s0", "h2"), ("h2", "d2")}
    assert set(found[1, 0]) == set(cluster.routing.links(1, 0).tolist())


def test_devices_that_are_joined_to_switches_keep_their_route() -> None:
    # No host stands on a route of these clusters: an allocation is a rate, and has no ways.
    graph = dag([0, 0], {(0, 1): 4})
    for cluster in (connected(2), star([1, 1])):
        plan = placed(graph, [0, 1], allocated(0, 1, 0.5))
        assert simulate(graph, cluster, plan).step_seconds == pytest.approx(8)
        with pytest.raises(InputError, match="must have a share for each of the 0 ways"):
            simulate(graph, cluster, placed(graph, [0, 1], allocated(0, 1, 0.5, 1.0)))
