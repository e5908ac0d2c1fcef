"""The compiled walks along routes that add up loads. Work on plain arrays; see `rounds`."""

from typing import Any

from meshwright.compiled import compiled


@compiled
def add_loads(
    transfers: tuple[Any, Any, Any],
    pairs: tuple[Any, Any],
    routes: tuple[Any, Any],
    loads: Any,
) -> tuple[float, float]:
    """Add every transfer's amount to the links on its route.

    `transfers` are sources, targets and amounts; `pairs` bandwidth and latency (source x target);
    `routes` the next link (target x node) and each link's target. Gives the time of the slowest
    transfer alone without latency, and the latency of the slowest route.
    """
    sources, targets, amounts = transfers
    bandwidth, latency = pairs
    next_link, link_targets = routes
    alone, slowest = 0.0, 0.0
    for place in range(sources.size):
        node, target, amount = sources[place], targets[place], amounts[place]
        alone = max(alone, amount / bandwidth[node, target])
        slowest = max(slowest, latency[node, target])
        while node != target:
            link = next_link[target, node]
            loads[link] += amount
            node = link_targets[link]
    return alone, slowest


@compiled
def slowest_pairs(devices: Any, bandwidth: Any, latency: Any) -> tuple[float, float]:
    """The least bandwidth and the largest latency between any two of the devices."""
    narrowest, slowest = bandwidth[devices[0], devices[1]], 0.0
    for source in devices:
        for target in devices:
            narrowest = min(narrowest, bandwidth[source, target])
            slowest = max(slowest, latency[source, target])
    return narrowest, slowest


@compiled
def count_exchange(
    devices: Any, routes: tuple[Any, Any], nodes: tuple[Any, Any, Any], counts: Any
) -> None:
    """Add to each link's count the pairs of devices whose route crosses it.

    All routes to one target form a tree, so each of its links is visited once, from the leaves
    on: an inner node waits until all nodes below it have handed on how many routes they carry.
    `nodes` are three arrays over nodes to work in, zero before and after: whether a node waits,
    the nodes below it that have not handed on, and the routes it carries.
    """
    next_link, link_targets = routes
    is_waiting, num_below, num_routes = nodes
    for target in devices:
        for source in devices:
            num_routes[source] = 1
            node = source
            while node != target and not is_waiting[node]:
                is_waiting[node] = True
                node = link_targets[next_link[target, node]]
                num_below[node] += 1
        for source in devices:
            node = source
            while node != target and is_waiting[node] and num_below[node] == 0:
                is_waiting[node] = False
                link = next_link[target, node]
                counts[link] += num_routes[node]
                above = link_targets[link]
                num_routes[above] += num_routes[node]
                num_below[above] -= 1
                num_routes[node] = 0
                node = above
        num_routes[target] = 0
