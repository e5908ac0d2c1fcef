"""Hosts and switches as namespaces, and the cables between them. Knows no rates, runs nothing.

Hosts hang on switches by cables. Where they have one each to several switches that are not joined
(rails), and where the cluster's switches form a tree, each switch has its own namespace; otherwise
one stands for all.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.interface import Interface
from meshwright.errors import InputError, quoted
from meshwright.network.testbed.path import Pair, SwitchTree
from meshwright.network.testbed.rail import Rail

INTERFACE, ADDRESS = "eth0", "10.77.0.{}/24"
"""Of hosts whose cluster does not say which link is their one cable. The network is only seen
inside the namespaces: it cannot clash with the machine's own."""
NAME_LENGTH = 15
"""Of an interface, at most: Linux's rule."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedInterface:
    """What a host has an address on."""

    name: str
    address: str
    prefix: int = 24
    """The length of its network's prefix."""
    cable: str = ""
    """The interface whose cable it uses, where that is another: it is that one's bridge then."""
    switch: int = 0
    """The place of the switch at the cable's other end, among the testbed's."""

    @property
    def wire(self) -> str:
        """The interface that the cable is plugged into."""
        return self.cable or self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class EmulatedHost:
    """One host of the cluster."""

    name: str
    """As in the cluster."""
    namespace: str
    interfaces: tuple[EmulatedInterface, ...]

    @property
    def interface(self) -> str:
        """The name of the host's first interface."""
        return self.interfaces[0].name

    @property
    def address(self) -> str:
        """The address of its first interface."""
        return self.interfaces[0].address


@dataclass(frozen=True, slots=True, kw_only=True)
class Cable:
    """Joins an interface of a host to a switch."""

    host: int
    interface: int
    """Its place among the host's."""
    switch: int
    """Its place among the switches."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cabling:
    """Hosts, switches and the cables between them."""

    hosts: tuple[EmulatedHost, ...]
    switches: tuple[str, ...]
    """The namespaces of the switches."""
    cables: tuple[Cable, ...]
    """By host, and on each host by interface."""
    trunks: tuple[Pair, ...] = ()
    """Places of two switches that are joined."""
    place_of_switch: Mapping[int, int] = field(default_factory=dict)
    """From the number of a switch in the cluster; empty where they are not those of a tree."""

    def end(self, cable: Cable) -> EmulatedInterface:
        """A cable's interface of its host."""
        return self.hosts[cable.host].interfaces[cable.interface]

    def peers(self, cable: Cable) -> list[Cable]:
        """The cables of other hosts that a cable leads to, over one switch or several."""
        return [
            other
            for other in self.cables
            if other.host != cable.host and (self.trunks or other.switch == cable.switch)
        ]


def name_interfaces(
    cluster: Cluster, rails: Sequence[Rail], kind: str
) -> tuple[tuple[Interface, ...], ...]:
    """Of each host: an interface a rail, or one; with Open vSwitch each with a bridge."""
    known = cluster.interface_of
    if rails:
        found = _rail_interfaces(cluster, rails)
    elif Counter(each.host for each in known.values()) == Counter(cluster.hosts):
        found = [[each for each in known.values() if each.host == host] for host in cluster.hosts]
    else:  # the cluster does not say which link is a host's cable: none or several are
        found = [
            [Interface(host=host, switch="", name=INTERFACE, address=ADDRESS.format(place + 1))]
            for place, host in enumerate(cluster.hosts)
        ]
    return tuple(tuple(_bridged(each, kind)) for each in found)


def _rail_interfaces(cluster: Cluster, rails: Sequence[Rail]) -> list[list[Interface]]:
    found: list[list[Interface]] = [[] for _ in cluster.hosts]
    for rail in rails:
        for host, link in rail.exits.items():
            if link not in cluster.interface_of:
                raise InputError(
                    f"cluster {quoted(cluster.name)}: a testbed needs an interface for the "
                    f"{cluster.links[link].label}, but only others are named"
                )
            found[host].append(cluster.interface_of[link])
    return found


def _bridged(own: Sequence[Interface], kind: str) -> Iterator[Interface]:
    """The interfaces of one host, each with a bridge of its own if there is to be one."""
    taken = {each.name for each in own}
    for place, each in enumerate(own):
        bridge = ""
        if kind == "ovs":
            wanted = (each.bridge, f"br-{each.name}", f"bridge{place}", f"switch{place}")
            bridge = next(
                name for name in wanted if name not in taken and 0 < len(name) <= NAME_LENGTH
            )
            taken.add(bridge)
        yield replace(each, bridge=bridge)


def wire_hosts(
    cluster: Cluster,
    name: str,
    interfaces: Sequence[Sequence[Interface]],
    tree: SwitchTree | None,
) -> Cabling:
    """One cable a host: switches as the tree has them, or one for all."""
    shape = tree or SwitchTree(switch_of_host=(0,) * len(cluster.hosts), edges=())
    numbers = sorted({*shape.switch_of_host, *(end for edge in shape.edges for end in edge)})
    place_of = {number: place for place, number in enumerate(numbers)}
    cables = [
        Cable(host=host, interface=0, switch=place_of[number])
        for host, number in enumerate(shape.switch_of_host)
    ]
    return Cabling(
        hosts=_name_hosts(cluster, name, interfaces, cables),
        switches=_name_switches(name, len(numbers)),
        cables=tuple(cables),
        trunks=tuple((place_of[one], place_of[other]) for one, other in shape.edges),
        place_of_switch=place_of if tree else {},
    )


def wire_rails(
    cluster: Cluster,
    name: str,
    interfaces: Sequence[Sequence[Interface]],
    rails: Sequence[Rail],
) -> Cabling:
    """A cable for each rail that a host is on, and a switch for each rail."""
    number = [0] * len(cluster.hosts)
    cables = []
    for place, rail in enumerate(rails):
        for host in rail.exits:
            cables.append(Cable(host=host, interface=number[host], switch=place))
            number[host] += 1
    return Cabling(
        hosts=_name_hosts(cluster, name, interfaces, cables),
        switches=_name_switches(name, len(rails)),
        cables=tuple(sorted(cables, key=lambda each: (each.host, each.interface))),
    )


def _name_hosts(
    cluster: Cluster,
    name: str,
    interfaces: Sequence[Sequence[Interface]],
    cables: Sequence[Cable],
) -> tuple[EmulatedHost, ...]:
    switches = {(cable.host, cable.interface): cable.switch for cable in cables}
    return tuple(
        EmulatedHost(
            name=host,
            namespace=f"meshwright-{name}-host{place}",
            interfaces=tuple(
                _emulate(each, switches[place, number])
                for number, each in enumerate(interfaces[place])
            ),
        )
        for place, host in enumerate(cluster.hosts)
    )


def _emulate(interface: Interface, switch: int) -> EmulatedInterface:
    address, _, prefix = interface.address.partition("/")
    return EmulatedInterface(
        name=interface.bridge or interface.name,
        address=address,
        prefix=int(prefix),
        cable=interface.name if interface.bridge else "",
        switch=switch,
    )


def _name_switches(name: str, count: int) -> tuple[str, ...]:
    return tuple(f"meshwright-{name}-switch{place}" for place in range(count))


def host_port(place: int) -> str:
    """The switch's interface towards a host."""
    return f"host{place}"


def trunk_port(place: int) -> str:
    """A switch's interface towards another."""
    return f"switch{place}"
