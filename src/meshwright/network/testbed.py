"""Plans a testbed: the hosts of a cluster as Linux network namespaces with shaped links.

Decides names, addresses, rates and the commands that build and remove it, as data. Runs nothing
(see `meshwright.network.testbed_apply`). Bandwidth only: delays are not emulated.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError, quoted
from meshwright.network.testbed_path import Pair, Path, find_paths, find_switch_tree
from meshwright.network.testbed_port import PACKETS_IN_FLIGHT, Port, packet_bytes, shape_lines
from meshwright.network.testbed_remark import find_remarks
from meshwright.network.testbed_wiring import (
    SUBNET,
    EmulatedHost,
    Wiring,
    find_ports,
    host_port,
    trunk_port,
    wire_hosts,
)

DEFAULT_NAME = "mw"
MAX_HOSTS = 64
"""Every host has a class for every other; one machine has no cores for more anyway."""
ROUTE_OPTIONS = "congctl cubic initcwnd 64 initrwnd 64 rto_min 20ms"
"""Cubic, because BBR hovers around the rate it measures; a first window that fills any link here,
so that neither a new connection nor an idle one starts slowly. As options of a route these need no
setting of the machine."""
_NAME = re.compile(r"[a-z0-9]{1,16}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A program with its arguments, and lines for its standard input."""

    argv: tuple[str, ...]
    lines: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Testbed:
    """What to build, and how."""

    name: str
    cluster: str
    """The cluster's name."""
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


def remove_command(namespace: str) -> Command:
    """Removes one namespace."""
    return Command(argv=("ip", "netns", "delete", namespace))


def plan_testbed(cluster: Cluster, name: str = DEFAULT_NAME) -> Testbed:
    """The testbed of a cluster: one namespace a host, one or more that switch."""
    check_name(name)
    if len(cluster.hosts) > MAX_HOSTS:
        raise InputError(
            f"cluster {quoted(cluster.name)}: a testbed has at most {MAX_HOSTS} hosts, "
            f"got {len(cluster.hosts)}"
        )
    paths = find_paths(cluster)
    tree = find_switch_tree(cluster, paths)
    wiring = wire_hosts(cluster, name, tree)
    namespaces = (*(host.namespace for host in wiring.hosts), *wiring.switches)
    return Testbed(
        name=name,
        cluster=cluster.name,
        hosts=wiring.hosts,
        namespaces=namespaces,
        build=(
            *(Command(argv=("ip", "netns", "add", each)) for each in namespaces),
            *_switch_commands(wiring),
            *_host_commands(wiring, paths),
            *_shape_commands(find_ports(cluster, paths, wiring)),
        ),
        remove=tuple(remove_command(each) for each in namespaces),
        remarks=find_remarks(cluster, paths, is_tree=tree is not None),
    )


def _switch_commands(wiring: Wiring) -> Iterator[Command]:
    """Bridges and cables, made inside the namespaces: nothing appears on the machine itself."""
    lines = [
        ["link add bridge type bridge", "link set dev bridge addrgenmode none up"]
        for _ in wiring.switches
    ]
    for place, host in enumerate(wiring.hosts):
        near = lines[wiring.switch_of_host[place]]
        near.append(_cable_line(host_port(place), host.interface, host.namespace))
        near.append(_plug_line(host_port(place)))
    for one, other in wiring.trunks:
        lines[one].append(_cable_line(trunk_port(other), trunk_port(one), wiring.switches[other]))
        lines[one].append(_plug_line(trunk_port(other)))
    for namespace, batch in zip(wiring.switches, lines, strict=True):
        yield _batch("ip", namespace, batch)
    for place, namespace in enumerate(wiring.switches):
        far = [_plug_line(trunk_port(one)) for one, other in wiring.trunks if other == place]
        if far:  # only now are all cables there
            yield _batch("ip", namespace, far)


def _cable_line(port: str, peer: str, namespace: str) -> str:
    return f"link add {port} type veth peer name {peer} netns {namespace}"


def _plug_line(port: str) -> str:
    return f"link set dev {port} master bridge addrgenmode none up"


def _host_commands(wiring: Wiring, paths: Mapping[Pair, Path]) -> Iterator[Command]:
    """Addresses and TCP's settings. No IPv6: the filters are for IPv4, it would not be shaped."""
    for place, host in enumerate(wiring.hosts):
        rates = [path.bytes_per_second for (source, _), path in paths.items() if source == place]
        # An interface has one size of packets: between what the slowest and the fastest need.
        packet = packet_bytes(sqrt(min(rates) * max(rates)) if rates else 0.0)
        yield _batch(
            "ip",
            host.namespace,
            [
                "link set dev lo up",
                f"link set dev {host.interface} addrgenmode none gso_max_size {packet} up",
                f"address add {host.address}/24 dev {host.interface} noprefixroute",
                f"route add {SUBNET}.0/24 dev {host.interface} src {host.address} {ROUTE_OPTIONS}",
            ],
        )
        limit = "/proc/sys/net/ipv4/tcp_limit_output_bytes"  # each namespace has its own
        yield Command(
            argv=("ip", "netns", "exec", host.namespace, "tee", limit),
            lines=(str(PACKETS_IN_FLIGHT * packet),),
        )


def _shape_commands(ports: tuple[Port, ...]) -> Iterator[Command]:
    lines: dict[str, list[str]] = {}
    for port in ports:
        lines.setdefault(port.namespace, []).extend(shape_lines(port))
    for namespace, batch in lines.items():
        if batch:
            yield _batch("tc", namespace, batch)


def _batch(program: str, namespace: str, lines: list[str]) -> Command:
    return Command(argv=(program, "-n", namespace, "-batch", "-"), lines=tuple(lines))
