"""The coarsening schemes that QuickP is compared with, each one function with the same arguments.

`graph`, `seconds` (the delay of each op), and as keywords what the scheme needs. Ops that share
state stay on one device in all of them; where ops of two such groups are merged, the groups unite.
Schemes that only say what shares a device (Spotlight, METIS) make groups, and merge inside a group
along links as far as no cycle comes of it, since what shares a device runs there one by one anyway.
"""

import re

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.compiled import Array, Int, compiled
from meshwright.errors import InputError
from meshwright.graph.coarsen.coarsening import Coarsening, contract, is_saved, unite
from meshwright.graph.coarsen.colocate import fuse_in_groups
from meshwright.graph.coarsen.fusion import follow_only_reader
from meshwright.graph.coarsen.parmesan import cluster_web
from meshwright.graph.coarsen.partition import partition_web
from meshwright.graph.coarsen.web import IN, OUT, Web, WebArrays, merge, neighbour
from meshwright.graph.column import ANY_TYPE
from meshwright.graph.graph import Graph
from meshwright.graph.merge import sum_by
from meshwright.kernel.heap import VERSIONED, pop, push


def coarsen_colocrl(graph: Graph, seconds: Floats) -> Coarsening:
    """ColocRL (Mirhoseini et al., ICML 2017): an op with one reader joins it, recursively."""
    web = Web.of(graph, seconds)
    follow_only_reader(web)
    return contract(graph, web.label(), seconds={ANY_TYPE: seconds})


def coarsen_placeto(graph: Graph, seconds: Floats, *, num_ops: int) -> Coarsening:
    """Placeto (Addanki et al., NeurIPS 2019): the cheapest merges into a successor until N remain.

    Into the successor that comes first: no other path leads to that one, so no cycle arises. An op
    that nothing reads merges into the last of those it reads, for the same reason: in a training
    step there are as many such ops as parameters. Ops without neighbours stay. Of equally cheap ops
    the first is taken.
    """
    _check_count("num_ops", num_ops)
    web = Web.of(graph, seconds)
    heap, version = np.zeros(graph.num_ops, VERSIONED), np.zeros(graph.num_ops, dtype=np.int64)
    _merge_cheapest(web.arrays, heap, version, num_ops)
    return contract(graph, web.label(), seconds={ANY_TYPE: seconds})


@compiled
def _merge_cheapest(web: WebArrays, heap: Array, version: Array, num_ops: Int) -> None:
    """Merge the cheapest node with its next reader, else with its last source, again and again.

    A merge takes one entry and gives one, so the heap never grows.
    """
    nodes, links = web.nodes, web.links
    count = np.int64(len(nodes))
    for node in range(count):
        heap[push(heap, 0, node, nodes[node].seconds, node)].version = 0
    left = count
    while left > num_ops and count > 0:
        node = heap[0].code
        is_stale = heap[0].version != version[node]
        pop(heap, 0, count)
        count -= 1
        if is_stale or nodes[node].parent != node:
            continue
        best = np.int64(-1)
        at = np.int64(nodes[node].first[OUT])
        while at >= 0:
            other = neighbour(web, at, OUT)
            at = np.int64(links[at].next[OUT])
            if other != node and (best < 0 or nodes[other].place < nodes[best].place):
                best = other
        if best < 0:
            at = np.int64(nodes[node].first[IN])
            while at >= 0:
                other = neighbour(web, at, IN)
                at = np.int64(links[at].next[IN])
                if other != node and (best < 0 or nodes[other].place > nodes[best].place):
                    best = other
        if best < 0:
            continue
        merge(web, best, node)
        left -= 1
        version[best] += 1
        at = push(heap, 0, count, nodes[best].seconds, best)
        heap[at].version = version[best]
        count += 1


def coarsen_spotlight(graph: Graph, seconds: Floats, *, num_levels: int = 2) -> Coarsening:
    """Spotlight (Gao, Chen, Li, ICML 2018): ops whose names begin with the same two levels.

    Levels end at "/" or ".", of the module's path or, where there is none, of the op's name.
    """
    _check_count("num_levels", num_levels)
    prefixes = [
        "/".join(re.split(r"[/.]", module or name)[:num_levels])
        for module, name in zip(graph.module, graph.op_names, strict=True)
    ]
    number = {prefix: k for k, prefix in enumerate(dict.fromkeys(prefixes))}
    group = np.array([number[prefix] for prefix in prefixes], dtype=np.int32)
    return merge_groups(graph, seconds, group)


def coarsen_metis(graph: Graph, seconds: Floats, *, num_groups: int, seed: int = 0) -> Coarsening:
    """METIS's partition of the ops into `num_groups` groups."""
    _check_count("num_groups", num_groups)
    group = partition_web(Web.of(graph, seconds), num_groups, seed)
    return merge_groups(graph, seconds, group)


def coarsen_parmesan(
    graph: Graph,
    seconds: Floats,
    *,
    seconds_per_byte: float,
    num_clusters: int,
    weight: float = 1.0,
    memory_bytes: float = np.inf,
) -> Coarsening:
    """Parmesan's clustering (see `parmesan`) until `num_clusters` are left; `weight`: its alpha,
    `seconds_per_byte`: 1 / b.

    What shares a device by it holds `memory_bytes` at most: state, what is saved, and outputs that
    backward ops read.
    """
    _check_count("num_clusters", num_clusters)
    web = Web.of(graph, seconds, _held_bytes(graph))
    cluster_web(web, num_clusters, weight, seconds_per_byte, memory_bytes)
    return contract(graph, web.label(), seconds={ANY_TYPE: seconds})


def merge_groups(graph: Graph, seconds: Floats, group: Ints) -> Coarsening:
    """Co-locate ops by `group` (-1: none) and merge inside groups where no cycle comes of it."""
    web = Web.of(graph, seconds)
    ops = np.arange(graph.num_ops, dtype=np.int32)
    together = unite(graph.num_ops, [(ops, graph.group), (ops, group)])
    fuse_in_groups(web, together)
    return contract(graph, web.label(), together, {ANY_TYPE: seconds})


def _held_bytes(graph: Graph) -> Floats:
    """What each op's device holds for it at the turn from forward to backward."""
    held = sum_by(graph.tensor_source, graph.tensor_bytes * is_saved(graph), graph.num_ops)
    return graph.state_bytes + graph.saved_bytes + held


def _check_count(name: str, value: int) -> None:
    if value < 1:
        raise InputError(f"{name} must be positive, got {value}")
