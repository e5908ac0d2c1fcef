"""Puts the layers of several chains in one line, each after all that it reads.

An encoder and a decoder have numbered layers of their own, as the way down and the way up of a
U-Net. Looks at which layers reach which, and at nothing else of them.
"""

from collections.abc import Sequence
from heapq import heapify, heappop, heappush

import numpy as np

from meshwright.graph.graph import Graph, Phase
from meshwright.graph.stack.name import Numbering


def join_chains(graph: Graph, chains: Sequence[Numbering]) -> Numbering | None:
    """One numbering of the layers of all chains; None where two of them need each other.

    Of layers that could be next the one is that the graph runs first.
    """
    start = np.cumsum([0, *(chain.num_layers for chain in chains)])
    node = np.full(graph.num_ops, -1, dtype=np.int32)
    for first, chain in zip(start.tolist(), chains, strict=False):
        node = np.where(chain.layer >= 0, chain.layer + np.int32(first), node)
    order = _sort(_find_needs(graph, node, int(start[-1])), _find_first(node, int(start[-1])))
    if order is None:
        return None
    place = np.empty(len(order) + 1, dtype=np.int32)
    place[order], place[-1] = np.arange(len(order)), -1
    return Numbering(
        pattern=" and ".join(chain.pattern for chain in chains),
        layer=place[node],
        num_layers=len(order),
        flops=sum(chain.flops for chain in chains),
    )


def _find_needs(graph: Graph, node: np.ndarray, count: int) -> list[set[int]]:
    """By layer those whose results it reads, itself left out; what is in no layer hands on."""
    needs: list[set[int]] = [set() for _ in range(count)]
    reached: list[set[int]] = [set()] * graph.num_ops
    for op in np.flatnonzero(graph.phase == Phase.FORWARD).tolist():
        found = set().union(*(reached[source] for source in graph.predecessors[op].tolist()))
        number = int(node[op])
        if number >= 0:
            needs[number] |= found - {number}
            found = {number}
        reached[op] = found
    return needs


def _find_first(node: np.ndarray, count: int) -> list[int]:
    """By layer its first op."""
    first = np.full(count, len(node))
    np.minimum.at(first, node[node >= 0], np.flatnonzero(node >= 0))
    return [int(each) for each in first]


def _sort(needs: Sequence[set[int]], first: Sequence[int]) -> list[int] | None:
    """The layers, each after those that it needs; None: there is no such order."""
    left = [len(each) for each in needs]
    readers: list[list[int]] = [[] for _ in needs]
    for number, each in enumerate(needs):
        for source in each:
            readers[source].append(number)
    ready = [(first[number], number) for number, count in enumerate(left) if not count]
    heapify(ready)
    order: list[int] = []
    while ready:
        _, number = heappop(ready)
        order.append(number)
        for reader in readers[number]:
            left[reader] -= 1
            if not left[reader]:
                heappush(ready, (first[reader], reader))
    return order if len(order) == len(needs) else None
