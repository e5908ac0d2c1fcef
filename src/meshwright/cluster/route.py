"""Routes between all pairs of devices. Works on numbered nodes; knows nothing of clusters.

A route has the fewest links, and is the widest of those; among equals each node forwards by the
number of the destination, as forwarding tables do, so that all routes to one device form a tree.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]


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
    # Imported here because Numba takes 0.3 s to import, which only routing should cost.
    from meshwright.cluster.route_kernel import fill_routes

    devices, nodes = network.num_devices, network.num_nodes
    # Filled target by target, hence column by column; rows are what readers walk along.
    bandwidth = np.full((devices, devices), np.inf, order="F")
    latency = np.zeros((devices, devices), order="F")
    hops = np.zeros((devices, devices), dtype=np.int32, order="F")
    next_link = np.full((devices, nodes), -1, dtype=np.int32)
    if devices > 1:
        fill_routes(
            0 if network.devices_relay else devices,
            (network.sources, network.targets),
            (network.bytes_per_second, network.latency_seconds),
            _links_by_node(network.targets, np.argsort(network.targets, kind="stable"), nodes),
            _links_by_node(network.sources, np.lexsort((network.targets, network.sources)), nodes),
            (bandwidth, latency, hops, next_link),
            _scratch(nodes, len(network.sources)),
        )
    bandwidth, latency, hops = map(np.ascontiguousarray, (bandwidth, latency, hops))
    if hop_bytes_per_second:
        table = np.array([np.inf, *hop_bytes_per_second])
        bandwidth = table[np.minimum(hops, len(hop_bytes_per_second))]
    for array in (bandwidth, latency, hops, next_link):
        array.flags.writeable = False
    return Routing(
        bandwidth=bandwidth,
        latency=latency,
        hops=hops,
        next_link=next_link,
        link_targets=network.targets,
    )


def _links_by_node(
    ends: Ints, order: npt.NDArray[np.int64], num_nodes: int
) -> tuple[npt.NDArray[np.int64], Ints]:
    """Link numbers in `order`, which sorts their ends, and where each node's begin."""
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
