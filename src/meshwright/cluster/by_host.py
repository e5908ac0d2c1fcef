"""The short form of a cluster file: hosts, perhaps in racks, with their units and types read.

What the hosts and racks are joined by is decided in `meshwright.cluster.builder.hosts`.
"""

import re
from collections.abc import Mapping, Sequence

from meshwright.cluster.builder.hosts import HostGroup, RackGroup, from_hosts
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.cluster.devices import find_type
from meshwright.cluster.document import decode_types
from meshwright.cluster.form import HostDocument, HostsDocument, RackDocument
from meshwright.cluster.part import MAX_DEVICES
from meshwright.errors import InputError, quoted
from meshwright.units import parse_bytes_per_second, parse_seconds

_COUNTED = re.compile(r"\s*(?:([0-9]+)\s*[xX*\u00d7]\s*)?(.*?)\s*", re.DOTALL)
"""'8 x ' and what there are eight of; without a number there is one."""


def decode_hosts(read: HostsDocument) -> Cluster:
    """The cluster of a document of the short form, without its interfaces."""
    return from_hosts(racks=decode_racks(read), **decode_latencies(read), name=read.name)


def decode_latencies(read: HostsDocument) -> dict[str, float]:
    """The latencies of the network, as `from_hosts` calls them."""
    return {
        f"{name}_seconds": parse_seconds(getattr(read, name), name)
        for name in ("network_latency", "switch_latency")
    }


def decode_racks(read: HostsDocument) -> list[RackGroup]:
    """The racks of a document; hosts without racks are one."""
    types = decode_types(read.types)
    if bool(read.hosts) == bool(read.racks):
        got = "both" if read.hosts else "none of either"
        raise InputError(f"must have hosts or racks, got {got}")
    if read.hosts:
        return [RackGroup(hosts=_read_hosts(read.hosts, "hosts", types), name="switch")]
    return [_read_rack(each, f"racks[{place}]", types) for place, each in enumerate(read.racks)]


def _read_rack(read: RackDocument, label: str, types: Mapping[str, DeviceType]) -> RackGroup:
    if read.oversubscription is not None and read.uplink is not None:
        raise InputError(f"{label}: must have oversubscription or uplink, got both")
    return RackGroup(
        hosts=_read_hosts(read.hosts, f"{label}.hosts", types),
        count=read.count,
        name=read.name or "",
        oversubscription=1.0 if read.oversubscription is None else read.oversubscription,
        uplink_bytes_per_second=_read_rate(read.uplink, f"{label}.uplink"),
        label=label,
    )


def _read_hosts(
    read: Sequence[HostDocument], label: str, types: Mapping[str, DeviceType]
) -> tuple[HostGroup, ...]:
    return tuple(
        _read_host(each, f"{label}[{place}]", types) for place, each in enumerate(read)
    )  # fmt: skip


def _read_host(read: HostDocument, label: str, types: Mapping[str, DeviceType]) -> HostGroup:
    num_nics, nic_rate = read_nics(read.nics, f"{label}.nics")
    has_nvlink = read.nvlink != "none"
    devices = [read.devices] if isinstance(read.devices, str) else read.devices
    return HostGroup(
        devices=tuple(read_devices(each, f"{label}.devices", types) for each in devices),
        count=read.count,
        name=read.name or "",
        num_nics=num_nics,
        nic_bytes_per_second=nic_rate,
        has_nvlink=has_nvlink,
        nvlink_bytes_per_second=(
            _read_rate(read.nvlink, f"{label}.nvlink") if has_nvlink else None
        ),
        pcie_bytes_per_second=_read_rate(read.pcie, f"{label}.pcie"),
        latency_seconds=(
            None if read.latency is None else parse_seconds(read.latency, f"{label}.latency")
        ),
        label=label,
    )


def read_devices(
    text: str, what: str, types: Mapping[str, DeviceType]
) -> tuple[int, DeviceType]:  # fmt: skip
    """Number and type of devices: '8 x h100'."""
    number, name = _read_counted(text, what)
    if not name:
        raise InputError(f"{what}: must be such as '8 x h100', got {quoted(text)}")
    try:
        return number, find_type(name if name in types else name.lower(), types)
    except InputError as error:
        rule = "; must be such as '8 x h100'" if re.search(r"\s|^[^A-Za-z]+$", name) else ""
        raise InputError(f"{what}: {error}{rule}") from None


def read_nics(value: float | str | None, what: str) -> tuple[int, float]:
    """Number and rate of NICs: '8 x 400 Gb/s'; none of either where nothing is said."""
    if value is None:
        return 0, 0.0
    number, rate = _read_counted(value, what) if isinstance(value, str) else (1, value)
    return number, parse_bytes_per_second(rate, what)


def _read_counted(text: str, what: str) -> tuple[int, str]:
    match = _COUNTED.fullmatch(text)
    assert match is not None  # it takes any text
    if match[1] and not 1 <= int(match[1][:18]) <= MAX_DEVICES:
        raise InputError(f"{what}: must be from 1 to {MAX_DEVICES}, got {quoted(match[1], 30)}")
    return int(match[1] or 1), match[2]


def _read_rate(value: float | str | None, what: str) -> float | None:
    return None if value is None else parse_bytes_per_second(value, what)
