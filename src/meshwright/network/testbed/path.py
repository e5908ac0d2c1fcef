"""What transfers between hosts can use of a cluster's network. Knows nothing of namespaces.

A transfer leaves its host by one link (exit) and comes into the other by one (entry); what lies
between, over switches or other hosts, is inner. Where hosts hold several devices, transfers of
different devices of one host to one other are taken together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.cluster.cluster import Cluster

Pair = tuple[int, int]
"""Two host numbers: from the first to the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Path:
    """The way from one host to another."""

    bytes_per_second: float
    """Of one transfer alone, between the two devices with the widest route."""
    exits: tuple[int, ...]
    """Numbers of the links by which routes leave the first host, rising."""
    entries: tuple[int, ...]
    """Numbers of the links by which they enter the other."""
    inner: tuple[int, ...]
    """Numbers of the links between."""


def find_paths(cluster: Cluster) -> dict[Pair, Path]:
    """The path of every ordered pair of different hosts, numbered as in `cluster.hosts`."""
    devices, host_of = cluster.devices_of_host, cluster.host_of.tolist()
    # Of each node the number of the host it is or is in; -1 for switches.
    host_of_node = [*host_of, *range(len(devices)), *(-1 for _ in cluster.switches)]
    return {
        (source, target): _join_routes(cluster, host_of_node, devices[source], devices[target])
        for source in range(len(devices))
        for target in range(len(devices))
        if source != target
    }


def _join_routes(
    cluster: Cluster, host_of_node: list[int], sources: Sequence[int], targets: Sequence[int]
) -> Path:
    """The links of all routes between the devices of two hosts."""
    home, away = host_of_node[sources[0]], host_of_node[targets[0]]
    exits, entries, inner = set(), set(), set()
    for source in sources:
        for target in targets:
            route = cluster.routing.links(source, target).tolist()
            enters = [host_of_node[node] for node in cluster.network.targets[route].tolist()]
            leaves = [host_of_node[node] for node in cluster.network.sources[route].tolist()]
            out = max(place for place, host in enumerate(leaves) if host == home)
            into = min(place for place, host in enumerate(enters) if host == away and place >= out)
            exits.add(route[out])
            entries.add(route[into])
            inner.update(route[out + 1 : into])
    return Path(
        bytes_per_second=float(cluster.bandwidth[np.ix_(sources, targets)].max()),
        exits=tuple(sorted(exits)),
        entries=tuple(sorted(entries)),
        inner=tuple(sorted(inner)),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SwitchTree:
    """Switches joined without a circle, and the switch that each host is on."""

    switch_of_host: tuple[int, ...]
    """Numbers as in `cluster.switches`, one a host."""
    edges: tuple[Pair, ...]
    """Two switches that are joined, the lower number first."""


def find_switch_tree(cluster: Cluster, paths: Mapping[Pair, Path]) -> SwitchTree | None:
    """The tree of switches that all paths run over; None where they use anything else.

    A host on two switches, parallel links between two switches, several ways between two (several
    spines) and hosts that forward for others are no tree.
    """
    first = len(cluster.nodes) - len(cluster.switches)
    sources, targets = cluster.network.sources - first, cluster.network.targets - first
    switches: list[set[int]] = [set() for _ in cluster.hosts]
    inner: set[int] = set()
    for (source, target), path in paths.items():
        switches[source].update(targets[list(path.exits)].tolist())
        switches[target].update(sources[list(path.entries)].tolist())
        inner.update(path.inner)
    ends = [(int(sources[link]), int(targets[link])) for link in sorted(inner)]
    edges = {(min(pair), max(pair)) for pair in ends}
    nodes = set().union(*switches, *edges)
    if (
        any(len(each) != 1 for each in switches)
        or min(nodes) < 0
        or len(set(ends)) != len(ends)
        or not _is_tree(nodes, edges)
    ):
        return None
    return SwitchTree(
        switch_of_host=tuple(each.pop() for each in switches), edges=tuple(sorted(edges))
    )


def _is_tree(nodes: set[int], edges: set[Pair]) -> bool:
    """As many edges as nodes less one, and everything reached from any node."""
    reached = {min(nodes)}
    grew = True
    while grew:
        found = {end for edge in edges if reached & set(edge) for end in edge}
        grew = not found <= reached
        reached |= found
    return reached == nodes and len(edges) == len(nodes) - 1
