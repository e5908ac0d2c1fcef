"""How devices hang in a network, so that the route of one pair tells those of all pairs like it.

Works on numbered nodes; knows nothing of clusters. A device hangs plainly when it has one way out
of its host: one link each way to a node that others share, its anchor, straight or through one node
that is its host's own. Exchanging two devices that hang from one anchor by links that are alike
leaves routes between others as they are, and so does exchanging two anchors whose links to all
further nodes are alike. Hence bandwidth, number of links and latency from a device to one of
another host depend on the kinds of the two and on whether their anchors are the same alone.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Bools, Floats, Longs
from meshwright.cluster.pair import find_extremes
from meshwright.cluster.route import Network


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Hangings:
    """What tells routes between devices of different hosts apart."""

    kind: Longs
    """Of each device: equal for those that hang alike from anchors that stand alike."""
    anchor: Longs
    """Of each device: the node from which it hangs."""


def find_hangings(network: Network, host_of: Longs) -> Hangings | None:
    """The hangings of all devices, by each one's host; None unless all hang plainly.

    Nor are there any where links that routes share differ in latency: of two ways that are equally
    short and wide one might then take longer, and which is taken depends on the device.
    """
    sources, targets, count = network.sources, network.targets, network.num_devices
    is_device = np.arange(network.num_nodes) < count
    direct = np.flatnonzero(is_device[sources] & is_device[targets])
    if network.devices_relay or (host_of[sources[direct]] != host_of[targets[direct]]).any():
        return None
    is_own, is_dead_end = _own_nodes(network, host_of)
    is_outer = ~is_own & ~is_device
    shared = np.flatnonzero(is_outer[sources] & is_outer[targets])
    first = _joints(network, np.arange(count), ~is_device & ~is_dead_end)
    second = _joints(network, np.flatnonzero(is_own & ~is_dead_end), is_outer)
    if first is None or second is None or len(np.unique(network.latency_seconds[shared])) > 1:
        return None
    step, further = np.arange(network.num_nodes), np.zeros((network.num_nodes, 4))
    step[is_own & ~is_dead_end], further[is_own & ~is_dead_end] = second
    anchor = step[first[0]]
    stand = _stands(network, np.unique(anchor), shared)
    rows = np.column_stack([stand[anchor], first[1], further[first[0]]])
    kind = np.unique(rows, axis=0, return_inverse=True)[1].ravel()
    return Hangings(kind=kind, anchor=anchor)


def _own_nodes(network: Network, host_of: Longs) -> tuple[Bools, Bools]:
    """Which nodes are one host's own, and which of these lead nowhere else.

    A host's own node joins only devices of that host, and at most one node besides.
    """
    count = network.num_devices
    nodes = np.concatenate((network.sources, network.targets))
    ends = np.concatenate((network.targets, network.sources))
    is_device = ends < count
    own = find_extremes(network.num_nodes, nodes[is_device], host_of[ends[is_device]])
    other = find_extremes(network.num_nodes, nodes[~is_device], ends[~is_device])
    is_own = (own[0] == own[1]) & (other[0] >= other[1])
    is_own[:count] = False
    return is_own, is_own & (other[1] < 0)


def _joints(network: Network, nodes: Longs, is_other: Bools) -> tuple[Longs, Floats] | None:
    """The one other node that each node is joined to, and the rates and latencies there and back.

    None unless each of the nodes, which rise, has exactly one link each way to others.
    """
    is_node = np.zeros(network.num_nodes, dtype=np.bool_)
    is_node[nodes] = True
    ends, links, others = [], [], []
    for one, other in ((network.sources, network.targets), (network.targets, network.sources)):
        chosen = np.flatnonzero(is_node[one] & is_other[other])
        chosen = chosen[np.argsort(one[chosen], kind="stable")]
        ends.append(one[chosen])
        others.append(other[chosen])
        links.append(chosen)
    if not all(np.array_equal(each, nodes) for each in ends) or (others[0] != others[1]).any():
        return None
    values = (network.bytes_per_second, network.latency_seconds)
    return others[0].astype(np.int64), np.column_stack([v[each] for v in values for each in links])


def _stands(network: Network, anchors: Longs, shared: Longs) -> Longs:
    """For each node that is an anchor, a number: equal for those whose shared links are alike."""
    rows: list[Floats] = []
    for one, other in ((network.sources, network.targets), (network.targets, network.sources)):
        chosen = shared[np.isin(one[shared], anchors)]
        way = np.full(len(chosen), len(rows))
        rate = network.bytes_per_second[chosen]
        rows.append(np.column_stack([one[chosen], way, other[chosen], rate]))
    table = np.concatenate(rows)
    table = table[np.lexsort(table.T[::-1])]
    starts = np.searchsorted(table[:, 0], [*anchors, network.num_nodes])
    known: dict[bytes, int] = {}
    stand = np.zeros(network.num_nodes, dtype=np.int64)
    for anchor, start, stop in zip(anchors, starts, starts[1:], strict=False):
        stand[anchor] = known.setdefault(table[start:stop, 1:].tobytes(), len(known))
    return stand
