"""The pairs of hosts that can have rates, and what waits for what in a placement with an order.

On the arrays that searches for placements work on, and as they time them: every transfer takes its
latency and its bytes over its rate, whatever else moves. For plans of every kind, with queues and
sharing, there is `meshwright.search.method.bandwidth.rate.allocate`.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints, Longs, count_up, places_in
from meshwright.cluster.cluster import Cluster
from meshwright.kernel.row import follow_lines
from meshwright.search.instance import Instance
from meshwright.search.method.bandwidth.rate.precedence import ARC, Precedence
from meshwright.search.method.bandwidth.rate.room import Pair, RateRoom, make_room


@dataclass(frozen=True, kw_only=True, eq=False)
class HostPairs:
    """The pairs of hosts that can be given rates, and what limits these."""

    pairs: tuple[Pair, ...]
    number: Longs
    """Source host x target host: place in `pairs`; -1: not among them."""
    room: RateRoom
    host_of: Longs
    """Of each device."""
    own_bytes_per_second: Floats
    """Source device x target device: what the links carry that no rate is about."""


def find_host_pairs(cluster: Cluster) -> HostPairs:
    """All pairs of hosts of a cluster that have a way."""
    pairs = tuple(pair for pair, ways in sorted(cluster.ways.links.items()) if ways)
    number = np.full((len(cluster.hosts), len(cluster.hosts)), -1, dtype=np.int64)
    for k, pair in enumerate(pairs):
        number[pair] = k
    return HostPairs(
        pairs=pairs,
        number=number,
        room=make_room(cluster, [{pair: 1.0} for pair in pairs]),
        host_of=cluster.host_of,
        own_bytes_per_second=_own_rates(cluster, number),
    )


def place_precedence(
    instance: Instance, hosts: HostPairs, device_of_op: Ints, order: Ints
) -> Precedence:
    """What waits for what when ops run on these devices in this order."""
    num_ops = instance.num_ops
    order = np.asarray(order, dtype=np.int64)
    device_of = np.asarray(device_of_op, dtype=np.int64)
    position = places_in(order, num_ops, np.int64)
    # Of each op the arc from the one before it on its device, then those of what it reads.
    begin, count = instance.in_start[order].astype(np.int64), np.diff(instance.in_start)[order]
    first = np.zeros(num_ops + 2, np.int32)
    np.cumsum(count + 1, out=first[2:])
    reader = np.repeat(np.arange(num_ops), count)
    edge = count_up(count) + begin[reader]
    arcs = np.zeros(len(reader) + num_ops, ARC)
    seconds = instance.seconds[order, instance.type_of[device_of[order]]]
    arcs["target"] = np.repeat(np.arange(1, num_ops + 1), count + 1)
    arcs["fixed"] = np.repeat(seconds, count + 1)
    arcs["pair"] = -1
    before, after = follow_lines(device_of[order])
    arcs["source"][first[1:-1][after]] = before + 1
    reads = np.ones(len(arcs), dtype=np.bool_)
    reads[first[1:-1]] = False
    _set_reads(
        arcs, np.flatnonzero(reads), instance, hosts, edge, position, device_of, order[reader]
    )
    return Precedence(arcs=arcs, first_in=first, num_pairs=len(hosts.pairs))


def _set_reads(
    arcs: npt.NDArray[np.void], places: Longs, instance: Instance, hosts: HostPairs,
    edge: Longs, position: Longs, device_of: Longs, reader: npt.NDArray[np.integer[Any]],
) -> None:  # fmt: skip
    """Fill in the arcs of what ops read."""
    writer = instance.in_edges["op"][edge]
    size = instance.in_edges["bytes"][edge]
    here, there = device_of[writer], device_of[reader]
    moves = here != there
    pair = np.where(moves, hosts.number[hosts.host_of[here], hosts.host_of[there]], -1)
    latency = instance.latency[here, there]  # zero on one device, where bandwidth is infinite
    fixed = latency + np.where(pair >= 0, 0.0, size / instance.bandwidth[here, there])
    # What is saved elsewhere waits for nothing: from the start of the step, in no time.
    is_free = (size < 0) & moves
    arcs["source"][places] = np.where(is_free, 0, position[writer] + 1)
    arcs["fixed"][places] += np.where(is_free, 0.0, fixed)
    between = (pair >= 0) & ~is_free
    arcs["pair"][places] = np.where(between, pair, -1)
    arcs["amount"][places] = np.where(between, size, 0.0)
    arcs["least"][places] = np.where(between, size / hosts.own_bytes_per_second[here, there], 0.0)


def _own_rates(cluster: Cluster, number: Longs) -> Floats:
    """Of each pair of devices what the links of its route carry that are not between its hosts."""
    rates = np.full((cluster.num_devices, cluster.num_devices), np.inf)
    ends = np.argwhere(number[cluster.host_of[:, None], cluster.host_of] >= 0)
    if not len(ends):
        return rates
    routes = cluster.routes_between(ends[:, 0], ends[:, 1])
    capacity = np.where(is_between_hosts(cluster), np.inf, cluster.link_bytes_per_second)
    start = np.cumsum(routes.hops) - routes.hops
    rates[ends[:, 0], ends[:, 1]] = np.minimum.reduceat(capacity[routes.links], start)
    return rates


def is_between_hosts(cluster: Cluster) -> npt.NDArray[np.bool_]:
    """Of each link whether neither end is a device: traffic that has a rate leaves these for its
    ways."""
    network = cluster.network
    first = network.num_devices
    return np.asarray((network.sources >= first) & (network.targets >= first))
