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

from typing import NamedTuple

import numpy as np

from meshwright.compiled import Array, Float, Int, compiled, inlined, outlined
from meshwright.graph.coarsen.path import PathState, make_path_state, merge_if_convex
from meshwright.graph.coarsen.web import IN, OUT, Web, WebArrays, drop_link, fits, neighbour
from meshwright.kernel.heap import VERSIONED, pop, push


class ClusterState(NamedTuple):
    """A web that is being clustered, for kernels."""

    web: WebArrays
    paths: PathState
    heap: Array
    """Pairs that may be merged, the cheapest first; some are stale."""
    num_entries: Array
    """How many pairs are in the heap, as one entry."""
    version: Array
    """How many merges each node has been part of."""
    reached: Array
    """The number of the last merge whose node has been found to read each tensor."""
    moved: Array
    """Bytes between a node and each of its neighbours, zero between two uses."""
    others: Array
    """Room for the neighbours of a node."""
    per_byte: Float
    """The weight of a byte that is not moved."""


def cluster_web(
    web: Web, num_clusters: int, weight: float, seconds_per_byte: float, cap: float
) -> None:
    """Merge nodes of a web until `num_clusters` are left, or nothing may be merged."""
    num_nodes = web.num_nodes
    state = ClusterState(
        web.arrays, make_path_state(num_nodes), np.zeros(2 * len(web.links) + 1, VERSIONED),
        np.zeros(1, np.int64), np.zeros(num_nodes, np.int64),
        np.full(int(web.links["tensor"].max(initial=0)) + 1, -1, np.int64), np.zeros(num_nodes),
        np.zeros(num_nodes, np.int32), float(weight * seconds_per_byte),
    )  # fmt: skip
    _cluster(state, *web.pairs(), num_clusters, cap)


@compiled
def _cluster(
    state: ClusterState, source: Array, target: Array, size: Array, num_clusters: Int, cap: Float
) -> None:
    """Merge pairs, of which there are at first those from `source` to `target`."""
    nodes, heap, version = state.web.nodes, state.heap, state.version
    for k in range(len(source)):
        _offer(state, source[k], target[k], size[k])
    num_left, num_merges = np.int64(len(nodes)), np.int64(0)
    while num_left > num_clusters and state.num_entries[0] > 0:
        first, second = heap[0].code // len(nodes), heap[0].code % len(nodes)
        is_stale = heap[0].version != version[first] + version[second]
        pop(heap, 0, state.num_entries[0])
        state.num_entries[0] -= 1
        if is_stale or not fits(nodes, state.web.units, first, second, cap):
            continue
        if not merge_if_convex(state.web, state.paths, first, second):
            continue
        num_left -= 1
        num_merges += 1
        # Versions rise and are never given back, so equal sums are equal versions.
        version[first] += 1
        version[second] += 1
        _kill_doubles(state, first, num_merges)
        _offer_neighbours(state, first, IN)
        _offer_neighbours(state, first, OUT)


@inlined
def _offer(state: ClusterState, first: Int, second: Int, moved: Float) -> None:
    """Put a pair, between which so many bytes move, on the heap."""
    nodes, heap, version = state.web.nodes, state.heap, state.version
    if state.num_entries[0] == len(heap):
        _forget_stale(state)
    key = nodes[first].seconds + nodes[second].seconds - moved * state.per_byte
    code = np.int64(first) * len(nodes) + second
    at = push(heap, 0, state.num_entries[0], key, code)
    heap[at].version = version[first] + version[second]
    state.num_entries[0] += 1


@outlined
def _forget_stale(state: ClusterState) -> None:
    """Live entries are of different pairs, which there are no more of than links."""
    heap, version, num_nodes = state.heap, state.version, len(state.web.nodes)
    left = np.int64(0)
    for k in range(state.num_entries[0]):
        first, second = heap[k].code // num_nodes, heap[k].code % num_nodes
        now = version[first] + version[second]
        if heap[k].version == now:
            heap[push(heap, 0, left, heap[k].key, heap[k].code)].version = now
            left += 1
    state.num_entries[0] = left


@inlined
def _kill_doubles(state: ClusterState, node: Int, number: Int) -> None:
    """Let links into a merged node die that are inner or of a tensor that it reads already."""
    links, reached = state.web.links, state.reached
    at = np.int64(state.web.nodes[node].first[IN])
    while at >= 0:
        is_inner = neighbour(state.web, at, IN) == node
        if is_inner or links[at].is_dead or reached[links[at].tensor] == number:
            links[at].is_dead = True
        else:
            reached[links[at].tensor] = number
        at = np.int64(links[at].next[IN])


@outlined
def _offer_neighbours(state: ClusterState, node: Int, way: Int) -> None:
    """Offer a new node with each that reads it (OUT) or that it reads (IN); links that are dead or
    inner leave its list."""
    web, moved, others = state.web, state.moved, state.others
    count = np.int64(0)
    before, at = np.int64(-1), np.int64(web.nodes[node].first[way])
    while at >= 0:
        after = np.int64(web.links[at].next[way])
        other = neighbour(web, at, way)
        if other == node or web.links[at].is_dead:
            drop_link(web, node, way, before, at)
        else:
            if moved[other] == 0.0:
                others[count] = other
                count += 1
                moved[other] = 1e-300  # a neighbour, though what it sends may have no bytes
            moved[other] += web.links[at].bytes
            before = at
        at = after
    for k in range(count):
        other = np.int64(others[k])
        source, target = (node, other) if way == OUT else (other, node)
        _offer(state, source, target, moved[other])
        moved[other] = 0.0
