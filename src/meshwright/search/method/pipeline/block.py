"""What must share a stage: the ops of a step as blocks, which come before which, and the wires.

A block is a forward op with its backward and update ops, and whatever else cannot be on another
stage: ops of its co-location group, and all ops of a cycle of "not after". A forward tensor goes to
the same stage or a later one, a gradient to the same or an earlier one. So every chain of downsets
of blocks is a legal pipeline, not only the prefixes of one order, as in
`search/method/pipeline/chain.py`; anchors and the wrapped end (of weights tied across the model)
are found there. Knows nothing of times.

A few places that nothing joins to the rest (the counters of batch normalisation), that only feed
one place (a table of position biases) or only read one (a statistic) could each be in any stage
before or after, so that there would be more downsets than anybody can look at, for no gain in time
worth the name: what hangs so loosely on a graph is tied to what it hangs on.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from meshwright.array import Bools, Floats, Ints, sum_by
from meshwright.graph.graph import Graph, Phase
from meshwright.kernel.disjoint import DisjointSets
from meshwright.kernel.row import group_values, sum_values
from meshwright.search.method.pipeline.chain import find_anchors, find_tail
from meshwright.search.method.pipeline.stage.cycle import number_components

MAX_LOOSE = 8
"""Places that may not choose their stage for themselves."""

Pair = tuple[int, int]


@dataclass(frozen=True, kw_only=True, eq=False)
class Blocks:
    """Blocks in a topological order."""

    block_of_op: Ints
    """Of every op; those of the wrapped end are of block 0, whose devices they run on."""
    is_wrapped: Bools
    """Of every op: whether it is of the wrapped end, a last stage on the first one's devices."""
    num_blocks: int
    edges: tuple[Pair, ...]
    """The first is in the stage of the second or in an earlier one."""
    wires: tuple[tuple[tuple[int, ...], float], ...]
    """Blocks that make or read the same tensors, and the bytes of these for the whole batch."""
    links: tuple[tuple[int, int, float], ...]
    """Of every tensor and block that reads it: the earlier block, the later one, the bytes."""

    @property
    def has_tail(self) -> bool:
        """Whether the pipeline ends on the devices it begins on."""
        return bool(self.is_wrapped.any())

    def add_up(self, values: Floats) -> Floats:
        """Of each block the sum over its ops."""
        return sum_by(self.block_of_op, values, self.num_blocks)

    def stage_of_op(self, stage_of_block: Ints) -> Ints:
        """The stage of each op; the wrapped end is one more stage after all others."""
        stage = np.asarray(stage_of_block, dtype=np.int32)
        last = int(stage.max(initial=0)) + 1
        return np.where(self.is_wrapped, last, stage[self.block_of_op]).astype(np.int32)


def find_blocks(graph: Graph, *, ties_loose: bool = True) -> Blocks:
    """The blocks of a graph of which no phase reads a later one.

    `ties_loose`: what hangs loosely on a block is part of it (see `loose`).
    """
    anchor, length = find_anchors(graph)
    tail = find_tail(graph, anchor, length)
    is_wrapped = anchor >= tail
    home = np.where(is_wrapped, 0, anchor)
    pairs = _order_pairs(graph, anchor, tail) | _group_pairs(graph, anchor, tail)
    if ties_loose:
        pairs |= tie_loose(pairs, tail)
    component = np.array(number_components(tail, sorted(pairs)), dtype=np.int32)
    block_of_op = component[home]
    if is_wrapped.any():  # all of a group that reaches the end is in the first block
        block_of_op = np.where(is_wrapped, 0, block_of_op).astype(np.int32)
    named = ((int(component[u]), int(component[v])) for u, v in pairs)
    return Blocks(
        block_of_op=block_of_op,
        is_wrapped=is_wrapped,
        num_blocks=int(component.max(initial=0)) + 1,
        edges=tuple(sorted({pair for pair in named if pair[0] != pair[1]})),
        wires=_find_wires(graph, block_of_op),
        links=_find_links(graph, block_of_op),
    )


def _order_pairs(graph: Graph, anchor: Ints, tail: int) -> set[Pair]:
    """Places of which the first may not be after the second: tensors, and gradients reversed."""
    source, target = graph.edges
    phase = graph.phase[source]
    is_within = (phase == graph.phase[target]) & (anchor[source] < tail) & (anchor[target] < tail)
    pairs: set[Pair] = set()
    for wanted, first, second in (
        (Phase.FORWARD, source, target),
        (Phase.BACKWARD, target, source),
    ):
        chosen = is_within & (phase == wanted)
        rows = zip(anchor[first[chosen]].tolist(), anchor[second[chosen]].tolist(), strict=True)
        pairs.update((u, v) for u, v in rows if u != v)
    return pairs


def _group_pairs(graph: Graph, anchor: Ints, tail: int) -> set[Pair]:
    """Places of one co-location group in a ring; with a wrapped end its groups before all."""
    members: dict[int, set[int]] = {}
    wrapped: set[int] = set()
    for op in np.flatnonzero(graph.group >= 0).tolist():
        group = int(graph.group[op])
        if anchor[op] < tail:
            members.setdefault(group, set()).add(int(anchor[op]))
        else:
            wrapped.add(group)
    pairs: set[Pair] = set()
    first: set[int] = set()
    for group, places in members.items():
        if group in wrapped:
            first |= places
        elif len(places) > 1:
            pairs |= ring(places)
    if first:
        pairs |= ring(first)
        head = min(first)
        pairs |= {(head, place) for place in range(tail) if place != head}
    return pairs


def _find_wires(graph: Graph, block_of_op: Ints) -> tuple[tuple[tuple[int, ...], float], ...]:
    """Tensors by the blocks that hold them, in the order of their blocks."""
    source = block_of_op[graph.tensor_source].tolist()
    pins: list[set[int]] = [{each} for each in source]
    for tensor, reader in zip(
        graph.use_tensor.tolist(), block_of_op[graph.use_op].tolist(), strict=True
    ):
        pins[tensor].add(reader)
    sizes = zip(pins, graph.tensor_bytes.tolist(), strict=True)
    total = sum_values(
        (tuple(sorted(held)), size) for held, size in sizes if len(held) > 1 and size > 0
    )
    return tuple((key, total[key]) for key in sorted(total))


def _find_links(graph: Graph, block_of_op: Ints) -> tuple[tuple[int, int, float], ...]:
    """Between pairs of blocks: what clustering saves by merging the two."""
    source, target = (block_of_op[ends].tolist() for ends in graph.edges)
    uses = dict.fromkeys(zip(graph.use_tensor.tolist(), source, target, strict=True))
    size = graph.tensor_bytes.tolist()
    total = sum_values(((min(u, v), max(u, v)), size[t]) for t, u, v in uses if u != v)
    return tuple((u, v, size) for (u, v), size in sorted(total.items()))


def ring(places: Iterable[int]) -> set[Pair]:
    """Pairs that make places one."""
    ordered = sorted(places)
    after = [*ordered[1:], ordered[0]]
    return {(u, v) for u, v in zip(ordered, after, strict=True) if u != v}


def tie_loose(pairs: set[Pair], count: int) -> set[Pair]:
    """More pairs, in rings, which tie loose places to others; pairs are "not after"."""
    tied = _tie_islands(pairs, count)
    component = number_components(count, sorted(pairs | tied))
    first = [0] * (max(component, default=0) + 1)
    for place in range(count - 1, -1, -1):
        first[component[place]] = place
    named = {(component[u], component[v]) for u, v in pairs}
    edges = sorted((u, v) for u, v in named if u != v)
    loose = _tie_trees(edges, len(first))
    loose |= _tie_trees([(v, u) for u, v in edges], len(first))
    return tied | {pair for u, v in loose for pair in ring((first[u], first[v]))}


def _tie_islands(pairs: set[Pair], count: int) -> set[Pair]:
    """Components of few places join the place before their first."""
    sets = DisjointSets(range(count))
    for u, v in pairs:
        sets.join(u, v)
    members = group_values((root, place) for place, root in enumerate(sets.roots()))
    largest = max(map(len, members.values()), default=0)
    tied: set[Pair] = set()
    for places in members.values():
        if len(places) <= min(MAX_LOOSE, largest - 1):
            own = set(places)
            other = places[0] - 1 if places[0] else min(k for k in range(count) if k not in own)
            tied |= ring({*places, other})
    return tied


def _tie_trees(edges: list[Pair], count: int) -> set[Pair]:
    """Small trees that only lead to one node, which is no such tree itself, with that node.

    Nodes are numbered so that edges rise, or fall all of them.
    """
    before: list[list[int]] = [[] for _ in range(count)]
    num_after = [0] * count
    for u, v in edges:
        before[v].append(u)
        num_after[u] += 1
    rises = not edges or edges[0][0] < edges[0][1]
    size = [0] * count
    tied: set[Pair] = set()
    for node in range(count) if rises else range(count - 1, -1, -1):
        is_tree = all(num_after[each] == 1 and size[each] <= MAX_LOOSE for each in before[node])
        size[node] = 1 + sum(size[each] for each in before[node]) if is_tree else MAX_LOOSE + 1
        if not is_tree:
            tied |= {
                pair
                for each in before[node]
                if num_after[each] == 1 and size[each] <= MAX_LOOSE
                for pair in _tree(before, each, node)
            }
    return tied


def _tree(before: list[list[int]], root: int, node: int) -> set[Pair]:
    """A tree's nodes, each with the node that all of it joins."""
    found, stack = set(), [root]
    while stack:
        each = stack.pop()
        found.add((each, node))
        stack += before[each]
    return found
