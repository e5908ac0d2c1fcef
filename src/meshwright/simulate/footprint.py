"""What a simulated step takes of every device's memory, beside the allocator's peak.

Reads off a program who talks to whom: groups that NCCL makes communicators for, and pairs that send
to each other. What that takes is `meshwright.cost.memory`'s to say.
"""

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster
from meshwright.cost.collective import Collective
from meshwright.cost.memory import (
    Footprint,
    collective_bytes,
    find_footprint,
    usable_bytes,
)
from meshwright.graph.graph import Graph
from meshwright.program.program import Kind, Program
from meshwright.simulate.tasks import COLLECTIVES
from meshwright.simulate.timeline import Timeline

Group = tuple[int, ...]
Pair = tuple[int, int]


def footprint(graph: Graph, cluster: Cluster, timeline: Timeline) -> Footprint:
    """The memory of each device in a simulated step of the graph."""
    held = _collective_bytes(graph, cluster, timeline.program)
    return find_footprint(graph, cluster, timeline.peak_bytes, held)


def usable_in(graph: Graph, cluster: Cluster, program: Program) -> Floats:
    """What the allocator's peak may be on each device that runs the program."""
    return usable_bytes(graph, cluster, _collective_bytes(graph, cluster, program))


def _collective_bytes(graph: Graph, cluster: Cluster, program: Program) -> Floats:
    if not graph.calls.any():  # sizes are round figures, and nothing is beside them
        return np.zeros(cluster.num_devices)
    return collective_bytes(graph, cluster, *find_talk(program))


def find_talk(program: Program) -> tuple[set[Group], set[Pair]]:
    """Groups of collectives, and pairs of devices that send or receive, the smaller number first.

    An all-to-all is sends between all members, a shift sends to the next one.
    """
    groups: set[Group] = set()
    pairs: set[Pair] = set(_find_pairs(program))
    for collective, group in {*_find_calls(program), *program.team_calls}:
        groups.add(tuple(sorted(group)))
        if collective is Collective.ALL_TO_ALL:
            pairs.update(combinations(sorted(group), 2))
        elif collective is Collective.SHIFT:
            pairs.update(_ordered(*each) for each in zip(group, group[1:] + group[:1], strict=True))
    return groups, pairs


def _find_calls(program: Program) -> Iterator[tuple[Collective, Group]]:
    """Collectives that are instructions, with those that run beside them."""
    rows = program.instructions
    calls = rows[["kind", "group"]][rows["group"] >= 0]
    for kind, number in np.unique(calls).tolist():
        beside = program.beside[number] if program.beside else ()
        for group in (program.groups[number], *beside):
            yield COLLECTIVES[Kind(kind)], group


def _find_pairs(program: Program) -> Iterator[Pair]:
    """Who sends to whom; a transfer between teams goes from every member to one of the other."""
    rows = program.instructions
    team = {each[0]: each for each in program.teams}
    sends = np.unique(rows[["device", "peer"]][rows["kind"] == Kind.SEND])
    for source, target in sends.tolist():
        one, other = team.get(source, (source,)), team.get(target, (target,))
        for place in range(max(len(one), len(other))):
            yield _ordered(one[place % len(one)], other[place % len(other)])


def _ordered(one: int, other: int) -> Pair:
    return min(one, other), max(one, other)
