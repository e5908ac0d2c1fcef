"""Counts what crosses each link when every device of a set sends to every other at once.

Knows routes; knows nothing about what that costs (see `meshwright.cost.rounds`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np

from meshwright.array import Ints, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.pair import cut_out
from meshwright.cluster.route import Routing

_TARGETS_AT_ONCE = 128
"""Whose tables are held together: 30 MB at 16,384 devices."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Crossings:
    """An exchange: what it puts on links, and its worst pairs."""

    counts: Longs
    """Of each link, how many pairs' routes cross it."""
    bytes_per_second: float
    """Of the narrowest pair."""
    latency_seconds: float
    """Of the slowest pair."""


_LAST: WeakKeyDictionary[Cluster, tuple[bytes, Crossings]] = WeakKeyDictionary()
"""Of each cluster the last exchange: each protocol asks for the same, which takes seconds for
thousands of devices."""


def count_crossings(cluster: Cluster, devices: Ints) -> Crossings:
    """Count over all ordered pairs of two or more devices."""
    known, found = _LAST.get(cluster, (b"", None))
    if found is None or known != devices.tobytes():
        found = _count(cluster, devices)
        _LAST[cluster] = devices.tobytes(), found
    return found


def _count(cluster: Cluster, devices: Ints) -> Crossings:
    # Imported here because Numba takes 0.3 s to import.
    from meshwright.cost.rounds_kernel import count_routes

    counts = np.zeros(len(cluster.links), dtype=np.int64)
    narrowest, slowest = np.inf, 0.0
    for sources, targets, links, routing in _tables(cluster, devices):
        num_nodes = routing.next_link.shape[1]
        nodes = (
            np.zeros(num_nodes, dtype=np.bool_),
            np.zeros(num_nodes, dtype=np.int32),
            np.zeros(num_nodes, dtype=np.int32),
        )
        here = np.zeros(len(routing.link_targets), dtype=np.int64)
        count_routes(sources, targets, (routing.next_link, routing.link_targets), nodes, here)
        counts[links] += here
        narrowest = min(narrowest, float(routing.bandwidth.take(sources, axis=0).min()))
        slowest = max(slowest, float(routing.latency.take(sources, axis=0).max()))
    return Crossings(counts=counts, bytes_per_second=narrowest, latency_seconds=slowest)


def _tables(cluster: Cluster, devices: Ints) -> Iterator[tuple[Ints, Ints, Ints | slice, Routing]]:
    """Some targets at a time, with the tables of routes to them.

    Gives sources and targets, as numbers of the tables' network, the number of each of its links in
    the cluster, and the tables.
    """
    if cluster.has_tables:
        whole = cluster.routing
        routing = Routing(
            bandwidth=whole.bandwidth.take(devices, axis=1),
            latency=whole.latency.take(devices, axis=1),
            hops=whole.hops,
            next_link=whole.next_link.take(devices, axis=0),
            link_targets=whole.link_targets,
        )
        yield devices, devices, slice(None), routing
        return
    cutout = cut_out(cluster.network, devices)
    places = cutout.places(devices)
    for start in range(0, len(places), _TARGETS_AT_ONCE):
        targets = places[start : start + _TARGETS_AT_ONCE]
        routing = cutout.routes_to(targets, cluster.hop_bytes_per_second)
        yield places, targets, cutout.links, routing
