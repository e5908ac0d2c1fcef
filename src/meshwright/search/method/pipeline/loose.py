"""Ties what hangs loosely on a graph to what it hangs on.

A few places that nothing joins to the rest (the counters of batch normalisation), that only feed
one place (a table of position biases) or only read one (a statistic): each could be in any stage
before or after, so that there would be more downsets than anybody can look at, for no gain in time
worth the name. Knows places and pairs of them only.
"""

from collections.abc import Iterable

from meshwright.kernel.disjoint import DisjointSets
from meshwright.search.method.pipeline.stage.cycle import number_components

Pair = tuple[int, int]

MAX_LOOSE = 8
"""Places that may not choose their stage for themselves."""


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
    members: dict[int, list[int]] = {}
    for place, root in enumerate(sets.roots()):
        members.setdefault(root, []).append(place)
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
