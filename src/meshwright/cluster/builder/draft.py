"""A cluster being drawn: nodes and links are added, then it is finished. Also checks of counts."""

import operator
from collections.abc import Sequence
from math import prod

from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.cluster.devices import find_type
from meshwright.cluster.kind import KINDS, PLAIN
from meshwright.cluster.part import MAX_DEVICES, MAX_LINKS
from meshwright.errors import InputError, quoted
from meshwright.units import LEAST_RATE, need_quantity

# Latency of one hop between two devices, in seconds. A path of two equal links gets half on each.
NVLINK_SECONDS = KINDS["nvlink3"].latency_seconds
PCIE_SECONDS = KINDS["pcie"].latency_seconds
NETWORK_SECONDS = KINDS["network"].latency_seconds
SWITCH_LINK_SECONDS = 0.3e-6
"""A further switch on the way, from port to port: 0.23 us (Quantum-2, InfiniBand) to 0.4 us
(Ethernet) by their makers' briefs, and some metres of fibre at 5 ns each."""

PCIE3_BYTES_PER_SECOND = 11e9
"""Measured over 16 lanes of generation 3 (15.75 GB/s raw); a generation doubles it."""


class Draft:
    """Collects devices, switches and links in order."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.types: dict[str, DeviceType] = {}
        self.devices: list[Device] = []
        self.switches: list[str] = []
        self.links: list[Link] = []

    def add_host(
        self, host: str, device_type: DeviceType | str, num_devices: int, first: int = 0
    ) -> list[str]:
        """Add a host's devices, numbered from `first` on, without links; their names."""
        kind = find_type(device_type)
        self.types[kind.name] = kind
        names = [f"{host}.{place}" for place in range(first, first + num_devices)]
        self.devices.extend(
            Device(name=name, type=kind.name, host=host, memory_bytes=kind.memory_bytes)
            for name in names
        )
        return names

    def add_switch(self, name: str) -> str:
        """Add a switch; its name."""
        self.switches.append(name)
        return name

    def join(
        self,
        one: str,
        other: str,
        bytes_per_second: float,
        latency: float = 0.0,
        kind: str = PLAIN,
    ) -> None:
        """Add a link each way."""
        if len(self.links) + 2 > MAX_LINKS:
            raise InputError(f"cluster {quoted(self.name)}: must have at most {MAX_LINKS:,} links")
        for source, target in ((one, other), (other, one)):
            self.links.append(
                Link(
                    source=source,
                    target=target,
                    bytes_per_second=bytes_per_second,
                    latency_seconds=latency,
                    kind=kind,
                )
            )

    def join_all(
        self,
        many: Sequence[str],
        other: str,
        bytes_per_second: float,
        latency: float = 0.0,
        kind: str = PLAIN,
    ) -> None:
        """Join each of many nodes to one."""
        for each in many:
            self.join(each, other, bytes_per_second, latency, kind)

    def finish(
        self, *, devices_relay: bool = False, hop_bytes_per_second: Sequence[float] = ()
    ) -> Cluster:
        """The cluster of all that was added, with its rules checked."""
        return Cluster(
            name=self.name,
            types=self.types,
            devices=tuple(self.devices),
            switches=tuple(self.switches),
            links=tuple(self.links),
            devices_relay=devices_relay,
            hop_bytes_per_second=tuple(hop_bytes_per_second),
        )


def check_counts(*, most_devices: int = MAX_DEVICES, **counts: int) -> None:
    """Refuse counts below one, and a product of all of them above `most_devices`."""
    for name, count in counts.items():
        try:
            operator.index(count)
        except TypeError:
            raise InputError(f"{name} must be a whole number, got {count!r}") from None
        if count < 1:
            raise InputError(f"{name} must be at least 1, got {str(count)[:40]}")
        if count > most_devices:
            raise InputError(f"{name} must be at most {most_devices}, got {str(count)[:40]}")
    total = prod(int(count) for count in counts.values())
    if total > most_devices:
        raise InputError(
            f"{' x '.join(counts)} must be at most {most_devices:,} devices, got {total}"
        )


def check_joined(**counts: int) -> None:
    """Refuse to join each of many nodes to each of many others, where that takes too many links."""
    if 2 * prod(counts.values()) > MAX_LINKS:
        raise InputError(
            f"{' x '.join(counts)} must be at most {MAX_LINKS // 2}, got {prod(counts.values())}"
        )


def check_positive(**values: float) -> None:
    """Refuse rates and ratios that are not positive, or beyond all that exists."""
    for name, value in values.items():
        need_quantity(value, name, least=LEAST_RATE, is_positive=True)
