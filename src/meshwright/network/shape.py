"""What each host's interfaces must do to give a plan's allocations their rates. Writes no commands.

An allocation is divided over the ways of its pair of hosts; on each way it becomes a queue of the
interface that it leaves by, known by the address of the interface that it comes in by. Every
interface that carries one also gets a routing table for its address, at both ends: traffic must
leave by the interface whose address it bears.
"""

import ipaddress
import math
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count, product

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.interface import Interface, check_interface_name
from meshwright.errors import InputError, quoted
from meshwright.plan.part import Allocation
from meshwright.plan.plan import Plan

FIRST_TABLE = 7700
"""Routing tables and rule priorities: this one for a host's first interface, the next ones for its
others. Before `main` (32766), and off the numbers that people and distributions use."""
MOST_QUEUES = 65_532
"""HTB has 16 bits for a class; two are taken by the interface and by all other traffic."""
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Queue:
    """What one destination has of an interface."""

    number: int
    """From 1; 0 is everything else."""
    target: str
    """The name of the host that the queue leads to."""
    address: str
    """Of the target on this way, without a prefix."""
    kbit_per_second: int

    def __post_init__(self) -> None:
        where = f"queue to host {quoted(self.target)}"
        check_host(self.target)
        _check_address(self.address, where)
        if not 1 <= self.number <= MOST_QUEUES:
            raise InputError(f"{where}: number must be 1 to {MOST_QUEUES}, got {self.number}")
        if self.kbit_per_second < 1:
            raise InputError(f"{where}: rate must be at least 1 kbit/s, got {self.kbit_per_second}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapedInterface:
    """An interface and what leaves it."""

    name: str
    address: str
    """With its prefix: 10.77.0.1/24."""
    bridge: str = ""
    """The Open vSwitch bridge that it is a port of; empty: none."""
    kbit_per_second: int
    """The rate of the link on the wire, in kbit/s."""
    queues: tuple[Queue, ...]
    """None where it only receives."""
    table: int
    """The number of its routing table, and the priority of the rule that leads there."""
    peers: tuple[str, ...]
    """Addresses that send to it or receive from it, those of the queues included."""

    def __post_init__(self) -> None:
        where = f"interface {quoted(self.name)}"
        check_interface_name(self.name, f"{where}: name")
        if self.bridge:
            check_interface_name(self.bridge, f"{where}: bridge")
        try:
            ipaddress.IPv4Interface(self.address)
        except ValueError:
            raise InputError(
                f"{where}: address must be IPv4 with a prefix, got {quoted(self.address)}"
            ) from None
        for peer in self.peers:
            _check_address(peer, where)
        taken = sum(queue.kbit_per_second for queue in self.queues)
        if not max(1, taken) <= self.kbit_per_second:
            raise InputError(
                f"{where}: queues must not have more than the link's {self.kbit_per_second} "
                f"kbit/s, got {taken}"
            )

    @property
    def own_address(self) -> str:
        """The address without its prefix."""
        return self.address.partition("/")[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class HostNetwork:
    """The interfaces of one host that carry allocations."""

    host: str
    interfaces: tuple[ShapedInterface, ...]

    def __post_init__(self) -> None:
        check_host(self.host)


def check_host(name: str) -> None:
    """Refuse a host that cannot be the name of a folder, or a word in scripts."""
    if not _HOST.fullmatch(name):
        raise InputError(
            f"host {quoted(name)}: to be configured its name must be 1 to 63 letters, digits, "
            f"'.', '_' or '-', and begin with a letter or digit"
        )


def _check_address(address: str, where: str) -> None:
    try:
        ipaddress.IPv4Address(address)
    except ValueError:
        raise InputError(f"{where}: address must be IPv4, got {quoted(address)}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Flow:
    """What an allocation sends over one way."""

    exit: int
    """The link by which it leaves; `back` is the one by which the target would answer."""
    back: int
    target: str
    kbit_per_second: int


def shape_network(
    cluster: Cluster, plan: Plan, wire_factor: float = 1.0
) -> tuple[HostNetwork, ...]:
    """The interfaces of every host that sends or receives an allocation, in the cluster's order.

    `wire_factor` is how much of a link's rate a byte takes: 1 where links' rates are those of the
    wire, 1514 / 1448 where they are TCP's.
    """
    if not plan.allocations:
        raise InputError(
            "plan: has no allocations to configure a network for; plan with --allocate, which "
            "gives some where that is faster than uniform bandwidth"
        )
    interfaces = cluster.interface_of
    _check_links(cluster, plan)
    flows = [
        flow
        for allocation in plan.allocations
        for flow in _find_flows(cluster, interfaces, allocation, wire_factor)
    ]
    return _gather(cluster, interfaces, flows, wire_factor)


def _find_flows(
    cluster: Cluster,
    interfaces: Mapping[int, Interface],
    allocation: Allocation,
    wire_factor: float,
) -> Iterator[_Flow]:
    for way, rate in _divide(cluster, allocation):
        out, back = way[0], _reverse(cluster, way[-1])
        for link in (out, back):
            if link not in interfaces:
                raise InputError(
                    f"{_name(allocation)}: link {_link_name(cluster, link)} must have an interface "
                    f"(the cluster's file names others under interfaces, or it is no link from a "
                    f"host to a switch)"
                )
        _check_network(cluster, interfaces[out], interfaces[back])
        yield _Flow(
            exit=out,
            back=back,
            target=allocation.target,
            kbit_per_second=_whole_kbit(rate * wire_factor),
        )


def _divide(cluster: Cluster, allocation: Allocation) -> Iterator[tuple[tuple[int, ...], float]]:
    """The ways that an allocation uses, with bytes a second on each."""
    place = cluster.host_index
    for host in (allocation.source, allocation.target):
        if host not in place:
            raise InputError(f"{_name(allocation)}: the cluster has no host {quoted(host)}")
    pair = place[allocation.source], place[allocation.target]
    ways = cluster.ways.links.get(pair, ())
    if not ways:
        raise InputError(
            f"{_name(allocation)}: the two hosts must have a way between them; their devices take "
            f"different routes, and no switch joins both hosts"
        )
    shares = allocation.shares or _route_shares(cluster, allocation, ways)
    if len(shares) != len(ways):
        raise InputError(
            f"{_name(allocation)}: must have a share for each of {len(ways)} ways, "
            f"got {len(shares):,}"
        )
    for way, share in zip(ways, shares, strict=True):
        if share > 0:
            yield way, share * allocation.bytes_per_second


def _route_shares(
    cluster: Cluster, allocation: Allocation, ways: Sequence[tuple[int, ...]]
) -> tuple[float, ...]:
    """All on the way that the routes take anyway."""
    if len(ways) == 1:
        return (1.0,)
    hosts = (allocation.source, allocation.target)
    ends = [cluster.devices_of_host[cluster.host_index[host]] for host in hosts]
    pairs = list(product(*ends))
    routes = cluster.routes_between(*zip(*pairs, strict=True))
    taken = [set(routes.links_of(number).tolist()) for number in range(len(pairs))]
    shares = tuple(float(all(links.issuperset(way) for links in taken)) for way in ways)
    if sum(shares) != 1:
        raise InputError(
            f"{_name(allocation)}: must say its shares of {len(ways)} ways, because the routes of "
            f"its devices differ; plan with --allocate"
        )
    return shares


def _reverse(cluster: Cluster, entry: int) -> int:
    """The link back: of several between the same two nodes the one with the same place; or -1."""
    sources, targets = cluster.network.sources, cluster.network.targets
    near, far = sources[entry], targets[entry]
    same = np.flatnonzero((sources == near) & (targets == far)).tolist()
    back = np.flatnonzero((sources == far) & (targets == near)).tolist()
    place = same.index(entry)
    return int(back[place]) if place < len(back) else -1


def _gather(
    cluster: Cluster,
    interfaces: Mapping[int, Interface],
    flows: Sequence[_Flow],
    wire_factor: float,
) -> tuple[HostNetwork, ...]:
    """Flows by the interface that they leave, interfaces by host."""
    peers: dict[int, dict[str, None]] = {}
    leaving: dict[int, list[_Flow]] = {}
    for flow in flows:
        peers.setdefault(flow.exit, {})[_address(interfaces[flow.back])] = None
        peers.setdefault(flow.back, {})[_address(interfaces[flow.exit])] = None
        leaving.setdefault(flow.exit, []).append(flow)
    numbers: dict[str, Iterator[int]] = defaultdict(lambda: count(FIRST_TABLE))
    # A table for each interface of a host, also for those that carry nothing: numbers stay.
    tables = {link: next(numbers[each.host]) for link, each in interfaces.items()}
    shaped: dict[str, list[ShapedInterface]] = {}
    for link in sorted(peers, key=lambda each: tables[each]):
        queues = tuple(
            Queue(
                number=number,
                target=flow.target,
                address=_address(interfaces[flow.back]),
                kbit_per_second=flow.kbit_per_second,
            )
            for number, flow in enumerate(leaving.get(link, ()), start=1)
        )
        made = ShapedInterface(
            name=interfaces[link].name,
            address=interfaces[link].address,
            bridge=interfaces[link].bridge,
            kbit_per_second=_whole_kbit(cluster.links[link].bytes_per_second * wire_factor),
            queues=queues,
            table=tables[link],
            peers=tuple(sorted(peers[link], key=ipaddress.IPv4Address)),
        )
        shaped.setdefault(interfaces[link].host, []).append(made)
    return tuple(
        HostNetwork(host=host, interfaces=tuple(shaped[host]))
        for host in cluster.hosts
        if host in shaped
    )


def _check_links(cluster: Cluster, plan: Plan) -> None:
    """On no link more than it has."""
    taken: dict[int, float] = {}
    for allocation in plan.allocations:
        for way, rate in _divide(cluster, allocation):
            for link in way:
                taken[link] = taken.get(link, 0.0) + rate
    for link, rate in sorted(taken.items()):
        limit = cluster.links[link].bytes_per_second
        if rate > limit * (1 + 1e-9):
            raise InputError(
                f"link {_link_name(cluster, link)}: allocations must not exceed its "
                f"{_whole_kbit(limit)} kbit/s, got {_whole_kbit(rate)}"
            )


def _check_network(cluster: Cluster, one: Interface, other: Interface) -> None:
    """Routes are written without gateways: both ends must be in one network.

    Interfaces that the cluster does not name are a testbed's, whose switches join any two.
    """
    if cluster.interfaces and (
        ipaddress.IPv4Interface(one.address).network
        != ipaddress.IPv4Interface(other.address).network
    ):
        raise InputError(
            f"host {quoted(one.host)}, interface {quoted(one.name)}: must be in one network with "
            f"interface {quoted(other.name)} of host {quoted(other.host)} (routes through gateways "
            f"are not written), got {one.address} and {other.address}"
        )


def _whole_kbit(bytes_per_second: float) -> int:
    """Rounded down, so that sums fit; a whole number that came out a bit low is still itself."""
    return math.floor(bytes_per_second * 8 / 1000 * (1 + 1e-12) + 1e-6)


def _address(interface: Interface) -> str:
    return interface.address.partition("/")[0]


def _name(allocation: Allocation) -> str:
    return f"allocation {quoted(allocation.source)} -> {quoted(allocation.target)}"


def _link_name(cluster: Cluster, link: int) -> str:
    if link < 0:
        return "back from the target"
    return f"{quoted(cluster.links[link].source)} -> {quoted(cluster.links[link].target)}"
