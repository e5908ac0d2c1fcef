"""Parmesan's clustering: the pair that is cheapest on one device is merged, again and again.

Of all linked pairs (u, v) that may be merged the one with the least
c_u(u) + c_u(v) - alpha c_m(u, v) is, until K clusters are left: c_u is a cluster's time, c_m what
moving the tensors between the two takes. A pair may be merged when the result is convex (no path
leaves it and comes back: the link is the only path) and its memory fits. A pair that may not is
forgotten: paths between two clusters vanish only, and memory never, by merging one of them, and all
pairs of a merged cluster are looked at anew.

A tensor that several ops of a cluster read moves there once, so c_m(x, m) is not the sum over m's
members: when a cluster is made, its later links of the same tensor die.
"""

import numpy as np

from meshwright.compiled import Array, Float, Int, compiled, inlined, outlined
from meshwright.graph.coarsen.path import PATH, find_path, settle
from meshwright.graph.coarsen.web import IN, OUT, Web, drop_link, fits, merge, neighbour
from meshwright.kernel.heap import VERSIONED, pop, push

_NODES, _ENTRIES, _SEARCHES = range(3)
"""Places in the array of counts."""


def cluster_web(
    web: Web, num_clusters: int, weight: float, seconds_per_byte: float, cap: float
) -> None:
    """Merge nodes of a web until `num_clusters` are left, or nothing may be merged."""
    num_nodes, num_links = web.num_nodes, len(web.links)
    heap = np.zeros(2 * num_links + 1, VERSIONED)
    counts = np.array([num_nodes, 0, 0], dtype=np.int64)
    slots, stacks = np.arange(num_nodes, dtype=np.int32), np.zeros((2, num_nodes), dtype=np.int32)
    seen, version = np.zeros(2, dtype=np.int64), np.zeros(num_nodes, dtype=np.int64)
    reached = np.full(int(web.links["tensor"].max(initial=0)) + 1, -1, dtype=np.int64)
    moved = np.zeros(num_nodes)
    _cluster(
        web.nodes, web.links, web.units, heap, counts, *web.pairs(), slots, stacks[0], stacks[1],
        seen, version, reached, moved, num_clusters, weight * seconds_per_byte, cap,
    )  # fmt: skip


@compiled
def _cluster(
    nodes: Array, links: Array, units: Array, heap: Array, counts: Array, source: Array,
    target: Array, size: Array, slots: Array, ahead: Array, behind: Array, seen: Array,
    version: Array, reached: Array, moved: Array, num_clusters: Int, per_byte: Float, cap: Float,
) -> None:  # fmt: skip
    for k in range(len(source)):
        _offer(nodes, heap, counts, version, source[k], target[k], size[k] * per_byte)
    num_merges = np.int64(0)
    while counts[_NODES] > num_clusters and counts[_ENTRIES] > 0:
        first, second = heap[0].code // len(nodes), heap[0].code % len(nodes)
        is_stale = heap[0].version != version[first] + version[second]
        pop(heap, 0, counts[_ENTRIES])
        counts[_ENTRIES] -= 1
        if is_stale or not fits(nodes, units, first, second, cap):
            continue
        counts[_SEARCHES] += 1
        search = counts[_SEARCHES]
        found = find_path(nodes, links, first, second, search, ahead, behind, seen)
        if found == PATH:
            continue
        place = settle(nodes, slots, first, second, search, found, ahead)
        merge(nodes, links, units, first, second)
        nodes[first].place = place
        slots[place] = first
        counts[_NODES] -= 1
        num_merges += 1
        # Versions rise and are never given back, so equal sums are equal versions.
        version[first] += 1
        version[second] += 1
        _kill_doubles(nodes, links, reached, first, num_merges)
        _offer_neighbours(nodes, links, heap, counts, version, moved, ahead, first, IN, per_byte)
        _offer_neighbours(nodes, links, heap, counts, version, moved, ahead, first, OUT, per_byte)


@inlined
def _offer(
    nodes: Array, heap: Array, counts: Array, version: Array, first: Int, second: Int, saved: Float
) -> None:
    if counts[_ENTRIES] == len(heap):
        _forget_stale(nodes, heap, counts, version)
    key = nodes[first].seconds + nodes[second].seconds - saved
    code = np.int64(first) * len(nodes) + second
    at = push(heap, 0, counts[_ENTRIES], key, code)
    heap[at].version = version[first] + version[second]
    counts[_ENTRIES] += 1


@outlined
def _forget_stale(nodes: Array, heap: Array, counts: Array, version: Array) -> None:
    """Live entries are of different pairs, which there are no more of than links."""
    left = np.int64(0)
    for k in range(counts[_ENTRIES]):
        first, second = heap[k].code // len(nodes), heap[k].code % len(nodes)
        now = version[first] + version[second]
        if heap[k].version == now:
            heap[push(heap, 0, left, heap[k].key, heap[k].code)].version = now
            left += 1
    counts[_ENTRIES] = left


@inlined
def _kill_doubles(nodes: Array, links: Array, reached: Array, node: Int, number: Int) -> None:
    """Let links into a new node die that are inner or of a tensor that it reads already.

    `reached`: of each tensor the number of the merge whose node has been found to read it.
    """
    at = np.int64(nodes[node].first[IN])
    while at >= 0:
        is_inner = neighbour(nodes, links, at, IN) == node
        if is_inner or links[at].is_dead or reached[links[at].tensor] == number:
            links[at].is_dead = True
        else:
            reached[links[at].tensor] = number
        at = np.int64(links[at].next[IN])


@outlined
def _offer_neighbours(
    nodes: Array, links: Array, heap: Array, counts: Array, version: Array, moved: Array,
    others: Array, node: Int, way: Int, per_byte: Float,
) -> None:  # fmt: skip
    """Offer a new node with each that reads it (OUT) or that it reads (IN); links that are dead or
    inner leave its list."""
    count = np.int64(0)
    before, at = np.int64(-1), np.int64(nodes[node].first[way])
    while at >= 0:
        after = np.int64(links[at].next[way])
        other = neighbour(nodes, links, at, way)
        if other == node or links[at].is_dead:
            drop_link(nodes, links, node, way, before, at)
        else:
            if moved[other] == 0.0:
                others[count] = other
                count += 1
                moved[other] = 1e-300  # a neighbour, though what it sends may have no bytes
            moved[other] += links[at].bytes
            before = at
        at = after
    for k in range(count):
        other = np.int64(others[k])
        source, target = (node, other) if way == OUT else (other, node)
        _offer(nodes, heap, counts, version, source, target, moved[other] * per_byte)
        moved[other] = 0.0
