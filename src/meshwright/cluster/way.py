"""The ways between hosts: disjoint paths that traffic between two of them can be divided over.

On hosts with several interfaces to as many switches every pair has several; routes take one. Knows
the network only, not what is sent over it.

A rail is what the ways of several pairs have in common: the j-th links of hosts to switches that
are all joined to each other.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

from meshwright.cluster.interface import Interface, default_interfaces
from meshwright.cluster.pair import Routes
from meshwright.cluster.route import Network
from meshwright.errors import InputError, quoted
from meshwright.kernel.disjoint import DisjointSets

Pair = tuple[int, int]
"""Two host numbers: from the first to the second."""
Path = tuple[int, ...]
"""Numbers of links, from host to host."""
RouteFinder = Callable[[Sequence[int], Sequence[int]], Routes]


@dataclass(frozen=True, kw_only=True, eq=False)
class HostWays:
    """The ways of every ordered pair of different hosts."""

    links: Mapping[Pair, tuple[Path, ...]]
    """By pair of host numbers: the links of each way, the one that leaves the first host first.
    Empty where nothing can be said: routes of its devices differ and no switch joins both hosts."""
    off_route: frozenset[Pair] = frozenset()
    """Pairs of one way that not all routes of their devices take: over one of several links to a
    switch, say."""


def find_exits(network: Network, num_hosts: int) -> tuple[int, ...]:
    """The links from hosts to switches, by host and then in the order of switches."""
    found = [each for each in host_links(network, num_hosts) if each[0]]
    return tuple(link for _, _, _, link in sorted(found))


def host_links(network: Network, num_hosts: int) -> Iterator[tuple[bool, int, int, int]]:
    """The links between hosts and switches: whether each leaves the host, the host's number, the
    switch's node, and the link."""
    first, end = network.num_devices, network.num_devices + num_hosts
    ends = zip(network.sources.tolist(), network.targets.tolist(), strict=True)
    for link, (source, target) in enumerate(ends):
        host, switch = sorted((source, target))
        if first <= host < end <= switch:
            yield host == source, host - first, switch, link


def label_rails(network: Network, num_hosts: int) -> dict[int, tuple[int, int]]:
    """The rail of each link that leaves a host: the first of the switches that are joined where it
    ends, and which of the host's links to these it is. Links from host to host are of one rail."""
    first_switch = network.num_devices + num_hosts
    ends = list(zip(network.sources.tolist(), network.targets.tolist(), strict=True))
    sets = DisjointSets(range(network.num_nodes))
    for source, target in ends:
        if min(source, target) >= first_switch:
            sets.join(source, target)
    seen: Counter[tuple[int, int]] = Counter()
    found: dict[int, tuple[int, int]] = {}
    for link, (source, target) in sorted(enumerate(ends), key=lambda each: (each[1], each[0])):
        if network.num_devices <= source < first_switch <= target:
            key = source, sets.find(target)
            found[link] = key[1], seen[key]
            seen[key] += 1
        elif network.num_devices <= source < first_switch:
            found[link] = -1, 0
    return found


def common_ways(network: Network, num_hosts: int) -> dict[Pair, tuple[Path, ...]]:
    """The ways over one switch that both hosts are joined to; pairs that have none are left out."""
    exits: dict[int, dict[int, list[int]]] = {}
    entries: dict[int, dict[int, list[int]]] = {}
    for leaves, host, switch, link in host_links(network, num_hosts):
        own = exits if leaves else entries
        own.setdefault(switch, {}).setdefault(host, []).append(link)
    found: dict[Pair, list[Path]] = {}
    for switch in sorted(exits):
        for source, leaving in exits[switch].items():
            for target, entering in entries.get(switch, {}).items():
                if source != target:
                    paths = found.setdefault((source, target), [])
                    paths.extend(zip(leaving, entering, strict=False))
    return {pair: tuple(paths) for pair, paths in found.items()}


def joined_way(network: Network, routes: Routes, source: int, target: int) -> tuple[Path, ...]:
    """The one way that all routes between devices of two hosts (nodes) take; none if they differ.

    Devices that are joined to the network themselves, not by way of their host, have none.
    """
    ways: set[Path] = set()
    for place in range(len(routes.hops)):
        links = routes.links_of(place).tolist()
        leaves = [k for k, link in enumerate(links) if network.sources[link] == source]
        enters = [k for k, link in enumerate(links) if network.targets[link] == target]
        if not leaves or not enters or enters[0] < leaves[-1]:
            return ()
        ways.add(tuple(links[leaves[-1] : enters[0] + 1]))
    return tuple(ways) if len(ways) == 1 else ()


def match_interfaces(
    hosts: tuple[str, ...],
    ends: tuple[tuple[str, str], ...],
    exits: tuple[int, ...],
    given: tuple[Interface, ...],
) -> Mapping[int, Interface]:
    """By exit link its interface: those given, else the default ones.

    `exits` are links from hosts to switches and `ends` their host and switch. Of several given for
    one host and switch the first is the first link's.
    """
    if not given:
        return MappingProxyType(dict(zip(exits, default_interfaces(hosts, ends), strict=True)))
    free: dict[tuple[str, str], list[int]] = {}
    for link, end in zip(exits, ends, strict=True):
        free.setdefault(end, []).append(link)
    found: dict[int, Interface] = {}
    for each in given:
        links = free.get((each.host, each.switch), [])
        if not links:
            raise InputError(
                f"interface {quoted(each.name)}: the cluster has no link from host "
                f"{quoted(each.host)} to switch {quoted(each.switch)} that is not named already"
            )
        found[links.pop(0)] = each
    return MappingProxyType(found)


def find_ways(
    network: Network, devices: Sequence[Sequence[int]], find_routes: RouteFinder
) -> HostWays:
    """All ways, from the devices of each host and what finds their routes."""
    num_hosts = len(devices)
    links = common_ways(network, num_hosts)
    for source in range(num_hosts):
        for target in range(num_hosts):
            if source == target or (source, target) in links:
                continue
            routes = find_routes(*zip(*product(devices[source], devices[target]), strict=True))
            nodes = network.num_devices + source, network.num_devices + target
            links[source, target] = joined_way(network, routes, *nodes)
    off_route = _find_off_route(network, links, devices, find_routes)
    return HostWays(links=MappingProxyType(links), off_route=off_route)


def _find_off_route(
    network: Network,
    links: Mapping[Pair, tuple[Path, ...]],
    devices: Sequence[Sequence[int]],
    find_routes: RouteFinder,
) -> frozenset[Pair]:
    """The pairs of one way whose devices' routes do not all take it."""
    is_between = (network.sources >= network.num_devices) & (network.targets >= network.num_devices)
    num_out = Counter(network.sources[is_between].tolist())
    num_in = Counter(network.targets[is_between].tolist())
    first = network.num_devices
    found = set()
    for (source, target), ways in links.items():
        # With one link out and one in there is nothing that routes could choose.
        if len(ways) != 1 or num_out[first + source] == num_in[first + target] == 1:
            continue
        routes = find_routes(*zip(*product(devices[source], devices[target]), strict=True))
        if joined_way(network, routes, first + source, first + target) != ways:
            found.add((source, target))
    return frozenset(found)
