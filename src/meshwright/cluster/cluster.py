"""Devices and the network between them. Knows nothing about graphs.

A cluster is devices, hosts and switches (together: nodes) joined by directed links. Hosts and
switches forward traffic; devices forward it only in direct networks (mesh, torus). Routes are
fewest links first, then widest, then spread over equals by destination, as forwarding tables do.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints, Longs
from meshwright.cluster.document import decode_explicit, encode_explicit
from meshwright.cluster.hanging import Hangings, find_hangings
from meshwright.cluster.interface import Interface
from meshwright.cluster.kind import KINDS, PLAIN, Protocol
from meshwright.cluster.pair import (
    Routes,
    RouteWiring,
    cut_out,
    find_pairs,
    make_wiring,
    read_pairs,
)
from meshwright.cluster.part import (
    MAX_DEVICES,
    MAX_LINKS,
    Calibration,
    CollectiveTable,
    Device,
    DeviceType,
    Link,
)
from meshwright.cluster.reach import unreachable_pair
from meshwright.cluster.route import Network, Routing, find_routes
from meshwright.cluster.way import HostWays, find_exits, find_ways, match_interfaces
from meshwright.errors import InputError, errors_in, one_line, quoted
from meshwright.files import MAX_NAME, as_json, read_bytes, write_document
from meshwright.table import as_frame, as_html
from meshwright.units import LEAST_RATE, format_count, need_quantity

__all__ = [
    "Calibration", "Cluster", "CollectiveTable", "Device", "DeviceType", "Interface", "Link",
    "Routes",
]  # fmt: skip

_TUPLES = (
    "devices", "switches", "links", "hop_bytes_per_second", "tables", "interfaces", "calibrations",
)  # fmt: skip

MAX_TABLE_DEVICES = 1024
"""Up to so many devices the tables of all pairs are simply made: 0.2 s and 30 MB."""
MAX_WAY_HOSTS = 512
"""Up to so many hosts the ways of all pairs are listed; nobody shapes more than some dozens."""
MIN_CUTOUT_SOURCES = 64
"""From so many sources on, a search from each target over all nodes is faster than one a pair."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Cluster:
    """Devices, the nodes that join them, and the links between all of these."""

    name: str
    types: Mapping[str, DeviceType]
    devices: tuple[Device, ...]
    switches: tuple[str, ...] = ()
    links: tuple[Link, ...] = ()
    devices_relay: bool = False
    """Whether devices forward traffic of others (mesh and torus)."""
    hop_bytes_per_second: tuple[float, ...] = ()
    """Bandwidth of a route by its number of links (first entry: one link; last: that many or
    more). Empty: a route is as wide as its narrowest link."""
    tables: tuple[CollectiveTable, ...] = ()
    """Measured collectives, which override formulas."""
    interfaces: tuple[Interface, ...] = ()
    """What hosts call their network interfaces, for all of them or none; see `interface_of`."""
    calibrations: tuple[Calibration, ...] = ()
    """Runs whose predictions were held against what they took: what predictions are worth."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "types", MappingProxyType(dict(self.types)))
        for name in _TUPLES:
            object.__setattr__(self, name, tuple(getattr(self, name)))
        _check_names(self)
        _check_types(self)
        _check_reachable(self)
        if self.interfaces:
            _check_interfaces(self)

    def __repr__(self) -> str:
        return f"Cluster({', '.join((quoted(self.name), *self.facts.values()))})"

    def _repr_html_(self) -> str:
        return as_html(f"cluster {self.name}", self.facts)

    @property
    def facts(self) -> dict[str, str]:
        """What it is made of, for people."""
        counts = Counter(device.type for device in self.devices)
        types = ", ".join(f"{count:,} {name}" for name, count in counts.items())
        return {
            "devices": f"{format_count(self.num_devices, 'device')} ({one_line(types, 200)})",
            "hosts": format_count(len(self.hosts), "host"),
            "switches": format_count(len(self.switches), "switch"),
            "links": format_count(len(self.links), "link"),
        }

    def to_pandas(self) -> Any:
        """A pandas.DataFrame with a row for each device."""
        return as_frame(
            {
                name: [getattr(device, name) for device in self.devices]
                for name in ("name", "type", "host", "memory_bytes")
            }
        )

    @property
    def num_devices(self) -> int:
        """How many devices the cluster has."""
        return len(self.devices)

    @cached_property
    def hosts(self) -> tuple[str, ...]:
        """Host names, in order of their first device."""
        return tuple(dict.fromkeys(device.host for device in self.devices))

    @cached_property
    def host_index(self) -> Mapping[str, int]:
        """The number of each host, by name."""
        return MappingProxyType({host: i for i, host in enumerate(self.hosts)})

    @cached_property
    def host_of(self) -> Longs:
        """For each device the number of its host."""
        return np.array([self.host_index[device.host] for device in self.devices], dtype=np.int64)

    @cached_property
    def devices_of_host(self) -> tuple[tuple[int, ...], ...]:
        """For each host the numbers of its devices."""
        found: list[list[int]] = [[] for _ in self.hosts]
        for number, host in enumerate(self.host_of.tolist()):
            found[host].append(number)
        return tuple(map(tuple, found))

    @cached_property
    def nodes(self) -> tuple[str, ...]:
        """Every node's name: devices first, then hosts, then switches."""
        return (*(device.name for device in self.devices), *self.hosts, *self.switches)

    @cached_property
    def index(self) -> Mapping[str, int]:
        """The number of each device, by name."""
        return MappingProxyType({device.name: i for i, device in enumerate(self.devices)})

    @cached_property
    def type_names(self) -> tuple[str, ...]:
        """The device types that are present, in order of their first device."""
        return tuple(dict.fromkeys(device.type for device in self.devices))

    @cached_property
    def type_of(self) -> Ints:
        """For each device the position of its type in `type_names`."""
        place = {name: i for i, name in enumerate(self.type_names)}
        return np.array([place[device.type] for device in self.devices], dtype=np.int32)

    @cached_property
    def memory_bytes(self) -> Floats:
        """The memory of each device, in bytes."""
        return np.array([device.memory_bytes for device in self.devices])

    @cached_property
    def network(self) -> Network:
        """Nodes, numbered as in `nodes`, and links as arrays."""
        place = {name: i for i, name in enumerate(self.nodes)}
        try:
            sources = np.array([place[link.source] for link in self.links], dtype=np.int32)
            targets = np.array([place[link.target] for link in self.links], dtype=np.int32)
        except KeyError:
            bad = next(each for each in self.links if {each.source, each.target} - place.keys())
            end = bad.target if bad.source in place else bad.source
            raise InputError(f"{bad.label}: no node {quoted(end)}") from None
        return Network(
            num_devices=self.num_devices,
            num_nodes=len(self.nodes),
            sources=sources,
            targets=targets,
            bytes_per_second=self.link_bytes_per_second,
            latency_seconds=self.link_latency_seconds(Protocol.PAIR),
            devices_relay=self.devices_relay,
        )

    @cached_property
    def link_bytes_per_second(self) -> Floats:
        """What can be reached of each link's bandwidth."""
        rates = np.array([link.bytes_per_second for link in self.links], dtype=np.float64)
        if self.has_kinds:
            rates *= np.array([KINDS[link.kind].share for link in self.links])
        return rates

    @cached_property
    def has_kinds(self) -> bool:
        """Whether any link is of a kind."""
        return any(link.kind for link in self.links)

    @cached_property
    def plain(self) -> "Cluster":
        """The same with links of no kind: as data sheets and people describe it."""
        if not self.has_kinds:
            return self
        return replace(self, links=tuple(replace(link, kind=PLAIN) for link in self.links))

    def link_latency_seconds(self, protocol: Protocol) -> Floats:
        """Each link's latency where messages are sent by a protocol."""
        latency = np.array([link.latency_seconds for link in self.links], dtype=np.float64)
        if self.has_kinds:
            latency *= np.array([KINDS[link.kind].uses[protocol].delay for link in self.links])
        return latency

    @cached_property
    def routing(self) -> Routing:
        """Routes between all pairs of devices."""
        return find_routes(self.network, self.hop_bytes_per_second)

    @cached_property
    def wiring(self) -> RouteWiring:
        """What searches for the routes of single pairs work on."""
        return make_wiring(self.network)

    @cached_property
    def hangings(self) -> Hangings | None:
        """What tells the routes between devices of different hosts apart; None: nothing short."""
        return find_hangings(self.network, self.host_of)

    @cached_property
    def ways(self) -> HostWays:
        """The ways between all pairs of hosts."""
        if len(self.hosts) > MAX_WAY_HOSTS:
            raise InputError(
                f"cluster {quoted(self.name)}: traffic is divided between the interfaces of at "
                f"most {MAX_WAY_HOSTS:,} hosts, got {len(self.hosts):,}"
            )
        return find_ways(self.network, self.devices_of_host, self.routes_between)

    @cached_property
    def interface_of(self) -> Mapping[int, Interface]:
        """By the number of a link from a host to a switch: the host's interface to that link.

        As `interfaces` names them; where it is empty, `eth0`, `eth1`, ... with addresses of their
        own, as a testbed has them.
        """
        exits = find_exits(self.network, len(self.hosts))
        ends = tuple((self.links[link].source, self.links[link].target) for link in exits)
        return match_interfaces(self.hosts, ends, exits, self.interfaces)

    @property
    def has_tables(self) -> bool:
        """Whether the routes of all pairs are at hand, or are found in less than a second."""
        return self.num_devices <= MAX_TABLE_DEVICES or "routing" in self.__dict__

    def routes_between(self, sources: npt.ArrayLike, targets: npt.ArrayLike) -> Routes:
        """The routes of pairs of devices (numbers, one of each a pair), as `routing` has them.

        For clusters whose tables of all pairs would take seconds and gigabytes.
        """
        pairs = np.asarray(sources, dtype=np.int32), np.asarray(targets, dtype=np.int32)
        if self.has_tables:
            return read_pairs(self.routing, *pairs)
        return find_pairs(self.wiring, *pairs, self.hop_bytes_per_second)

    def pair_table(self, sources: npt.ArrayLike, targets: npt.ArrayLike) -> tuple[Floats, Floats]:
        """Bandwidth and latency from each of some devices to each of others (source x target)."""
        rows, columns = np.asarray(sources, dtype=np.int32), np.asarray(targets, dtype=np.int32)
        if self.has_tables:
            routing, places = self.routing, columns
        elif len(rows) < MIN_CUTOUT_SOURCES:
            routes = self.routes_between(np.repeat(rows, len(columns)), np.tile(columns, len(rows)))
            shape = len(rows), len(columns)
            return routes.bandwidth.reshape(shape), routes.latency.reshape(shape)
        else:
            cutout = cut_out(self.network, np.union1d(rows, columns))
            routing = cutout.routes_to(cutout.places(columns), self.hop_bytes_per_second)
            rows, places = cutout.places(rows), np.arange(len(columns), dtype=np.int32)
        # Rows before columns: twice as fast as both at once.
        return (
            routing.bandwidth.take(rows, axis=0).take(places, axis=1),
            routing.latency.take(rows, axis=0).take(places, axis=1),
        )

    @property
    def bandwidth(self) -> Floats:
        """Bytes a second from device to device of one transfer alone; infinite to itself."""
        return self.routing.bandwidth

    @property
    def latency(self) -> Floats:
        """Seconds from device to device; zero to itself."""
        return self.routing.latency

    def save(self, path: str | Path) -> None:
        """Write a cluster file (YAML or JSON by suffix, gzip when the name ends in .gz)."""
        own: Any = {each.name: getattr(self, each.name) for each in fields(self)}
        write_document(path, encode_explicit(own))

    @staticmethod
    def load(path: str | Path) -> "Cluster":
        """Read a cluster file as `save` writes it; `load_cluster` reads every other form too."""
        return Cluster.from_json(as_json(read_bytes(path), str(path)), str(path))

    @staticmethod
    def from_json(data: bytes, where: str) -> "Cluster":
        """The cluster of an explicit document in JSON."""
        decoded = decode_explicit(data, where)
        with errors_in(where):
            return Cluster(**decoded)


def _check_names(cluster: Cluster) -> None:
    where = f"cluster {quoted(cluster.name)}"
    if len(cluster.name) > MAX_NAME:
        raise InputError(
            f"{where}: its name must have at most {MAX_NAME:,} characters, got "
            f"{len(cluster.name):,}"
        )
    if not cluster.devices:
        raise InputError(f"{where}: must have at least one device")
    if cluster.num_devices > MAX_DEVICES:
        raise InputError(
            f"{where}: must have at most {MAX_DEVICES:,} devices, got {cluster.num_devices:,}"
        )
    if len(cluster.links) > MAX_LINKS:
        raise InputError(
            f"{where}: must have at most {MAX_LINKS:,} links, got {len(cluster.links):,}"
        )
    seen: set[str] = set()
    for name in cluster.nodes:
        if not 0 < len(name) <= MAX_NAME:
            raise InputError(
                f"{where}: a node's name must have from 1 to {MAX_NAME:,} characters, got "
                f"{len(name):,}"
            )
        if name in seen:
            raise InputError(f"{where}: node names must be unique, {quoted(name)} stands twice")
        seen.add(name)


def _check_types(cluster: Cluster) -> None:
    for device in cluster.devices:
        if device.type not in cluster.types:
            known = ", ".join(sorted(cluster.types))
            raise InputError(
                f"device {quoted(device.name)}: unknown device type {quoted(device.type)} "
                f"(known here: {known})"
            )
    what = f"cluster {quoted(cluster.name)}: hop_bytes_per_second"
    for rate in cluster.hop_bytes_per_second:
        need_quantity(rate, what, least=LEAST_RATE, is_positive=True)


def _check_interfaces(cluster: Cluster) -> None:
    """Each stands for a link; names are unique on a host, addresses in the cluster."""
    _ = cluster.interface_of
    for what, keys in (
        ("name", [(each.host, each.name) for each in cluster.interfaces]),
        ("address", [each.address.partition("/")[0] for each in cluster.interfaces]),
    ):
        for key, count in Counter(keys).items():
            if count > 1:
                shown = key if isinstance(key, str) else f"{key[1]} of host {quoted(key[0])}"
                raise InputError(
                    f"cluster {quoted(cluster.name)}: an interface's {what} must be its own, "
                    f"{shown} stands {count} times"
                )


def _check_reachable(cluster: Cluster) -> None:
    network = cluster.network
    pair = unreachable_pair(
        network.num_devices,
        network.num_nodes,
        network.sources.tolist(),
        network.targets.tolist(),
        network.devices_relay,
    )
    if pair is not None:
        source, target = (quoted(cluster.devices[place].name) for place in pair)
        raise InputError(
            f"cluster {quoted(cluster.name)}: device {target} cannot be reached from {source}"
        )
