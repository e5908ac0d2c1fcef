"""QuickP's pipeline (ICC 2025 and the thesis): fusion, co-location, fusion in groups, expansion.

Rank r_i = p_i + max over successors j of (r_j + t_ij / b), where t_ij are the bytes of the distinct
tensors that j reads of i. Every op with more than one successor joins the successor with the
largest r_j + t_ij / b (of equal ones the first); what is joined, directly or not, is a group.
Inside a group i and j fuse when that makes no cycle and (all successors of i are in the group or
p_j < alpha). The three steps are repeated, groups made anew each time, until none changes anything;
then an ungrouped op with p < beta joins the neighbouring group that it exchanges most bytes with
(of equal ones that of the first neighbour), and so on from what has joined. Which neighbouring
group is left open by the papers; the authors' program takes any.

Under the percentile rule (ICC 2025) there is one threshold: beta is alpha. Thresholds are those of
the graph's own ops, not of fused ones.

Ops that share state are one group from the start: in their place the papers have none. Joins reach
far: in a training step every forward op is read by the next one and by its backward op, and the
chain of joins along the critical path may take in most of the step. `max_share` is for that: what
shares a device by a join, a fusion or an expansion may take no more than this share of all seconds
(the join with the largest r_j + t_ij / b comes first). None is as published.
"""

from typing import NamedTuple

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.compiled import Array, Float, Int, compiled
from meshwright.errors import InputError, quoted
from meshwright.graph.coarsen.coarsening import Coarsening, contract
from meshwright.graph.coarsen.fusion import enqueue, fuse_web, share_cap
from meshwright.graph.coarsen.path import PathState, make_path_state, merge_if_convex
from meshwright.graph.coarsen.thresholds import percentile_threshold, slope_thresholds
from meshwright.graph.coarsen.web import Web, WebArrays, find, fits, unite_units
from meshwright.graph.column import ANY_TYPE
from meshwright.graph.graph import Graph
from meshwright.kernel.root import roots_of


def coarsen_quickp(
    graph: Graph,
    seconds: Floats,
    *,
    seconds_per_byte: float,
    rule: str = "percentile",
    max_share: float | None = None,
) -> Coarsening:
    """The whole pipeline.

    `seconds`: the delay of each op; `seconds_per_byte`: 1 / b; `rule`: where the thresholds come
    from, "percentile" or "slopes"; the others as in `fuse_ops`.
    """
    alpha, beta = find_thresholds(seconds, rule)
    cap = share_cap(seconds, max_share)
    web = Web.of(graph, seconds)
    label = np.arange(graph.num_ops, dtype=np.int32)
    while True:
        num_fused = len(fuse_web(web, alpha, cap))
        if num_fused:
            web, label = _renew(web, label)
        group = join_critical(web, seconds_per_byte, cap)
        num_inside = len(fuse_in_groups(web, group, alpha))
        if num_inside:
            web, label = _renew(web, label)
        if num_fused + num_inside == 0:
            break
    expand_groups(web, group, beta, cap)
    return contract(graph, label, group[label], {ANY_TYPE: seconds})


def find_thresholds(seconds: Floats, rule: str) -> tuple[float, float]:
    """Alpha and beta by the rule's name."""
    if rule == "percentile":
        alpha = percentile_threshold(seconds)
        return alpha, alpha
    if rule == "slopes":
        return slope_thresholds(seconds)
    raise InputError(f"rule must be 'percentile' or 'slopes', got {quoted(rule)}")


def _renew(web: Web, label: Ints) -> tuple[Web, Ints]:
    own = web.label()
    return web.contracted(own), own[label]


def join_critical(web: Web, seconds_per_byte: float, cap: float = np.inf) -> Ints:
    """The group of each node (-1: none) after every node with several successors has joined one.

    Nodes of one unit are in one group.
    """
    source, target, size = web.pairs()
    start = np.searchsorted(source, np.arange(web.num_nodes + 1))
    rank, joined = np.zeros(web.num_nodes), np.full(web.num_nodes, -1, dtype=np.int32)
    urgency = np.zeros(web.num_nodes)
    seconds = np.ascontiguousarray(web.nodes["seconds"])
    _fill_ranks(start, target, size * seconds_per_byte, seconds, rank, joined, urgency)
    # Sets of nodes on a device, as the web's units are, but for this time only.
    sets = web.units.copy()
    by_urgency = np.lexsort((np.arange(web.num_nodes), -urgency))
    _join_all(web.nodes, sets, by_urgency[joined[by_urgency] >= 0], joined, cap)
    together = roots_of(sets["parent"])[web.nodes["unit"]]
    return _number_groups(together, np.bincount(together, minlength=len(sets)) > 1)


def _number_groups(label: Ints, is_group: Array) -> Ints:
    """Labels that are groups, numbered; -1 for the others."""
    number = np.where(is_group, np.cumsum(is_group) - 1, -1).astype(np.int32)
    group: Ints = number[label]
    return group


@compiled
def _fill_ranks(
    start: Array, target: Array, moved: Array, seconds: Array, rank: Array, joined: Array,
    urgency: Array,
) -> None:  # fmt: skip
    for node in range(len(rank) - 1, -1, -1):
        longest, best = 0.0, np.int64(-1)
        for k in range(start[node], start[node + 1]):
            way = rank[target[k]] + moved[k]
            if best < 0 or way > longest:
                longest, best = way, np.int64(target[k])
        rank[node] = seconds[node] + longest
        if start[node + 1] - start[node] > 1:
            joined[node], urgency[node] = best, longest


@compiled
def _join_all(nodes: Array, sets: Array, order: Array, joined: Array, cap: Float) -> None:
    for k in range(len(order)):
        node = order[k]
        other = np.int64(joined[node])
        if fits(nodes, sets, node, other, cap):
            unite_units(sets, nodes[node].unit, nodes[other].unit)


def fuse_in_groups(web: Web, group: Ints, alpha: float = np.inf) -> Ints:
    """Merge along links inside groups, where no cycle comes of it, until nothing changes.

    Links are gone through by source and target, again and again; a link that may not be merged can
    only come to it when one of its ends has been. Returns in rows, in order: the node that is kept
    (a source), the one gone.
    """
    inside = np.flatnonzero(
        (group[web.links["source"]] == group[web.links["target"]])
        & (group[web.links["source"]] >= 0)
    )
    num_nodes = web.num_nodes
    web.nodes["mark"] = -1  # of searches before, which had the same numbers
    leaving = web.links["source"][group[web.links["source"]] != group[web.links["target"]]]
    num_leaving = np.bincount(leaving, minlength=num_nodes)
    last_change = np.full(num_nodes, -1, dtype=np.int64)
    merges = np.zeros((num_nodes, 2), dtype=np.int32)
    num_merged = _merge_inside(
        web.arrays, make_path_state(num_nodes), inside, num_leaving, alpha, last_change, merges
    )
    return merges[:num_merged]


@compiled
def _merge_inside(
    web: WebArrays, paths: PathState, inside: Array, num_leaving: Array, alpha: Float,
    last_change: Array, merges: Array,
) -> Int:  # fmt: skip
    """Merge along the links `inside`; returns how many times.

    `last_change` is the number of the last merge that each node was part of.
    """
    nodes, links, num_merged = web.nodes, web.links, np.int64(0)
    before, count = np.int64(-1), np.int64(len(inside))
    changed_since = np.int64(-1)
    while num_merged != before:
        before = num_merged
        left = np.int64(0)
        for k in range(count):
            link = inside[k]
            first, second = find(nodes, links[link].source), find(nodes, links[link].target)
            if first == second:
                continue
            inside[left] = link
            left += 1
            # Neither end has changed since the link was tried, in vain.
            if last_change[first] < changed_since and last_change[second] < changed_since:
                continue
            if num_leaving[first] > 0 and not nodes[second].seconds < alpha:
                continue
            if not merge_if_convex(web, paths, first, second):
                continue
            num_leaving[first] += num_leaving[second]
            merges[num_merged, 0], merges[num_merged, 1] = first, second
            num_merged += 1
            last_change[first] = num_merged
            left -= 1
        changed_since = before + 1
        count = left
    return num_merged


def expand_groups(web: Web, group: Ints, beta: float, cap: float = np.inf) -> None:
    """Let ungrouped nodes with less than `beta` join neighbouring groups, in place."""
    source, target, size = web.pairs()
    ends, others = np.concatenate((source, target)), np.concatenate((target, source))
    order = np.lexsort((others, ends))
    start = np.searchsorted(ends[order], np.arange(web.num_nodes + 1))
    num_groups = int(group.max(initial=-1)) + 1
    seconds = np.ascontiguousarray(web.nodes["seconds"])
    load = np.bincount(group + 1, weights=seconds, minlength=num_groups + 1)[1:].astype(np.float64)
    can_join = (group < 0) & (seconds < beta)
    queue = np.zeros(web.num_nodes, dtype=np.int32)
    queue[: can_join.sum()] = np.flatnonzero(can_join)
    growth = _Growth(
        start, others[order], np.concatenate((size, size))[order], seconds, group, can_join,
        can_join.copy(), queue, load, np.zeros(num_groups),
    )  # fmt: skip
    _expand(growth, int(can_join.sum()), cap)


class _Growth(NamedTuple):
    """Nodes that join the groups around them, for kernels."""

    start: Array
    """Where the neighbours of each node begin; one entry more than nodes."""
    others: Array
    """Neighbours, node after node."""
    size: Array
    """The bytes between a node and each neighbour."""
    seconds: Array
    group: Array
    """The group of each node; -1: none."""
    can_join: Array
    is_queued: Array
    queue: Array
    """A ring of nodes that are still to be looked at."""
    load: Array
    """The seconds of each group."""
    bytes_to: Array
    """Zero for each group, but while a node is looked at."""


@compiled
def _expand(growth: _Growth, count: Int, cap: Float) -> None:
    """First in, first out; who has joined sends those around it that may join to the end."""
    start, others, group, queue = growth.start, growth.others, growth.group, growth.queue
    bytes_to = growth.bytes_to
    head = np.int64(0)
    while count > 0:
        node = np.int64(queue[head])
        head = head + 1 if head + 1 < len(queue) else np.int64(0)
        count -= 1
        growth.is_queued[node] = False
        for k in range(start[node], start[node + 1]):
            if group[others[k]] >= 0:
                bytes_to[group[others[k]]] += growth.size[k]
        best = np.int64(-1)
        for k in range(start[node], start[node + 1]):
            other = np.int64(group[others[k]])
            is_better = best < 0 or (other >= 0 and bytes_to[other] > bytes_to[best])
            if other >= 0 and is_better and growth.load[other] + growth.seconds[node] <= cap:
                best = other
        for k in range(start[node], start[node + 1]):
            if group[others[k]] >= 0:
                bytes_to[group[others[k]]] = 0.0
        if best < 0:
            continue
        group[node] = best
        growth.can_join[node] = False
        growth.load[best] += growth.seconds[node]
        for k in range(start[node], start[node + 1]):
            other = np.int64(others[k])
            if growth.can_join[other]:
                count = enqueue(queue, growth.is_queued, head, count, other)
