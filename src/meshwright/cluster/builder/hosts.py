"""Clusters by their hosts: what is in a host, how many there are, and in which racks."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import TypeVar

from meshwright.cluster.builder.draft import NETWORK_SECONDS, SWITCH_LINK_SECONDS, Draft
from meshwright.cluster.builder.inside import INSIDE, UNKNOWN, Inside, join_inside
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.cluster.kind import PLAIN
from meshwright.cluster.part import MAX_DEVICES
from meshwright.errors import InputError
from meshwright.units import LEAST_RATE, MOST_LATENCY, need_quantity

MAX_NICS = 8 * MAX_DEVICES
"""Of all hosts together; each may be a node with four links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostGroup:
    """Some hosts that are alike."""

    devices: tuple[tuple[int, DeviceType], ...]
    """Number and type of each group of devices that NVLink joins, if they have it, in a host."""
    count: int = 1
    name: str = ""
    """Of a single host; of several, what stands before their number. Empty: `host`."""
    num_nics: int = 0
    nic_bytes_per_second: float = 0.0
    """The rate of each NIC, each way."""
    has_nvlink: bool = True
    """Whether devices keep the links besides PCIe that they are sold with."""
    nvlink_bytes_per_second: float | None = None
    """Each way between a device and a switch of its type. None: as sold."""
    pcie_bytes_per_second: float | None = None
    """Each way between a device and its host. None: as sold."""
    latency_seconds: float | None = None
    """Between two devices of a host. None: by what joins them."""
    label: str = "hosts"
    """What messages call it."""

    def __post_init__(self) -> None:
        _check_count(f"{self.label}.count", self.count)
        if not self.devices or min(number for number, _ in self.devices) < 1:
            raise InputError(f"{self.label}.devices: must be at least one")
        if self.num_nics < 0:
            raise InputError(f"{self.label}.nics: must not be negative, got {self.num_nics:,}")
        if self.num_nics:
            _check_rate(f"{self.label}.nics", self.nic_bytes_per_second)
        _check_rate(f"{self.label}.nvlink", self.nvlink_bytes_per_second)
        _check_rate(f"{self.label}.pcie", self.pcie_bytes_per_second)
        _check_latency(f"{self.label}.latency", self.latency_seconds or 0.0)

    @property
    def num_devices(self) -> int:
        """How many devices each of the hosts has."""
        return sum(number for number, _ in self.devices)

    def inside(self, kind: DeviceType) -> Inside:
        """How devices of a type are joined in these hosts."""
        known = INSIDE.get(kind.name, UNKNOWN)
        if self.nvlink_bytes_per_second is not None or not self.has_nvlink:
            known = replace(
                known,
                switch=self.nvlink_bytes_per_second or 0.0,
                pair=0.0,
                has_cube=False,
                has_ring=False,
                kind=known.kind or ("nvlink3" if known.has_library else PLAIN),
            )
        if self.pcie_bytes_per_second is not None:
            known = replace(known, pcie=self.pcie_bytes_per_second)
        return known


@dataclass(frozen=True, slots=True, kw_only=True)
class RackGroup:
    """Some racks that are alike: hosts on one switch."""

    hosts: tuple[HostGroup, ...]
    count: int = 1
    name: str = ""
    """Of a single rack's switch; of several, what stands before their number. Empty: `rack`."""
    oversubscription: float = 1.0
    uplink_bytes_per_second: float | None = None
    """Each way of the link upwards. None: what all NICs have, over the oversubscription."""
    label: str = "racks"
    """What messages call it."""

    def __post_init__(self) -> None:
        _check_count(f"{self.label}.count", self.count)
        if not self.hosts:
            raise InputError(f"{self.label}.hosts: must be at least one")
        _check_rate(f"{self.label}.oversubscription", self.oversubscription)
        _check_rate(f"{self.label}.uplink", self.uplink_bytes_per_second)

    @property
    def up_bytes_per_second(self) -> float:
        """What the link upwards carries, each way."""
        if self.uplink_bytes_per_second is not None:
            return self.uplink_bytes_per_second
        nics = sum(each.count * each.num_nics * each.nic_bytes_per_second for each in self.hosts)
        return nics / self.oversubscription


Group = TypeVar("Group", HostGroup, RackGroup)


def from_hosts(
    *,
    racks: Sequence[RackGroup],
    network_latency_seconds: float = NETWORK_SECONDS,
    switch_latency_seconds: float = SWITCH_LINK_SECONDS,
    name: str = "cluster",
) -> Cluster:
    """Hosts on the switches of their racks, these on a spine; one rack needs no spine, one host no
    switch.

    Devices with NVLink to all others of their host have NICs of their own, if there are enough, as
    in a DGX; else NICs are the host's, each with a link of its own to the rack's switch.
    """
    _check_latency("network_latency", network_latency_seconds)
    _check_latency("switch_latency", switch_latency_seconds)
    groups = [(rack.count * group.count, group) for rack in racks for group in rack.hosts]
    num_hosts = sum(number for number, _ in groups)
    num_devices = sum(number * group.num_devices for number, group in groups)
    if not 1 <= num_devices <= MAX_DEVICES:
        raise InputError(
            f"hosts: must have from 1 to {MAX_DEVICES:,} devices in all, got {num_devices:,}"
        )
    num_nics = sum(number * group.num_nics for number, group in groups)
    if num_nics > MAX_NICS:
        raise InputError(f"hosts: must have at most {MAX_NICS} NICs in all, got {num_nics:,}")
    host_name = _namer("host", [(number, group.name) for number, group in groups])
    rack_name = _namer("rack", [(rack.count, rack.name) for rack in racks])
    num_racks = sum(rack.count for rack in racks)
    draft = Draft(name)
    spine = draft.add_switch("spine") if num_racks > 1 else ""
    for rack in _repeat(racks):
        switch = draft.add_switch(rack_name(rack.name)) if num_hosts > 1 else ""
        for group in _repeat(rack.hosts):
            host = host_name(group.name)
            devices = _add_host(draft, host, group)
            if switch:
                _join_network(draft, host, devices, group, switch, network_latency_seconds / 2)
        if spine:
            draft.join(switch, spine, rack.up_bytes_per_second, switch_latency_seconds)
    return draft.finish()


def _repeat(groups: Sequence[Group]) -> Iterator[Group]:
    """Each group as often as it counts."""
    for group in groups:
        for _ in range(group.count):
            yield group


def _add_host(draft: Draft, host: str, group: HostGroup) -> list[str]:
    """A host's devices, joined; their names. Where there are several groups of them, each has a
    switch of NVLink of its own, and so have they where the rate to their host is known."""
    is_switch = len(group.devices) == 1 and group.pcie_bytes_per_second is None
    names: list[str] = []
    for place, (number, kind) in enumerate(group.devices):
        added = draft.add_host(host, kind, number, first=len(names))
        switch = "" if is_switch else f"{host}.nvlink{place}"
        inside, seconds = group.inside(kind), group.latency_seconds
        join_inside(draft, host, added, inside, seconds=seconds, switch=switch)
        names += added
    return names


def _join_network(
    draft: Draft, host: str, devices: list[str], group: HostGroup, switch: str, latency: float
) -> None:
    """Join a host's NICs to the switch of its rack."""
    if not group.num_nics:
        raise InputError(f"{group.label}.nics: must be given where there are several hosts")
    inside = group.inside(group.devices[0][1])
    is_joined = len(group.devices) == 1 and inside.reaches_all(len(devices))
    rate, link_kind = group.nic_bytes_per_second, inside.network_kind
    if is_joined and group.num_nics >= len(devices) > 1:
        draft.join_all(devices, switch, rate * group.num_nics / len(devices), latency, link_kind)
    elif group.num_nics == 1:
        draft.join(host, switch, rate, latency, link_kind)
    else:
        for place in range(group.num_nics):
            nic = draft.add_switch(f"{host}.nic{place}")
            draft.join(host, nic, rate, latency, link_kind)
            draft.join(nic, switch, rate, 0.0, link_kind)


def _namer(usual: str, wanted: Sequence[tuple[int, str]]) -> Callable[[str], str]:
    """What gives each node its name: the one that was wanted, numbered unless it is for one."""
    totals: Counter[str] = Counter()
    for number, name in wanted:
        totals[name] += number
    numbers: dict[str, Iterator[int]] = {name: count() for name in totals}
    return lambda name: (
        name if name and totals[name] == 1 else f"{name or usual}{next(numbers[name])}"
    )


def _check_count(what: str, value: int) -> None:
    if not 1 <= value <= MAX_DEVICES:
        raise InputError(f"{what}: must be from 1 to {MAX_DEVICES}, got {str(value)[:40]}")


def _check_rate(what: str, value: float | None) -> None:
    if value is not None:
        need_quantity(value, f"{what}:", least=LEAST_RATE, is_positive=True)


def _check_latency(what: str, value: float) -> None:
    need_quantity(value, f"{what}:", most=MOST_LATENCY)
