"""Allocations over several ways between hosts: laws that hold for all of them."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from unittest.mock import PropertyMock, patch

import numpy as np
import pytest
from allocated_plans import allocated, placed, ring
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from link_use import link_use
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Allocation
from meshwright.simulate.simulate import simulate
from small import dag, rails

rates = st.integers(1, 40).map(lambda k: k / 8)


@st.composite
def shares_of(draw: st.DrawFn, num_ways: int) -> tuple[float, ...]:
    counts = draw(st.lists(st.integers(0, 4), min_size=num_ways, max_size=num_ways))
    assume(sum(counts))
    return tuple(each / sum(counts) for each in counts)


@st.composite
def allocations_of(
    draw: st.DrawFn, num_hosts: int, num_ways: int, divided: bool = True
) -> tuple[Allocation, ...]:
    pairs = draw(st.lists(st.sampled_from(list(permutations(range(num_hosts), 2))), unique=True))
    return tuple(
        allocated(*pair, draw(rates), *(draw(shares_of(num_ways)) if divided else ()))
        for pair in pairs
    )


@st.composite
def graphs(draw: st.DrawFn, *, is_chain: bool = False) -> Graph:
    seconds = draw(st.lists(st.integers(0, 5).map(float), min_size=2, max_size=7))
    pairs = [(k, k + 1) for k in range(len(seconds) - 1)]
    if not is_chain:
        known = [(a, b) for b in range(len(seconds)) for a in range(b)]
        pairs = draw(st.lists(st.sampled_from(known), unique=True))
    return dag(seconds, {pair: draw(st.integers(0, 12).map(float)) for pair in pairs})


def places(graph: Graph, num_devices: int) -> st.SearchStrategy[list[int]]:
    count = graph.num_ops
    return st.lists(st.integers(0, num_devices - 1), min_size=count, max_size=count)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_raising_an_allocation_never_slows_a_chain(data: st.DataObject) -> None:
    graph = data.draw(graphs(is_chain=True))
    limits = data.draw(allocations_of(3, 2))
    assume(limits)
    devices = data.draw(places(graph, 3))
    raised = data.draw(st.integers(0, len(limits) - 1))
    rate = limits[raised].bytes_per_second * data.draw(st.floats(1, 4))
    more = replace(limits[raised], bytes_per_second=rate)
    after = (*limits[:raised], more, *limits[raised + 1 :])
    cluster = rails(3)
    seconds = [
        simulate(graph, cluster, placed(graph, devices, *each), sharing="none").step_seconds
        for each in (limits, after)
    ]
    assert seconds[1] <= seconds[0] * (1 + 1e-12)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.sampled_from(["none", "fair"]))
def test_one_share_of_one_way_is_no_share(data: st.DataObject, sharing: str) -> None:
    cluster = rails(3, num_rails=1, per_host=2, device=2.0)
    graph = data.draw(graphs())
    limits = data.draw(allocations_of(3, 1, divided=False))
    whole = tuple(replace(each, shares=(1.0,)) for each in limits)
    devices = data.draw(places(graph, 6))
    timelines = [
        simulate(graph, cluster, placed(graph, devices, *each), sharing=sharing)
        for each in (limits, whole)
    ]
    assert np.array_equal(timelines[0].finish, timelines[1].finish)


@settings(max_examples=20, deadline=None)
@given(st.data(), st.sampled_from(["none", "fair"]))
def test_one_share_of_one_way_is_no_share_to_rings(data: st.DataObject, sharing: str) -> None:
    cluster = rails(3, num_rails=1, per_host=2, device=2.0)
    limits = data.draw(allocations_of(3, 1, divided=False))
    whole = tuple(replace(each, shares=(1.0,)) for each in limits)
    members = data.draw(st.lists(st.integers(0, 5), min_size=2, unique=True))
    seconds = []
    for each in (limits, whole):
        graph, plan = ring(5, members, *each)
        seconds.append(simulate(graph, cluster, plan, sharing=sharing).step_seconds)
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-12)


@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 4))
def test_links_never_bind_allocations_within_them(data: st.DataObject, num_ways: int) -> None:
    # Equal shares of rates of which each host's sum, out and in, is at most what its links carry.
    graph = data.draw(graphs())
    wanted = {pair: data.draw(rates) for pair in permutations(range(3), 2)}
    busiest = max(
        sum(rate for pair, rate in wanted.items() if pair[side] == host)
        for host in range(3)
        for side in range(2)
    )
    shares = (1 / num_ways,) * num_ways
    limits = [allocated(*pair, rate * num_ways / busiest, *shares) for pair, rate in wanted.items()]
    plan = placed(graph, data.draw(places(graph, 6)), *limits)
    seconds = [
        simulate(
            graph, rails(3, num_rails=num_ways, per_host=2, rail=rate, device=1e9), plan
        ).step_seconds
        for rate in (1.0, 1e9)
    ]
    assert seconds[0] == pytest.approx(seconds[1], rel=1e-9)


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from(["none", "fair"]))
def test_listed_pairs_take_what_tables_say(data: st.DataObject, sharing: str) -> None:
    cluster = rails(3, per_host=2, device=data.draw(rates))
    graph = data.draw(graphs())
    plan = placed(graph, data.draw(places(graph, 6)), *data.draw(allocations_of(3, 2)))
    by_table = simulate(graph, cluster, plan, sharing=sharing)
    with patch.object(Cluster, "has_tables", new_callable=PropertyMock, return_value=False):
        listed = simulate(graph, replace(cluster, name="listed"), plan, sharing=sharing)
    assert listed.network.leaves_out_wide
    assert not by_table.network.leaves_out_wide
    assert listed.finish == pytest.approx(by_table.finish, rel=1e-9)


def plain_finishes(
    cluster: Cluster,
    limits: Sequence[Allocation],
    flows: Sequence[tuple[int, int, float]],
    num_ways: int,
) -> list[float]:
    """When flows of so many bytes end that all start at 0, by a plain fluid model.

    Each link is known by its ends; a flow that has an allocation puts its shares on the rails.
    """
    given_limits = {(each.source, each.target): each for each in limits}
    capacity: dict[object, float] = {
        (link.source, link.target): link.bytes_per_second for link in cluster.links
    }
    capacity |= {each: limit.bytes_per_second for each, limit in given_limits.items()}
    loads: list[dict[object, float]] = []
    for source, target, _ in flows:
        one, other = cluster.devices[source], cluster.devices[target]
        load: dict[object, float] = {(one.name, one.host): 1.0, (other.host, other.name): 1.0}
        if one.host == other.host:
            loads.append(load)
            continue
        limit = given_limits.get((one.host, other.host))
        if limit is None:
            route = cluster.routing.links(source, target)
            load |= {(cluster.links[k].source, cluster.links[k].target): 1.0 for k in route}
        else:
            load[one.host, other.host] = 1.0
            for way in range(num_ways):
                load[one.host, f"s{way}"] = load[f"s{way}", other.host] = limit.shares[way]
        loads.append(load)
    return _fluid(loads, capacity, [size for _, _, size in flows])


def _fluid(
    loads: Sequence[dict[object, float]], capacity: dict[object, float], sizes: list[float]
) -> list[float]:
    left, finish, now = list(sizes), [0.0] * len(sizes), 0.0
    while any(left):
        active = [k for k, size in enumerate(left) if size]
        rate, free = dict.fromkeys(active, 0.0), set(active)
        while free:  # raise all that are free alike until something is full
            room = {
                link: full - sum(rate[k] * loads[k].get(link, 0.0) for k in active)
                for link, full in capacity.items()
            }
            growing = {link: sum(loads[k].get(link, 0.0) for k in free) for link in capacity}
            step = min(room[link] / growing[link] for link in capacity if growing[link] > 0)
            for k in free:
                rate[k] += step
            full = {
                link
                for link in capacity
                if growing[link] > 0 and room[link] - step * growing[link] < 1e-9
            }
            free -= {k for k in free if any(loads[k].get(link, 0.0) > 0 for link in full)}
        until = min(left[k] / rate[k] for k in active)
        now += until
        for k in active:
            left[k] -= rate[k] * until
            if left[k] < 1e-9:
                left[k], finish[k] = 0.0, now
    return finish


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_flows_over_ways_equal_a_plain_fluid_model_and_stay_within_capacity(
    data: st.DataObject,
) -> None:
    cluster = rails(3, per_host=2, device=data.draw(rates))
    limits = data.draw(allocations_of(3, 2))
    pairs = data.draw(
        st.lists(
            st.sampled_from(list(permutations(range(6), 2))), min_size=1, max_size=8, unique=True
        )
    )
    flows = [(*pair, data.draw(st.integers(1, 12).map(float))) for pair in pairs]
    count = len(flows)
    graph = dag([0.0] * (2 * count), {(k, count + k): flows[k][2] for k in range(count)})
    devices = [source for source, _, _ in flows] + [target for _, target, _ in flows]
    plan = placed(graph, devices, *limits)
    timeline = simulate(graph, cluster, plan, with_links=True)
    expected = plain_finishes(cluster, limits, flows, 2)
    assert timeline.finish[count : 2 * count] == pytest.approx(expected, rel=1e-6)
    for link, rate in enumerate(timeline.network.link_bytes_per_second.tolist()):
        assert link_use(timeline, link)[1].max() <= rate * (1 + 1e-9)
