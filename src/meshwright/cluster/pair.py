"""Routes of chosen pairs of devices, without the tables of all pairs.

Works on numbered nodes; knows nothing of clusters. The routes are those of
`meshwright.cluster.route`: fewest links, then widest, then by the target's number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Bools, Floats, Ints, Longs
from meshwright.cluster.route import (
    Adjacency,
    Network,
    Routing,
    find_routes_to,
    hop_bandwidth,
    links_by_node,
)

_LINKS_A_PAIR = 6
"""Room for links to begin with: what a route through leaf and spine has."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Routes:
    """The routes of a list of pairs, in its order. Arrays are read-only."""

    bandwidth: Floats
    """Bytes a second of one transfer alone; infinite from a device to itself."""
    latency: Floats
    """Seconds, the sum over the route's links; zero from a device to itself."""
    starts: Longs
    """Where each pair's links start in `links`, and where the last one's end."""
    links: Ints
    """The numbers of the links of all routes, one route after the other, each in order."""

    @property
    def hops(self) -> Longs:
        """Links on each route; zero from a device to itself."""
        return np.diff(self.starts)

    def links_of(self, place: int) -> Ints:
        """The links of one pair's route, in order."""
        return self.links[self.starts[place] : self.starts[place + 1]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RouteWiring:
    """A network with each node's links listed, as searches for single pairs want it."""

    network: Network
    entering: Adjacency
    leaving: Adjacency


def make_wiring(network: Network) -> RouteWiring:
    """List the links of every node."""
    entering, leaving = links_by_node(network)
    return RouteWiring(network=network, entering=entering, leaving=leaving)


def find_pairs(
    wiring: RouteWiring, sources: Ints, targets: Ints, hop_bytes_per_second: Sequence[float] = ()
) -> Routes:
    """The routes of these pairs of devices; `hop_bytes_per_second` as in `find_routes`."""
    # Imported here because Numba takes 0.3 s to import.
    from meshwright.cluster.pair_kernel import find_pair_routes

    network, count = wiring.network, len(sources)
    bandwidth, latency = np.empty(count), np.empty(count)
    starts = np.zeros(count + 1, dtype=np.int64)
    links = np.empty(_LINKS_A_PAIR * count, dtype=np.int32)
    rates = (network.sources, network.targets, network.bytes_per_second, network.latency_seconds)
    done = 0
    while done < count:
        done = find_pair_routes(
            0 if network.devices_relay else network.num_devices, network.num_devices, rates,
            wiring.entering, wiring.leaving, (sources, targets), done,
            (bandwidth, latency, starts, links), _scratch(network.num_nodes),
        )  # fmt: skip
        if done < count:  # the links of longer routes need more room
            links = np.concatenate([links, np.empty(len(links) + network.num_nodes, np.int32)])
    links = links[: starts[-1]].copy()
    if hop_bytes_per_second:
        bandwidth = hop_bandwidth(np.diff(starts), hop_bytes_per_second)
    return _read_only(bandwidth, latency, starts, links)


def read_pairs(routing: Routing, sources: Ints, targets: Ints) -> Routes:
    """The same from the tables of all pairs."""
    hops = routing.hops[sources, targets]
    starts = np.zeros(len(hops) + 1, dtype=np.int64)
    np.cumsum(hops, out=starts[1:])
    links = np.empty(starts[-1], dtype=np.int32)
    node, place = sources, np.arange(len(hops))  # of the pairs that have a link more
    for hop in range(int(hops.max(initial=0))):
        is_longer = hops[place] > hop
        node, place = node[is_longer], place[is_longer]
        link = routing.next_link[targets[place], node]
        links[starts[place] + hop] = link
        node = routing.link_targets[link]
    bandwidth, latency = routing.bandwidth[sources, targets], routing.latency[sources, targets]
    return _read_only(bandwidth, latency, starts, links)


def _read_only(bandwidth: Floats, latency: Floats, starts: Longs, links: Ints) -> Routes:
    for array in (bandwidth, latency, starts, links):
        array.flags.writeable = False
    return Routes(bandwidth=bandwidth, latency=latency, starts=starts, links=links)


def _scratch(
    num_nodes: int,
) -> tuple[Longs, Longs, Ints, Ints, Ints, Ints, Floats, Longs]:
    """Work arrays of the kernel."""
    seen, seen_back = np.full((2, num_nodes), -1, np.int64)
    depth, depth_back, order, order_back = np.empty((4, num_nodes), np.int32)
    width, equals = np.empty(num_nodes), np.empty((num_nodes, 2), np.int64)
    return seen, seen_back, depth, depth_back, order, order_back, width, equals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Cutout:
    """A network with only some of its devices, renumbered, and every other node."""

    network: Network
    devices: Ints
    """The number that each device has in the whole network, rising."""
    links: Ints
    """The number that each link has there."""
    num_devices: int
    """Of the whole network."""

    def places(self, devices: Ints) -> Ints:
        """The numbers here of devices by their numbers there."""
        return np.searchsorted(self.devices, devices).astype(np.int32)

    def routes_to(self, targets: Ints, hop_bytes_per_second: Sequence[float] = ()) -> Routing:
        """The routes from all devices here to these, by their numbers here, in tables."""
        return find_routes_to(
            targets, self.network, self.devices, self.num_devices, hop_bytes_per_second
        )


def find_extremes(
    num_nodes: int, nodes: Ints, numbers: npt.NDArray[np.integer[Any]]
) -> tuple[Longs, Longs]:
    """The lowest and the highest of some numbers, for each node: equal where it has one number, and
    the lowest above the highest, -1, where it has none."""
    lowest, highest = np.full(num_nodes, np.iinfo(np.int64).max), np.full(num_nodes, -1)
    np.minimum.at(lowest, nodes, numbers)
    np.maximum.at(highest, nodes, numbers)
    return lowest, highest


def cut_out(network: Network, devices: Ints) -> Cutout:
    """Leave out other devices, and nodes that lead nowhere then; if devices forward, all stay.

    Nodes and links keep their order, so that routes are chosen as in the whole network.
    """
    count = network.num_devices
    is_kept = np.ones(network.num_nodes, dtype=np.bool_)
    links = np.arange(len(network.sources), dtype=np.int32)
    if not network.devices_relay:
        is_kept[:count] = False
        is_kept[devices] = True
        links = _drop_dead_ends(network, is_kept)
    place = np.cumsum(is_kept, dtype=np.int32) - np.int32(1)
    kept = np.flatnonzero(is_kept[:count]).astype(np.int32)
    part = Network(
        num_devices=len(kept),
        num_nodes=int(place[-1]) + 1,
        sources=place[network.sources[links]],
        targets=place[network.targets[links]],
        bytes_per_second=network.bytes_per_second[links],
        latency_seconds=network.latency_seconds[links],
        devices_relay=network.devices_relay,
    )
    return Cutout(network=part, devices=kept, links=links, num_devices=count)


def _drop_dead_ends(network: Network, is_kept: Bools) -> Ints:
    """Leave out, too, nodes with fewer than two neighbours, again and again; the links kept."""
    links = np.flatnonzero(is_kept[network.sources] & is_kept[network.targets]).astype(np.int32)
    is_device = np.arange(network.num_nodes) < network.num_devices
    while True:
        sources, targets = network.sources[links], network.targets[links]
        ends = np.concatenate((sources, targets)), np.concatenate((targets, sources))
        lowest, highest = find_extremes(network.num_nodes, *ends)
        is_dead = is_kept & ~is_device & (lowest >= highest)
        if not is_dead.any():
            return links
        is_kept &= ~is_dead
        links = links[is_kept[sources] & is_kept[targets]]
