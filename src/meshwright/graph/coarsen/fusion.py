"""Operator fusion of QuickP (ICC 2025): an op and its only neighbour become one.

Link (i, j) fuses when out(i) = 1 and in(j) = 1; never when out(i) >= 2 and in(j) >= 2; else when
(p_i <= alpha and out(i) = 1) or (p_j <= alpha and in(j) = 1). Degrees count distinct neighbours as
they are after all fusions so far, and a fused op's delay p is the sum. So a fusion is always of a
node with its only successor or its only predecessor, and then the link is the only path: no fusion
makes a cycle (see `web`).

Ops are visited first in, first out, at the beginning in the graph's order; a visit tries the only
successor, then the only predecessor. Fusing i and j changes nothing for links that do not end in
the fused node m: p only grows, and a degree falls only for a node that was next to both, whose link
is now to m. So m is visited again, and the neighbours of whichever of i and j has fewer links,
since who is next to both is among them. A list that is walked in this way becomes part of one at
least twice as long: the total is O(links log links), and nothing that may fuse is left.
"""

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.compiled import Array, Bool, Float, Int, compiled, inlined
from meshwright.graph.coarsen.coarsening import Coarsening, contract
from meshwright.graph.coarsen.thresholds import percentile_threshold
from meshwright.graph.coarsen.web import (
    IN,
    OUT,
    Web,
    WebArrays,
    fits,
    merge,
    neighbour,
    one_neighbour,
)
from meshwright.graph.column import ANY_TYPE
from meshwright.graph.graph import Graph


def fuse_ops(
    graph: Graph, seconds: Floats, *, alpha: float | None = None, max_share: float | None = None
) -> Coarsening:
    """Fuse until nothing fuses any more.

    `seconds`: the delay of each op; `alpha`: which are small, the 90th percentile when None.
    `max_share`: what shares a device by fusion may take no more than this of all seconds; None: as
    published.
    """
    web = Web.of(graph, seconds)
    alpha = percentile_threshold(seconds) if alpha is None else alpha
    fuse_web(web, alpha, share_cap(seconds, max_share))
    return contract(graph, web.label(), seconds={ANY_TYPE: seconds})


def share_cap(seconds: Floats, max_share: float | None) -> float:
    """The seconds that a unit may have."""
    return np.inf if max_share is None else float(max_share * seconds.sum())


def fuse_web(web: Web, alpha: float, cap: float = np.inf) -> Ints:
    """Fuse nodes of a web by the rules; in rows, in order: the node that is kept, the one gone."""
    return _run(web, alpha, cap, False)


def follow_only_reader(web: Web) -> Ints:
    """Merge every node that one other node reads into that one; in rows, kept and gone."""
    return _run(web, np.inf, np.inf, True)


def _run(web: Web, alpha: float, cap: float, forward_only: bool) -> Ints:
    queue: Ints = np.arange(web.num_nodes, dtype=np.int32)
    is_queued = np.ones(web.num_nodes, dtype=np.bool_)
    merges = np.zeros((web.num_nodes, 2), dtype=np.int32)
    num_fused = _fuse(web.arrays, queue, is_queued, merges, alpha, cap, forward_only)
    return merges[:num_fused]


@compiled
def _fuse(
    web: WebArrays, queue: Array, is_queued: Array, merges: Array, alpha: Float, cap: Float,
    forward_only: Bool,
) -> Int:  # fmt: skip
    """Fuse the nodes of the queue and those that merges put back; returns how many merges."""
    nodes, links, units = web.nodes, web.links, web.units
    size = np.int64(len(queue))
    head, count, num_fused = np.int64(0), size, np.int64(0)
    while count > 0:
        node = np.int64(queue[head])
        head = head + 1 if head + 1 < size else np.int64(0)
        count -= 1
        is_queued[node] = False
        if nodes[node].parent != node:
            continue
        kept, gone = np.int64(-1), node
        other = one_neighbour(web, node, OUT)
        if (
            other >= 0
            and (nodes[node].seconds <= alpha or one_neighbour(web, other, IN) >= 0)
            and fits(nodes, units, node, other, cap)
        ):
            kept = other
        elif not forward_only:
            other = one_neighbour(web, node, IN)
            if (
                other >= 0
                and (nodes[node].seconds <= alpha or one_neighbour(web, other, OUT) >= 0)
                and fits(nodes, units, node, other, cap)
            ):
                kept = other
        if kept < 0:
            continue
        # The merged node stands where the only neighbour stood: it is the one that is kept.
        for way in (IN, OUT):
            shorter = kept if nodes[kept].num[way] < nodes[gone].num[way] else gone
            at = np.int64(nodes[shorter].first[way])
            while at >= 0:
                other = neighbour(web, at, way)
                count = enqueue(queue, is_queued, head, count, other)
                at = np.int64(links[at].next[way])
        merge(web, kept, gone)
        merges[num_fused, 0], merges[num_fused, 1] = kept, gone
        num_fused += 1
        count = enqueue(queue, is_queued, head, count, kept)
    return num_fused


@inlined
def enqueue(queue: Array, is_queued: Array, head: Int, count: Int, node: Int) -> Int:
    """Put a node at the end of the queue, once; the new length. Each node fits in it once."""
    if is_queued[node]:
        return count
    is_queued[node] = True
    end = head + count
    queue[end if end < len(queue) else end - len(queue)] = node
    return count + 1
