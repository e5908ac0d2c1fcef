"""Plans a testbed: the hosts of a cluster as Linux network namespaces with shaped links.

Decides names, addresses, rates and the commands that build and remove it, as data. Runs nothing
(see `meshwright.network.testbed.apply`). Bandwidth only: delays are not emulated.
"""

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError, quoted
from meshwright.network.script import KINDS, Kind
from meshwright.network.shape import HostNetwork
from meshwright.network.testbed.command import ROUTE_OPTIONS, Command, batch, inside
from meshwright.network.testbed.config import configure_commands, find_networks, queue_rates
from meshwright.network.testbed.flow import find_ports
from meshwright.network.testbed.ovs import PACKET_BYTES, hold_command, start_commands
from meshwright.network.testbed.path import find_paths, find_switch_tree
from meshwright.network.testbed.port import PACKETS_IN_FLIGHT, Port, packet_bytes, shape_lines
from meshwright.network.testbed.rail import find_rails
from meshwright.network.testbed.remark import find_remarks
from meshwright.network.testbed.wiring import (
    Cable,
    Cabling,
    EmulatedHost,
    host_port,
    name_interfaces,
    trunk_port,
    wire_hosts,
    wire_rails,
)
from meshwright.plan.plan import Plan

DEFAULT_NAME = "mw"
RUN_FOLDER = Path("/run/meshwright")
FAINT = 0.05
"""Of a host's fastest flow: slower ones are for control, and packets of their size would burden
the others (two-way all-reduces took 2 to 3% longer, 2026-11-15)."""
MAX_HOSTS = 64
"""Every host has a class for every other; one machine has no cores for more anyway."""
_NAME = re.compile(r"[a-z0-9]{1,16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Testbed:
    """What to build, and how."""

    name: str
    cluster: str
    """The name of the cluster that is emulated."""
    kind: Kind = "tc"
    """What its hosts have between their addresses and their cables, and may be shaped by."""
    hosts: tuple[EmulatedHost, ...]
    """In the order of the cluster's."""
    namespaces: tuple[str, ...]
    """Hosts' first, then switches'."""
    build: tuple[Command, ...]
    remove: tuple[Command, ...]
    """Interfaces, addresses and rates go with the namespaces they are in."""
    remarks: tuple[str, ...] = ()
    """How it differs from the cluster, each in one line."""


def check_name(name: str) -> str:
    """The name of a testbed, if it can be one."""
    if not _NAME.fullmatch(name):
        raise InputError(
            f"testbed: a name must be 1 to 16 lower-case letters or digits, got {quoted(name)}"
        )
    return name


def namespace_pattern(name: str) -> re.Pattern[str]:
    """Matches the namespaces of a testbed, and nothing else."""
    return re.compile(rf"meshwright-{check_name(name)}-(host|switch)[0-9]+")


def data_folder(folder: Path, name: str) -> Path:
    """Where a testbed's own files are, in a folder of testbeds: scripts, daemons' sockets."""
    return folder / f"{check_name(name)}.d"


def host_folder(folder: Path, name: str, place: int) -> Path:
    """Where the files of a host, by its place among all, are."""
    return data_folder(folder, name) / f"host{place}"


def remove_command(namespace: str) -> Command:
    """The command that removes one network namespace."""
    return Command(argv=("ip", "netns", "delete", namespace))


def plan_testbed(
    cluster: Cluster,
    name: str = DEFAULT_NAME,
    plan: Plan | None = None,
    kind: Kind = "tc",
    folder: Path = RUN_FOLDER,
) -> Testbed:
    """The testbed of a cluster: one namespace a host, one or more that switch.

    Where a plan has allocations, hosts are shaped by the configuration that is generated for it;
    otherwise as the cluster's links are.
    """
    check_name(name)
    _check_request(cluster, kind)
    paths = find_paths(cluster)
    rails = find_rails(cluster, paths)
    tree = None if rails else find_switch_tree(cluster, paths)
    interfaces = name_interfaces(cluster, rails, kind)
    wiring = (
        wire_rails(cluster, name, interfaces, rails)
        if rails
        else wire_hosts(cluster, name, interfaces, tree)
    )
    networks = find_networks(cluster, interfaces, plan)
    leaving, switching = find_ports(cluster, paths, wiring, rails)
    plain = [port for port in leaving if not _is_configured(port, wiring, networks)]
    folders = [host_folder(folder, name, place) for place in range(len(wiring.hosts))]
    namespaces = (*(host.namespace for host in wiring.hosts), *wiring.switches)
    return Testbed(
        name=name,
        cluster=cluster.name,
        kind=kind,
        hosts=wiring.hosts,
        namespaces=namespaces,
        build=(
            *(Command(argv=("ip", "netns", "add", each)) for each in namespaces),
            *_switch_commands(wiring),
            *_plug_commands(wiring),
            *_start_commands(wiring, folders, kind, plain),
            *_address_commands(wiring, leaving, networks, kind),
            *_shape_commands((*plain, *switching), kind, len(wiring.hosts)),
            *(
                command
                for host, own in zip(wiring.hosts, folders, strict=True)
                if host.name in networks
                for command in configure_commands(host, networks[host.name], kind, own)
            ),
        ),
        remove=tuple(remove_command(each) for each in namespaces),
        remarks=find_remarks(
            cluster, paths, is_tree=tree is not None, has_rails=bool(rails), kind=kind
        ),
    )


def _check_request(cluster: Cluster, kind: str) -> None:
    if kind not in KINDS:
        raise InputError(f"testbed: a network is by {' or '.join(KINDS)}, got {quoted(kind)}")
    if len(cluster.hosts) > MAX_HOSTS:
        raise InputError(
            f"cluster {quoted(cluster.name)}: a testbed has at most {MAX_HOSTS:,} hosts, "
            f"got {len(cluster.hosts):,}"
        )


def _switch_commands(wiring: Cabling) -> Iterator[Command]:
    """Bridges and cables, made inside the namespaces: nothing appears on the machine itself."""
    lines = [
        ["link add bridge type bridge", "link set dev bridge addrgenmode none up"]
        for _ in wiring.switches
    ]
    for cable in wiring.cables:
        port, host = host_port(cable.host), wiring.hosts[cable.host]
        lines[cable.switch].append(_cable_line(port, wiring.end(cable).wire, host.namespace))
        lines[cable.switch].append(_plug_line(port))
    for one, other in wiring.trunks:
        lines[one].append(_cable_line(trunk_port(other), trunk_port(one), wiring.switches[other]))
        lines[one].append(_plug_line(trunk_port(other)))
    for namespace, each in zip(wiring.switches, lines, strict=True):
        yield batch("ip", namespace, each)
    for place, namespace in enumerate(wiring.switches):
        far = [_plug_line(trunk_port(one)) for one, other in wiring.trunks if other == place]
        if far:  # only now are all cables there
            yield batch("ip", namespace, far)


def _cable_line(port: str, peer: str, namespace: str) -> str:
    return f"link add {port} type veth peer name {peer} netns {namespace}"


def _plug_line(port: str) -> str:
    return f"link set dev {port} master bridge addrgenmode none up"


def _plug_commands(wiring: Cabling) -> Iterator[Command]:
    """Interfaces that hosts have no address on, because a bridge has it."""
    for host in wiring.hosts:
        lines = [
            f"link set dev {each.cable} addrgenmode none up"
            for each in host.interfaces
            if each.cable
        ]
        if lines:
            yield batch("ip", host.namespace, lines)


def _is_configured(port: Port, wiring: Cabling, networks: Mapping[str, HostNetwork]) -> bool:
    """Whether generated configuration shapes a host's interface."""
    return any(
        each.name == port.interface and each.queues
        for host in wiring.hosts
        if host.namespace == port.namespace and host.name in networks
        for each in networks[host.name].interfaces
    )


def _start_commands(
    wiring: Cabling, folders: Sequence[Path], kind: Kind, plain: Sequence[Port]
) -> Iterator[Command]:
    """Open vSwitch on every host; `plain` interfaces are shaped by others."""
    if kind != "ovs":
        return
    for host, folder in zip(wiring.hosts, folders, strict=True):
        yield from start_commands(host, folder)
        cables = [port.interface for port in plain if port.namespace == host.namespace]
        if cables:
            yield hold_command(host, cables, folder)


def _address_commands(
    wiring: Cabling, leaving: Sequence[Port], networks: Mapping[str, HostNetwork], kind: Kind
) -> Iterator[Command]:
    """Addresses and TCP's settings. No IPv6: the filters are for IPv4, it would not be shaped."""
    for place, host in enumerate(wiring.hosts):
        rates = [
            flow.bytes_per_second
            for port in leaving
            if port.namespace == host.namespace
            for lane in port.lanes
            for flow in lane.flows
        ]
        if host.name in networks:
            rates = queue_rates(networks[host.name]) or rates
        # A host has one size of packets: between what the slowest and the fastest flow need.
        wide = [rate for rate in rates if rate >= FAINT * max(rates)]
        packet = packet_bytes(sqrt(min(wide) * max(wide)) if wide else 0.0, len(wiring.hosts))
        if kind == "ovs":
            packet = max(packet, PACKET_BYTES)
        lines = ["link set dev lo up"]
        for cable in wiring.cables:
            if cable.host == place:
                lines += _interface_lines(wiring, cable, packet)
        yield batch("ip", host.namespace, lines)
        limit = "/proc/sys/net/ipv4/tcp_limit_output_bytes"  # each namespace has its own
        yield inside(host.namespace, "tee", limit, lines=(str(PACKETS_IN_FLIGHT * packet),))


def _interface_lines(wiring: Cabling, cable: Cable, packet: int) -> Iterator[str]:
    """An interface, its address, and routes to all that its cable leads to."""
    own = wiring.end(cable)
    yield f"link set dev {own.name} addrgenmode none gso_max_size {packet} up"
    yield f"address add {own.address}/{own.prefix} dev {own.name} noprefixroute"
    for network in _networks(wiring, cable):
        yield f"route add {network} dev {own.name} src {own.address} {ROUTE_OPTIONS}"


def _networks(wiring: Cabling, cable: Cable) -> Iterable[str]:
    """The interface's network, if all that the cable leads to is in it and no other cable's is."""
    own = _network(wiring, cable)
    peers = [ipaddress.IPv4Address(wiring.end(peer).address) for peer in wiring.peers(cable)]
    others = [each for each in wiring.cables if each.host == cable.host and each != cable]
    if all(each in own for each in peers) and not any(
        _network(wiring, each).overlaps(own) for each in others
    ):
        return (str(own),)
    return [f"{each}/32" for each in peers]


def _network(wiring: Cabling, cable: Cable) -> ipaddress.IPv4Network:
    end = wiring.end(cable)
    return ipaddress.IPv4Interface(f"{end.address}/{end.prefix}").network


def _shape_commands(ports: Iterable[Port], kind: Kind, num_hosts: int) -> Iterator[Command]:
    least = PACKET_BYTES if kind == "ovs" else 0
    lines: dict[str, list[str]] = {}
    for port in ports:
        lines.setdefault(port.namespace, []).extend(
            shape_lines(port, num_hosts=num_hosts, least_packet_bytes=least)
        )
    for namespace, each in lines.items():
        if each:
            yield batch("tc", namespace, each)
