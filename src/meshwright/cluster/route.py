"""Routes between all pairs of devices. Works on numbered nodes; knows nothing of clusters.

A route has the fewest links, and is the widest of those; among equals each node forwards by the
number of the destination, as forwarding tables do, so that all routes to one device form a tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints, Longs

Adjacency = tuple[Longs, Ints]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Network:
    """Numbered nodes (devices first) and their links, as arrays: what a search for routes needs."""

    num_devices: int
    num_nodes: int
    sources: Ints
    """Of each link, the node it leaves."""
    targets: Ints
    bytes_per_second: Floats
    latency_seconds: Floats
    devices_relay: bool


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routing:
    """The route from every device to every other. Arrays are read-only."""

    bandwidth: Floats
    """Bytes a second, source x target; infinite to itself."""
    latency: Floats
    """Seconds, the sum over the route's links; zero to itself."""
    hops: Ints
    """Links on the route; zero to itself."""
    next_link: Ints
    """The link by which a node forwards to a device, target device x node; -1 where no route
    passes."""
    link_targets: Ints
    """Of each link, the node it enters."""

    def links(self, source: int, target: int) -> Ints:
        """The numbers of the links on the route, in order; none from a device to itself."""
        route = np.empty(self.hops[source, target], dtype=np.int32)
        node = source
        for place in range(route.size):
            route[place] = self.next_link[target, node]
            node = int(self.link_targets[route[place]])
        return route


def find_routes(network: Network, hop_bytes_per_second: Sequence[float] = ()) -> Routing:
    """All routes of a network in which every device reaches every other.

    With `hop_bytes_per_second` a route's bandwidth follows from its number of links alone: the
    first entry is for one link, the last for that many or more.
    """
    devices = np.arange(network.num_devices, dtype=np.int32)
    return find_routes_to(devices, network, devices, network.num_devices, hop_bytes_per_second)


def find_routes_to(
    targets: Ints,
    network: Network,
    numbers: Ints,
    num_numbers: int,
    hop_bytes_per_second: Sequence[float] = (),
) -> Routing:
    """The routes from all devices to these, in whose order the tables' targets stand.

    `numbers`, each below `num_numbers`, are what routes to each device are spread by: the devices'
    own, or those they have in a network that this one is a part of.
    """
    # Imported here because Numba takes 0.3 s to import, which only routing should cost.
    from meshwright.cluster.route_kernel import fill_routes

    shape, nodes = (network.num_devices, len(targets)), network.num_nodes
    # Filled target by target, hence column by column; rows are what readers walk along.
    bandwidth = np.full(shape, np.inf, order="F")
    latency = np.zeros(shape, order="F")
    hops = np.zeros(shape, dtype=np.int32, order="F")
    next_link = np.full((len(targets), nodes), -1, dtype=np.int32)
    if network.num_devices > 1:
        fill_routes(
            (0 if network.devices_relay else network.num_devices, network.num_devices, num_numbers),
            (targets, numbers),
            (network.sources, network.targets),
            (network.bytes_per_second, network.latency_seconds),
            *links_by_node(network),
            (bandwidth, latency, hops, next_link),
            _scratch(nodes, len(network.sources)),
        )
    bandwidth, latency, hops = map(np.ascontiguousarray, (bandwidth, latency, hops))
    if hop_bytes_per_second:
        bandwidth = hop_bandwidth(hops, hop_bytes_per_second)
    for array in (bandwidth, latency, hops, next_link):
        array.flags.writeable = False
    return Routing(
        bandwidth=bandwidth,
        latency=latency,
        hops=hops,
        next_link=next_link,
        link_targets=network.targets,
    )


def hop_bandwidth(
    hops: npt.NDArray[np.integer[Any]], hop_bytes_per_second: Sequence[float]
) -> Floats:
    """The bandwidth of routes of so many links; infinite for none."""
    table = np.array([np.inf, *hop_bytes_per_second])
    rates: Floats = table[np.minimum(hops, len(hop_bytes_per_second))]
    return rates


def links_by_node(network: Network) -> tuple[Adjacency, Adjacency]:
    """The links that enter each node, and those that leave it in order of target and number.

    Each as link numbers, node after node, and where a node's begin.
    """
    entering = np.argsort(network.targets, kind="stable")
    leaving = np.lexsort((network.targets, network.sources))
    return (
        _adjacency(network.targets, entering, network.num_nodes),
        _adjacency(network.sources, leaving, network.num_nodes),
    )


def _adjacency(ends: Ints, order: Longs, num_nodes: int) -> Adjacency:
    offset = np.searchsorted(ends[order], np.arange(num_nodes + 1))
    return offset.astype(np.int64), order.astype(np.int32)


def _scratch(num_nodes: int, num_links: int) -> tuple[Ints, Ints, Ints, Floats, Floats, Ints]:
    """Work arrays of the kernel: level, order, equals, width, seconds, span."""
    return (
        np.empty(num_nodes, np.int32),
        np.empty(num_nodes, np.int32),
        np.empty(num_links, np.int32),
        np.empty(num_nodes, np.float64),
        np.empty(num_nodes, np.float64),
        np.empty(num_nodes, np.int32),
    )
