"""The tiers of a cluster's network, found from its bandwidths alone. Knows nothing of hosts."""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.kernel.disjoint import DisjointSets


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One tier: the groups of devices that stay joined when slower pairs are cut."""

    bytes_per_second: float
    """Every group is joined by pairs of devices that reach each other at this rate or faster."""
    groups: tuple[tuple[int, ...], ...]
    """Device numbers, rising, in order of each group's first; every device is in one group."""


def levels(cluster: Cluster) -> tuple[Level, ...]:
    """The tiers from the innermost (fastest) to the outermost, whose one group holds all devices.

    For each bandwidth from the highest down, the connected components of the pairs at or above
    it; a level wherever these change. A pair counts at the slower of its two directions. One
    device alone has no levels.
    """
    if cluster.num_devices == 1:
        return ()
    tree = None if cluster.has_tables else link_tree(cluster)
    rates, ends = tree or _widest_tree(cluster.bandwidth)
    group = np.arange(cluster.num_devices)
    found = []
    for rate in sorted(set(rates.tolist()), reverse=True):
        for place in np.flatnonzero(rates == rate):
            kept, merged = sorted((group[ends[place, 0]], group[ends[place, 1]]))
            group[group == merged] = kept
        found.append(Level(bytes_per_second=rate, groups=_members(group)))
    return tuple(found)


def link_tree(cluster: Cluster) -> tuple[Floats, Longs] | None:
    """A maximum spanning tree found along the links, without all pairs; None where that fails.

    Devices that links at or above a rate leave apart cannot reach each other at it: so a tree
    joined link by link, the widest first (Kruskal), is no narrower than one of pairs. It is one of
    pairs, too, if each of its pairs really has the rate of the link that joined it.
    """
    network = cluster.network
    order = np.argsort(-network.bytes_per_second, kind="stable")
    link_rates = network.bytes_per_second[order]
    if cluster.hop_bytes_per_second:  # whatever the links, no route is wider
        link_rates = np.full(len(order), max(cluster.hop_bytes_per_second))
    places, ends = _join_links(
        network.num_nodes,
        network.num_devices,
        network.sources[order].tolist(),
        network.targets[order].tolist(),
    )
    rates = link_rates[places]
    there, back = (cluster.routes_between(ends[:, k], ends[:, 1 - k]).bandwidth for k in (0, 1))
    return (rates, ends) if (np.minimum(there, back) == rates).all() else None


def _join_links(
    num_nodes: int, num_devices: int, sources: list[int], targets: list[int]
) -> tuple[list[int], Longs]:
    """The links that join devices for the first time, and a pair of devices that each joins.

    A link between devices joins these; else the first devices of what it joins stand for them.
    """
    sets = DisjointSets(range(num_nodes))  # the root of each is its lowest node: a device, if any
    places, ends = [], []
    for place, pair in enumerate(zip(sources, targets, strict=True)):
        roots = [sets.find(node) for node in pair]
        if roots[0] == roots[1]:
            continue
        sets.join(*roots)
        if max(roots) < num_devices:
            places.append(place)
            both = zip(pair, roots, strict=True)
            ends.append([node if node < num_devices else root for node, root in both])
    return places, np.array(ends, dtype=np.int64)


def _widest_tree(bandwidth: Floats) -> tuple[Floats, Longs]:
    """A maximum spanning tree (Prim): the rate and the two ends of its edges.

    Components of the pairs at or above a rate are those of the tree's edges at or above it, so
    the distinct rates of all pairs, up to millions, need not be tried.
    """
    num_devices = len(bandwidth)
    best = np.minimum(bandwidth[0], bandwidth[:, 0])
    parent = np.zeros(num_devices, dtype=np.int64)
    best[0] = -1.0
    rates = np.empty(num_devices - 1)
    ends = np.empty((num_devices - 1, 2), dtype=np.int64)
    is_inside = np.zeros(num_devices, dtype=bool)
    is_inside[0] = True
    for step in range(num_devices - 1):
        node = int(np.argmax(best))
        rates[step], ends[step] = best[node], (parent[node], node)
        is_inside[node] = True
        reach = np.minimum(bandwidth[node], bandwidth[:, node])
        is_better = (reach > best) & ~is_inside
        best[is_better], parent[is_better] = reach[is_better], node
        best[node] = -1.0
    return rates, ends


def _members(group: Longs) -> tuple[tuple[int, ...], ...]:
    members: dict[int, list[int]] = {}
    for device, label in enumerate(group.tolist()):
        members.setdefault(label, []).append(device)
    return tuple(tuple(each) for each in members.values())
