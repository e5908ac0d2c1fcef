"""Rails: switches that are not joined, each with a cable to its hosts. Knows no namespaces.

On rails every pair of hosts has as many ways as rails that both are on, host to switch to host.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.way import host_links
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
    exits: dict[tuple[int, int], dict[int, int]] = {}
    entries: dict[tuple[int, int], dict[int, int]] = {}
    for leaves, host, switch, link in host_links(cluster.network, len(cluster.hosts)):
        planes = exits if leaves else entries
        # The first plane of the switch that the host is not on yet.
        key = next((switch, k) for k in count() if host not in planes.get((switch, k), {}))
        planes.setdefault(key, {})[host] = link
    return tuple(
        Rail(exits=dict(sorted(exits[key].items())), entries=entries.get(key, {}))
        for key in sorted(exits)
    )
