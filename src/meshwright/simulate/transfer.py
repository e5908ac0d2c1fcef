"""Times transfers pair by pair of those that occur, without the routes of all pairs.

What a team sends to a team goes member to member: as many flows of equal size side by side as the
larger team has members. The flows of a pair are one class: it is as fast as its slowest flow, and
puts on each link what of its flows goes there.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.cluster.cluster import Cluster
from meshwright.program.program import Kind, Program

Floats = npt.NDArray[np.float64]
Places = npt.NDArray[np.int64]
Records = npt.NDArray[np.void]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """The pairs of devices between which a program sends, and how fast each is alone."""

    rows: Places
    """The SENDs."""
    pair: Places
    """Of each its pair."""
    latency_seconds: Floats
    """By pair, of its slowest flow."""
    bytes_per_second: Floats
    """By pair, of all its flows, each as fast as the slowest."""
    use_start: Places
    """Where each pair's links begin in `use_link`, and where the last one's end."""
    use_link: npt.NDArray[np.int32]
    use_weight: Floats
    """Bytes on the link for each byte of the pair."""


def find_pairs(program: Program, cluster: Cluster, capacity: Floats) -> Pairs:
    """The pairs of a program; `capacity` is of the cluster's links and the plan's allocations."""
    kinds = program.instructions["kind"]
    rows = np.flatnonzero(kinds == Kind.SEND)
    device = program.instructions["device"][rows].astype(np.int64)
    key = device * cluster.num_devices + program.instructions["peer"][rows]
    keys, pair = np.unique(key, return_inverse=True)
    source, target, owner = _flows(program, *np.divmod(keys, cluster.num_devices))
    routes = cluster.routes_between(source, target)
    bandwidth = routes.bandwidth.copy()
    links, flow = routes.links.astype(np.int64), np.repeat(np.arange(len(source)), routes.hops)
    if program.allocations:
        allocated = _allocated(program, cluster, source, target)
        under = np.flatnonzero(allocated >= 0)
        bandwidth[under] = np.minimum(bandwidth[under], capacity[allocated[under]])
        links = np.concatenate((links, allocated[under]))
        flow = np.concatenate((flow, under))
    start = np.searchsorted(owner, np.arange(len(keys)))
    count = np.bincount(owner, minlength=len(keys))
    used, times = np.unique(owner[flow] * len(capacity) + links, return_counts=True)
    user, link = np.divmod(used, len(capacity))
    return Pairs(
        rows=rows,
        pair=pair,
        latency_seconds=np.maximum.reduceat(routes.latency, start) if len(keys) else np.zeros(0),
        bytes_per_second=np.minimum.reduceat(bandwidth, start) * count
        if len(keys)
        else np.zeros(0),
        use_start=np.searchsorted(user, np.arange(len(keys) + 1)),
        use_link=link.astype(np.int32),
        use_weight=times / count[user],
    )


def _flows(program: Program, sources: Places, targets: Places) -> tuple[Places, Places, Places]:
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

    def ends(devices: Places) -> Places:
        which = place * size[devices[owner]] // widths[owner]
        return np.asarray(member[offset[devices[owner]] + which])

    return ends(sources), ends(targets), owner


def _allocated(program: Program, cluster: Cluster, source: Places, target: Places) -> Places:
    """The link that stands for each flow's allocation; -1: it is under none."""
    number = {host: place for place, host in enumerate(cluster.hosts)}
    host = np.array([number[device.host] for device in cluster.devices], dtype=np.int64)
    table = {
        (number[each.source], number[each.target]): len(cluster.links) + place
        for place, each in enumerate(program.allocations)
    }
    ends = zip(host[source].tolist(), host[target].tolist(), strict=True)
    return np.array([table.get(each, -1) for each in ends], dtype=np.int64)
