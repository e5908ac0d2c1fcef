"""Times transfers pair by pair of those that occur, without the routes of all pairs.

What a team sends to a team goes member to member: as many flows of equal size side by side as the
larger team has members. The flows of a pair are one class: it is as fast as its slowest flow, and
puts on each link what of its flows goes there. Between hosts with an allocation over several ways a
flow goes over all of them.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Ints, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.cost.limit import Limits, spread_transfers
from meshwright.program.program import Kind, Program


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """The pairs of devices between which a program sends, and how fast each is alone."""

    rows: Longs
    """The SEND instructions."""
    pair: Longs
    """Of each its pair."""
    latency_seconds: Floats
    """By pair, of its slowest flow."""
    bytes_per_second: Floats
    """By pair, of all its flows, each as fast as the slowest."""
    use_start: Longs
    """Where each pair's links begin in `use_link`, and where the last one's end."""
    use_link: Ints
    use_weight: Floats
    """Bytes on the link for each byte of the pair."""


def find_pairs(program: Program, cluster: Cluster, limits: Limits | None) -> Pairs:
    """The pairs of a program; `limits` are its allocations."""
    kinds = program.instructions["kind"]
    rows = np.flatnonzero(kinds == Kind.SEND)
    device = program.instructions["device"][rows].astype(np.int64)
    key = device * cluster.num_devices + program.instructions["peer"][rows]
    keys, pair = np.unique(key, return_inverse=True)
    source, target, owner = _flows(program, *np.divmod(keys, cluster.num_devices))
    latency, rate, uses = _spread(cluster, limits, source, target, owner)
    start = np.searchsorted(owner, np.arange(len(keys)))
    count = np.bincount(owner, minlength=len(keys))
    used, weight = uses
    user, link = np.divmod(used, len(cluster.links) + len(program.allocations))
    return Pairs(
        rows=rows,
        pair=pair,
        latency_seconds=np.maximum.reduceat(latency, start) if len(keys) else np.zeros(0),
        bytes_per_second=np.minimum.reduceat(rate, start) * count if len(keys) else np.zeros(0),
        use_start=np.searchsorted(user, np.arange(len(keys) + 1)),
        use_link=link.astype(np.int32),
        use_weight=weight / count[user],
    )


def _spread(
    cluster: Cluster, limits: Limits | None, source: Longs, target: Longs, owner: Longs
) -> tuple[Floats, Floats, tuple[Longs, Floats]]:
    """Latency and rate of every flow alone, and what the flows of a pair put on links: the pair
    and the link as one number, rising, and the weight there."""
    if limits is None:
        routes = cluster.routes_between(source, target)
        pair = np.repeat(owner, routes.hops)
        used, times = np.unique(pair * len(cluster.links) + routes.links, return_counts=True)
        return routes.latency, routes.bandwidth, (np.asarray(used), times.astype(np.float64))
    spread = spread_transfers(limits, source, target)
    key = owner[spread.transfer] * len(limits.capacity) + spread.link
    used, place = np.unique(key, return_inverse=True)
    weight = np.bincount(place, weights=spread.weight, minlength=len(used)).astype(np.float64)
    return spread.latency_seconds, spread.bytes_per_second, (np.asarray(used), weight)


def _flows(program: Program, sources: Longs, targets: Longs) -> tuple[Longs, Longs, Longs]:
    """Source and target of every flow, and its pair, by pair."""
    size = np.ones(program.num_devices, dtype=np.int64)
    offset = np.arange(program.num_devices, dtype=np.int64)
    members = [offset, *(np.array(team, dtype=np.int64) for team in program.teams)]
    length = program.num_devices
    for team in program.teams:
        size[team[0]], offset[team[0]] = len(team), length
        length += len(team)
    member = np.concatenate(members)
    member[: program.num_devices] = np.arange(program.num_devices)
    widths = np.maximum(size[sources], size[targets])
    owner = np.repeat(np.arange(len(sources)), widths)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(widths) - widths, widths)

    def ends(devices: Longs) -> Longs:
        which = place * size[devices[owner]] // widths[owner]
        return np.asarray(member[offset[devices[owner]] + which])

    return ends(sources), ends(targets), owner
