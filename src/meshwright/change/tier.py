"""Which host each node belongs to, and the level of each link: inside hosts, between hosts and the
network, between its switches from the lowest up. Found from how nodes are joined, whatever the
rates; `meshwright.cluster.level` finds tiers by rates."""

from collections.abc import Mapping
from dataclasses import dataclass

from meshwright.cluster.cluster import Cluster

INSIDE = 1
"""The level of links between nodes of one host."""
NETWORK = 2
"""The level of links that join a host to the network or to another host. Links between switches
are of the levels from 3 on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tiers:
    """Where nodes and links of a cluster belong."""

    host_of: Mapping[str, str]
    """The host of every node that belongs to one: devices, hosts, and switches within hosts."""
    of_link: tuple[int, ...]
    """The level of each link."""


def find_tiers(cluster: Cluster) -> Tiers:
    """Sort nodes into hosts and links into levels."""
    neighbours: dict[str, list[str]] = {name: [] for name in cluster.nodes}
    for link in cluster.links:
        neighbours[link.source].append(link.target)
        neighbours[link.target].append(link.source)
    host_of = _find_hosts(cluster, neighbours)
    depth = _find_depths(host_of, neighbours)
    cards = {
        switch
        for switch in cluster.switches
        if switch in host_of and any(each not in host_of for each in neighbours[switch])
    }
    return Tiers(
        host_of=host_of,
        of_link=tuple(
            _level_of(link.source, link.target, host_of, depth, cards) for link in cluster.links
        ),
    )


def _level_of(
    source: str, target: str, host_of: Mapping[str, str], depth: Mapping[str, int], cards: set[str]
) -> int:
    if source in host_of and target in host_of:
        is_within = host_of[source] == host_of[target] and not {source, target} & cards
        return INSIDE if is_within else NETWORK
    return NETWORK + min(depth.get(source, 0), depth.get(target, 0))


def _find_hosts(cluster: Cluster, neighbours: Mapping[str, list[str]]) -> dict[str, str]:
    """The host of each device, of each host itself, and of each switch within one: it is named
    after the host, as builders name network cards, or leads to nothing outside."""
    host_of = {device.name: device.host for device in cluster.devices}
    host_of |= {host: host for host in cluster.hosts}
    for switch in cluster.switches:
        host = switch.rpartition(".")[0]
        if host and host in host_of:
            host_of[switch] = host_of[host]
    is_new = True
    while is_new:
        is_new = False
        for switch in cluster.switches:
            owners = {host_of.get(each) for each in neighbours[switch]}
            owner = owners.pop() if len(owners) == 1 else None
            if switch not in host_of and owner is not None:
                host_of[switch], is_new = owner, True
    return host_of


def _find_depths(host_of: Mapping[str, str], neighbours: Mapping[str, list[str]]) -> dict[str, int]:
    """How many links each node is away from the nearest host."""
    depth = dict.fromkeys(host_of, 0)
    front = list(host_of)
    while front:
        reached = []
        for node in front:
            for each in neighbours[node]:
                if each not in depth:
                    depth[each] = depth[node] + 1
                    reached.append(each)
        front = reached
    return depth
