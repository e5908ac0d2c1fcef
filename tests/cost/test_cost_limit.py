"""Collectives and transfers under limits between hosts: rates worked out by hand, and laws."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cluster.cluster import Cluster, Link
from meshwright.cost.axis import axis_model
from meshwright.cost.collective import Algorithm, Collective, CollectiveCost, collective_model
from meshwright.cost.limit import HostLimit, Limits, spread_transfers
from meshwright.errors import InputError
from small import connected, rails

Rates = Mapping[tuple[int, int], Sequence[float]]
"""By pair of hosts bytes a second on each way."""


def limits_of(cluster: Cluster, rates: Rates) -> Limits:
    return Limits(
        cluster=cluster,
        limits=tuple(
            HostLimit(
                source=source,
                target=target,
                bytes_per_second=sum(each),
                shares=tuple(rate / sum(each) for rate in each),
            )
            for (source, target), each in rates.items()
        ),
    )


def cost_of(
    cluster: Cluster,
    rates: Rates,
    algorithm: Algorithm,
    size: float = 1.0,
    collective: Collective = Collective.ALL_REDUCE,
) -> CollectiveCost:
    """On all devices."""
    devices, limits = range(cluster.num_devices), limits_of(cluster, rates)
    return collective_model(cluster, collective, devices, algorithm, limits).cost(size)


def every_pair(num_hosts: int, *rates: float) -> dict[tuple[int, int], Sequence[float]]:
    return dict.fromkeys(permutations(range(num_hosts), 2), rates)


def test_a_ring_is_divided_by_the_least_rate_of_each_rail() -> None:
    # Least by rail: 0.6 and 0.2, so 3/4 and 1/4; 2 x 3/4 bytes on each edge over 0.8 B/s.
    rates = {(0, 1): (0.6, 0.4), (1, 2): (0.9, 0.2), (2, 3): (1, 1), (3, 0): (0.8, 0.3)}
    cost = cost_of(rails(4), rates, Algorithm.RING)
    assert cost.division == pytest.approx((0.75, 0.25))
    assert cost.seconds == pytest.approx(1.5 / 0.8)


def test_a_ring_puts_its_division_on_rails_and_what_is_taken_up_on_limits() -> None:
    # (0.6, 0.2) of each are used: 3/4 and 1/4 of 1.5 bytes. Of (0.9, 0.2), 1.1 in all, the second
    # way is full: all of it is taken up, which is 1.1 / 0.8 of what moves.
    rates = {(0, 1): (0.6, 0.4), (1, 2): (0.9, 0.2), (2, 3): (1, 1), (3, 0): (0.8, 0.3)}
    cluster = rails(4)
    cost = cost_of(cluster, rates, Algorithm.RING)
    names = [f"{link.source} -> {link.target}" for link in cluster.links] + list(map(str, rates))
    loads = {
        names[link]: share * cost.amount_bytes
        for link, share in zip(cost.links.tolist(), cost.link_share.tolist(), strict=True)
    }
    assert loads["d0 -> h0"] == pytest.approx(1.5)
    assert (loads["h0 -> s0"], loads["s0 -> h1"]) == pytest.approx((1.125, 1.125))
    assert (loads["h0 -> s1"], loads["s1 -> h1"]) == pytest.approx((0.375, 0.375))
    assert loads["(1, 2)"] == pytest.approx(1.5 * 1.1 / 0.8)
    assert loads["(0, 1)"] == pytest.approx(1.5 * 1.0 / 0.8)  # its first way is full


def test_halving_and_doubling_has_what_the_pairs_of_each_round_have() -> None:
    # Half the message with the neighbour at 1 B/s, a quarter with the one two away at 0.25; twice.
    rates = every_pair(4, 0.5, 0.5) | dict.fromkeys(
        [(0, 2), (2, 0), (1, 3), (3, 1)], (0.125, 0.125)
    )
    cost = cost_of(rails(4), rates, Algorithm.HALVING_DOUBLING)
    assert cost.seconds == pytest.approx(2 * (0.5 / 1 + 0.25 / 0.25))
    assert cost.division == pytest.approx((0.5, 0.5))


def test_rounds_with_different_slow_rails_are_divided_by_the_sum_of_their_times() -> None:
    # If a rail carried all: the first took 2 (0.5 / 1 + 0.25 / 0.5) = 2, the second
    # 2 (0.5 / 1 + 0.25 / 0.25) = 3, so 3/5 and 2/5. Rounds then take 0.5 x 3/5 on the first rail,
    # and 0.25 x 3/5 / 0.5 = 0.3 or 0.25 x 2/5 / 0.25 = 0.4 on the second: 2 (0.3 + 0.4).
    far = [(0, 2), (2, 0), (1, 3), (3, 1)]
    rates = every_pair(4, 1.0, 1.0) | dict.fromkeys(far, (0.5, 0.25))
    cost = cost_of(rails(4, rail=10), rates, Algorithm.HALVING_DOUBLING)
    assert cost.division == pytest.approx((0.6, 0.4))
    assert cost.seconds == pytest.approx(1.4)


def test_a_tree_loads_each_pair_with_what_crosses_it() -> None:
    # Two hosts: each is the other's parent in one of two trees, half of the message up and down:
    # a byte each way between them at 0.5 B/s.
    cost = cost_of(rails(2), every_pair(2, 0.25, 0.25), Algorithm.TREE)
    assert cost.seconds == pytest.approx(1 / 0.5)


def test_rings_of_local_ranks_share_what_their_hosts_have() -> None:
    # Two hosts of two: within them 2 x 1/2 byte at 100 B/s; between them 2 rounds of 1/4 for each
    # of two ranks, which have 0.5 B/s together.
    cost = cost_of(rails(2, per_host=2), every_pair(2, 0.25, 0.25), Algorithm.HIERARCHICAL)
    assert cost.seconds == pytest.approx(2 * 0.5 / 100 + 2 * (2 * 0.25) / 0.5)


def test_groups_at_once_share_what_their_hosts_have() -> None:
    # Two rings over the same two hosts, a byte each way of each, on 0.5 B/s.
    cluster = rails(2, per_host=2)
    limits = limits_of(cluster, every_pair(2, 0.25, 0.25))
    model = axis_model(cluster, Collective.ALL_REDUCE, [(0, 2), (1, 3)], limits)
    assert model.cost(1.0).seconds == pytest.approx(2 / 0.5)


def test_an_exchange_is_under_limits_too() -> None:
    # Three hosts of one: a third to each other, at 0.5 B/s.
    cost = cost_of(
        rails(3), every_pair(3, 0.25, 0.25), Algorithm.DIRECT, collective=Collective.ALL_TO_ALL
    )
    assert cost.seconds == pytest.approx(1 / 3 / 0.5)


def test_rails_are_what_pairs_have_in_common_whatever_their_number() -> None:
    # h2 has lost its link to s0: pairs with it have one way, the rail of which is the second.
    whole = rails(3)
    links = tuple(link for link in whole.links if {link.source, link.target} != {"h2", "s0"})
    cluster = replace(whole, links=links)
    rates: Rates = {(0, 1): (0.75, 0.25), (1, 2): (0.5,), (2, 0): (0.5,)}
    cost = cost_of(cluster, rates, Algorithm.RING)
    assert cost.division == (0, 1)
    assert cost.seconds == pytest.approx(4 / 3 / 0.25)


def test_hosts_behind_different_switches_of_one_network_are_on_one_rail() -> None:
    # h0 and h1 at s0, h2 and h3 at s1, which are joined: one way a pair, and all of a rail.
    whole = rails(4, num_rails=1)
    moved = [
        replace(
            link,
            source="s1" if link.source == "s0" and link.target in ("h2", "h3") else link.source,
            target="s1" if link.target == "s0" and link.source in ("h2", "h3") else link.target,
        )
        for link in whole.links
    ]
    joined = [
        Link(source=one, target=other, bytes_per_second=10.0, latency_seconds=0.0)
        for one, other in (("s0", "s1"), ("s1", "s0"))
    ]
    cluster = replace(whole, switches=("s0", "s1"), links=(*moved, *joined))
    cost = cost_of(cluster, {(k, (k + 1) % 4): (0.5,) for k in range(4)}, Algorithm.RING)
    assert cost.division == (1,)
    assert cost.seconds == pytest.approx(1.5 / 0.5)


def test_without_a_rail_in_common_there_is_no_collective() -> None:
    with pytest.raises(InputError, match=r"^all_reduce on 2 devices: must have one way with"):
        cost_of(rails(2), {(0, 1): (1, 0), (1, 0): (0, 1)}, Algorithm.RING)
    cluster = rails(2, per_host=2)
    limits = limits_of(cluster, {(0, 1): (1, 0), (1, 0): (0, 1)})
    with pytest.raises(InputError, match=r"^all_reduce on 2 groups of devices: must have one way"):
        axis_model(cluster, Collective.ALL_REDUCE, [(0, 2), (1, 3)], limits)


def test_an_algorithm_without_a_rail_leaves_the_others() -> None:
    # A ring over three goes 0 -> 1 -> 2 -> 0, a tree both ways: only one of them is open.
    rates = {(0, 1): (1, 0), (1, 2): (1, 0), (2, 0): (1, 0), (1, 0): (0, 1)}
    cluster = rails(3)
    model = collective_model(
        cluster, Collective.ALL_REDUCE, range(3), limits=limits_of(cluster, rates)
    )
    assert [line.algorithm for line in model.lines] == [Algorithm.RING]


def test_routes_as_wide_as_their_number_of_links_stay_so() -> None:
    # Four links: 0.4 B/s, whatever the rails have; a limit below that counts.
    cluster = replace(rails(2), hop_bytes_per_second=(1.0, 0.8, 0.6, 0.4))
    for rate, expected in ((1.0, 0.4), (0.15, 0.3)):
        limits = limits_of(cluster, every_pair(2, rate, rate))
        assert spread_transfers(limits, [0], [1]).bytes_per_second == pytest.approx(expected)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_limits_that_are_never_reached_change_nothing(data: st.DataObject) -> None:
    cluster = data.draw(st.sampled_from([rails(3, per_host=2, latency=0.1), connected(5)]))
    devices = data.draw(st.lists(st.integers(0, cluster.num_devices - 1), min_size=2, unique=True))
    hosts = list(permutations(range(len(cluster.hosts)), 2))
    pairs = data.draw(st.lists(st.sampled_from(hosts), min_size=1, unique=True))
    limits = Limits(
        cluster=cluster,
        limits=tuple(
            HostLimit(source=one, target=other, bytes_per_second=1e30) for one, other in pairs
        ),
    )
    for collective in Collective:
        free = collective_model(cluster, collective, devices)
        model = collective_model(cluster, collective, devices, limits=limits)
        for line, other in zip(free.lines, model.lines, strict=True):
            assert line.latency_seconds == other.latency_seconds
            assert line.seconds_per_byte == pytest.approx(other.seconds_per_byte, rel=1e-12)
            assert line.amount_per_byte == pytest.approx(other.amount_per_byte, rel=1e-12)


@settings(max_examples=25, deadline=None)
@given(st.data())
def test_no_other_division_of_a_ring_is_faster(data: st.DataObject) -> None:
    rate = st.integers(1, 16).map(lambda k: k / 16)
    ring = [(0, 1), (1, 2), (2, 0)]
    rates = {pair: (data.draw(rate), data.draw(rate), data.draw(rate)) for pair in ring}
    cost = cost_of(rails(3, num_rails=3, rail=100.0), rates, Algorithm.RING)
    moved = 2 * 2 / 3
    steps = np.linspace(0, 1, 41)
    grid = [(one, two, 1 - one - two) for one, two in product(steps, steps) if one + two <= 1]
    found = min(
        max(moved * part / rates[pair][rail] for pair in ring for rail, part in enumerate(parts))
        for parts in grid
    )
    assert cost.seconds <= found * (1 + 1e-9)
    assert cost.seconds == pytest.approx(
        max(
            moved * part / rates[pair][rail]
            for pair in ring
            for rail, part in enumerate(cost.division)
        )
    )
