"""A cluster's links as one protocol of a library uses them. Knows routes, no collectives."""

from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.kind import KINDS, Protocol, Use

_ABSENT = Use()
"""What a protocol makes of links that it is not used on."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Wire:
    """Of every link of a cluster, what a protocol makes of it."""

    protocol: Protocol
    bytes_per_second: Floats
    latency_seconds: Floats
    """A step over the link."""
    call_seconds: Floats
    """What it adds to a call that uses it; of all links the most counts."""
    own_part: Floats
    """See `LinkKind.own_part`; of all links the least counts."""

    def path_seconds(
        self, cluster: Cluster, sources: npt.ArrayLike, targets: npt.ArrayLike
    ) -> Floats:
        """The latency of the route of each pair of devices."""
        routes = cluster.routes_between(sources, targets)
        pair = np.repeat(np.arange(len(routes.hops)), routes.hops)
        weights = self.latency_seconds[routes.links]
        return np.bincount(pair, weights=weights, minlength=len(routes.hops)).astype(np.float64)


_WIRES: WeakKeyDictionary[Cluster, dict[Protocol, Wire]] = WeakKeyDictionary()
"""Those of each cluster that were asked for: they follow from frozen data."""


def find_wire(cluster: Cluster, protocol: Protocol) -> Wire:
    """The links of a cluster under a protocol."""
    known = _WIRES.setdefault(cluster, {})
    if protocol not in known:
        uses = {name: kind.uses.get(protocol, _ABSENT) for name, kind in KINDS.items()}
        of_link = [uses[link.kind] for link in cluster.links]
        latency = np.array([link.latency_seconds for link in cluster.links])
        known[protocol] = Wire(
            protocol=protocol,
            bytes_per_second=cluster.link_bytes_per_second * [use.share for use in of_link],
            latency_seconds=latency * [use.delay for use in of_link],
            call_seconds=np.array([use.call_seconds for use in of_link]),
            own_part=np.array([KINDS[link.kind].own_part for link in cluster.links]),
        )
    return known[protocol]


def find_wires(cluster: Cluster, protocols: Sequence[Protocol]) -> tuple[Wire | None, ...]:
    """The links under each protocol; None where they are of no kind and are used as they are."""
    if not cluster.has_kinds:
        return (None,)
    return tuple(find_wire(cluster, protocol) for protocol in protocols)


def has_switch(cluster: Cluster, devices: Ints) -> bool:
    """Whether all of these devices, in this order, reach the next one through a switch that adds
    up what passes."""
    if not cluster.has_kinds:
        return False
    routes = cluster.routes_between(devices, np.roll(devices, -1))
    kinds = {cluster.links[link].kind for link in routes.links.tolist()}
    is_through = bool((routes.hops == 2).all())
    return is_through and all(Protocol.SWITCH in KINDS[kind].uses for kind in kinds)
