"""Orders of a problem's nodes, and extra precedences that leave only some of its upsets.

Where upsets are many, plans over some of them are found in a fraction of the time; they are plans
of the problem. Knows nothing of searching.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from solver.piper.problem import Problem, Stage

Pairs = list[tuple[int, int]]


def find_levels(problem: Problem) -> list[int]:
    """Of every node: the most edges on a path to it."""
    levels = [0] * len(problem.nodes)
    for edge in sorted(problem.edges, key=lambda edge: edge.source):  # numbers are topological
        levels[edge.target] = max(levels[edge.target], levels[edge.source] + 1)
    return levels


def order_by_level(problem: Problem) -> list[int]:
    """Branches side by side."""
    levels = find_levels(problem)
    return sorted(range(len(levels)), key=lambda node: (levels[node], node))


def order_by_branch(problem: Problem) -> list[int]:
    """One branch after the other: of the nodes that are ready, the one that became so last."""
    after: list[list[int]] = [[] for _ in problem.nodes]
    missing = [0] * len(problem.nodes)
    for edge in problem.edges:
        after[edge.source].append(edge.target)
        missing[edge.target] += 1
    ready = [node for node in reversed(range(len(missing))) if not missing[node]]
    order = []
    while ready:
        order.append(ready.pop())
        for node in sorted(after[order[-1]], reverse=True):
            missing[node] -= 1
            if not missing[node]:
                ready.append(node)
    return order


def reorder(problem: Problem, order: Sequence[int]) -> Problem:
    """The same problem, its nodes numbered by their places in an order."""
    place = {node: number for number, node in enumerate(order)}
    edges = tuple(
        replace(edge, source=place[edge.source], target=place[edge.target])
        for edge in problem.edges
    )
    return replace(problem, nodes=tuple(problem.nodes[node] for node in order), edges=edges)


def restore(stage: Stage, order: Sequence[int]) -> Stage:
    """A stage of the reordered problem as one of the problem."""
    pairs = sorted(
        zip([order[node] for node in stage.nodes], stage.ways, strict=True),
        key=lambda pair: pair[0],
    )
    return replace(
        stage, nodes=tuple(node for node, _ in pairs), ways=tuple(way for _, way in pairs)
    )


def line_up(problem: Problem) -> Pairs:
    """Every node before the next."""
    return [*pairwise(range(len(problem.nodes)))]


def keep_abreast(problem: Problem, distance: int) -> Pairs:
    """All nodes of a level before those so many levels on; numbers must rise with levels."""
    levels = find_levels(problem)
    nodes_of: list[list[int]] = [[] for _ in range(max(levels) + 1)]
    for node, level in enumerate(levels):
        nodes_of[level].append(node)
    return [
        (first, second)
        for level in range(len(nodes_of) - distance)
        for first in nodes_of[level]
        for second in nodes_of[level + distance]
    ]
