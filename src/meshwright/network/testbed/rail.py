"""Rails: switches that are not joined, each with a cable to its hosts. Knows no namespaces.

On rails every pair of hosts has as many ways as rails that both are on, host to switch to host.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.cluster.cluster import Cluster
from meshwright.network.testbed.path import Pair, Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Rail:
    """One switch, or one of several planes of it where hosts have several links to it."""

    exits: Mapping[int, int]
    """By host number, rising: the link from the host to the switch."""
    entries: Mapping[int, int]
    """By host number: the link from the switch to the host."""


def find_rails(cluster: Cluster, paths: Mapping[Pair, Path]) -> tuple[Rail, ...]:
    """The rails of a cluster, in the order of its switches; none where it has other ways, too.

    One switch that every host has one link to is no rail but the simplest tree.
    """
    rails = _find_planes(cluster)
    exits = {link for rail in rails for link in rail.exits.values()}
    ways = cluster.ways.links
    if (
        all(len(each) <= 1 for each in ways.values())
        or not all(each and all(len(way) == 2 for way in each) for each in ways.values())
        or any(path.inner or not exits.issuperset(path.exits) for path in paths.values())
    ):
        return ()
    return rails


def _find_planes(cluster: Cluster) -> tuple[Rail, ...]:
    """By switch: the first link of each host with the first of every other, and so on."""
    first, end = cluster.num_devices, cluster.num_devices + len(cluster.hosts)
    exits: dict[tuple[int, int], dict[int, int]] = {}
    entries: dict[tuple[int, int], dict[int, int]] = {}
    ends = zip(cluster.network.sources.tolist(), cluster.network.targets.tolist(), strict=True)
    for link, (source, target) in enumerate(ends):
        if first <= source < end <= target:
            _add_link(exits, target, source - first, link)
        elif first <= target < end <= source:
            _add_link(entries, source, target - first, link)
    return tuple(
        Rail(exits=dict(sorted(exits[key].items())), entries=entries.get(key, {}))
        for key in sorted(exits)
    )


def _add_link(
    planes: dict[tuple[int, int], dict[int, int]], switch: int, host: int, link: int
) -> None:
    """To the first plane of a switch that the host is not on yet."""
    plane = 0
    while host in planes.get((switch, plane), {}):
        plane += 1
    planes.setdefault((switch, plane), {})[host] = link
