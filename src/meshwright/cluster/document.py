"""The long form of a cluster file: its fields, read from and written to plain documents.

Knows the parts of a cluster, not the cluster; `meshwright.cluster.file` knows the other forms.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, TypedDict

import msgspec

from meshwright.cluster.devices import find_type
from meshwright.cluster.form import (
    FORMAT,
    VERSION,
    CalibrationDocument,
    DeviceDocument,
    InterfaceDocument,
    LinkDocument,
    LongDocument,
    TableDocument,
    TypeDocument,
)
from meshwright.cluster.interface import Interface
from meshwright.cluster.part import (
    MAX_LINKS,
    Calibration,
    CollectiveTable,
    Device,
    DeviceType,
    Link,
)
from meshwright.errors import InputError, errors_in, quoted
from meshwright.files import (
    ABSENT,
    MAX_VALUES,
    Fields,
    Name,
    decode_or,
    first_byte,
    is_given,
    probe_json,
)
from meshwright.units import (
    parse_bytes,
    parse_bytes_per_second,
    parse_flops_per_second,
    parse_seconds,
)

MAX_LINK_VALUES = 1 << 24
"""Four for each of the four million links of 2,048 devices that are all joined."""


class ClusterFields(TypedDict):
    """The arguments of `Cluster`."""

    name: str
    types: Mapping[str, DeviceType]
    devices: tuple[Device, ...]
    switches: tuple[str, ...]
    links: tuple[Link, ...]
    devices_relay: bool
    hop_bytes_per_second: tuple[float, ...]
    tables: tuple[CollectiveTable, ...]
    interfaces: tuple[Interface, ...]
    calibrations: tuple[Calibration, ...]


class ClusterProbe(msgspec.Struct):
    """The keys that tell the forms of a cluster file apart."""

    format: msgspec.Raw = ABSENT
    version: msgspec.Raw = ABSENT
    build: msgspec.Raw = ABSENT
    devices: msgspec.Raw = ABSENT
    hosts: msgspec.Raw = ABSENT
    racks: msgspec.Raw = ABSENT
    max_fpgas: msgspec.Raw = msgspec.field(name="maxFPGAs", default=ABSENT)
    max_devices: msgspec.Raw = msgspec.field(name="maxDevices", default=ABSENT)

    @property
    def is_short(self) -> bool:
        """Whether the document is of the short form."""
        return is_given(self.hosts) or is_given(self.racks)


def probe_cluster(data: bytes, where: str) -> ClusterProbe:
    """The keys of a document in JSON; one that is no object has none of them."""
    return probe_json(data, ClusterProbe, where) if first_byte(data) == b"{" else ClusterProbe()


def check_header(probe: ClusterProbe, where: str) -> None:
    """Refuse a document that is not a cluster file of a version we know. The short form, whose keys
    tell enough, may leave both out."""
    is_short = probe.is_short
    found = decode_or(probe.format, Name, "")
    if not is_short and not is_given(probe.format):
        raise InputError(
            f"{where}: not a cluster file (must have hosts or racks, or format {FORMAT!r}; "
            f"`meshwright cluster schema --text` lists all fields)"
        )
    if found != FORMAT and not (is_short and not is_given(probe.format)):
        shown = quoted(found) if found else "none"
        raise InputError(f"{where}: not a cluster file (format must be {FORMAT!r}, got {shown})")
    if decode_or(probe.version, int, 0) != VERSION and not (
        is_short and not is_given(probe.version)
    ):
        shown = bytes(memoryview(probe.version)[:40]).decode(errors="replace") or "none"
        raise InputError(f"{where}: version must be {VERSION}, got {shown}")


def decode_explicit(data: bytes, where: str) -> ClusterFields:
    """The fields of an explicit cluster document in JSON, checked one by one."""
    probe = probe_cluster(data, where)
    check_header(probe, where)
    if is_given(probe.build) or probe.is_short:
        what = "names a builder" if is_given(probe.build) else "is of the short form"
        raise InputError(
            f"{where}: {what}; read it with meshwright.cluster(path), not Cluster.load"
        )
    fields = Fields(data, LongDocument, where)
    read = LongDocument(
        **{
            name: fields.read(name, MAX_LINK_VALUES if name == "links" else MAX_VALUES)
            for name in LongDocument.__struct_fields__
        }
    )
    with errors_in(where):
        return _decode_fields(read)


def encode_explicit(fields: ClusterFields) -> dict[str, Any]:
    """The explicit document of a cluster; reading it back gives the same cluster, bit for bit."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "name": fields["name"],
        "types": {name: _encode_type(each) for name, each in fields["types"].items()},
        "devices": [
            asdict(each) | {"memory_bytes": float(each.memory_bytes)} for each in fields["devices"]
        ],
        "switches": list(fields["switches"]),
        "links": _encode_links(fields["links"]),
        "devices_relay": fields["devices_relay"],
        "hop_bytes_per_second": [float(rate) for rate in fields["hop_bytes_per_second"]],
        "tables": [
            asdict(each)
            | {
                "num_devices": int(each.num_devices),
                "num_hosts": int(each.num_hosts),
                "devices": list(each.devices),
                "sizes_bytes": [float(size) for size in each.sizes_bytes],
                "seconds": [float(time) for time in each.seconds],
            }
            for each in fields["tables"]
        ],
        **_encode_interfaces(fields["interfaces"]),
        **_encode_calibrations(fields["calibrations"]),
    }


def _decode_fields(read: LongDocument) -> ClusterFields:
    num_links = sum(1 + each.both_ways for each in read.links)
    if num_links > MAX_LINKS:
        raise InputError(f"links: must be at most {MAX_LINKS}, got {num_links:,}")
    named = decode_types(read.types)
    types = {each.type: find_type(each.type, named) for each in read.devices} | named
    return ClusterFields(
        name=read.name,
        types=types,
        devices=tuple(_decode_device(each, types[each.type]) for each in read.devices),
        switches=tuple(read.switches),
        links=tuple(link for each in read.links for link in _decode_link(each)),
        devices_relay=read.devices_relay,
        hop_bytes_per_second=tuple(
            parse_bytes_per_second(rate, "hop_bytes_per_second")
            for rate in read.hop_bytes_per_second
        ),
        tables=tuple(_decode_table(each) for each in read.tables),
        interfaces=decode_interfaces(read.interfaces),
        calibrations=tuple(map(_decode_calibration, read.calibrations)),
    )


def decode_interfaces(read: Sequence[InterfaceDocument]) -> tuple[Interface, ...]:
    """Checked one by one."""
    return tuple(Interface(**msgspec.structs.asdict(each)) for each in read)


def decode_types(read: Mapping[str, TypeDocument]) -> dict[str, DeviceType]:
    """The types of a file, by name."""
    return {name: _decode_type(name, each) for name, each in read.items()}


def _decode_type(name: str, read: TypeDocument) -> DeviceType:
    what = f"device type {quoted(name)}"
    return DeviceType(
        name=name,
        flops_per_second={
            precision: parse_flops_per_second(rate, f"{what}: peak {precision}")
            for precision, rate in read.flops_per_second.items()
        },
        memory_bytes=parse_bytes(read.memory_bytes, f"{what}: memory_bytes"),
        memory_bytes_per_second=parse_bytes_per_second(
            read.memory_bytes_per_second, f"{what}: memory_bytes_per_second"
        ),
        library_bytes=parse_bytes(read.library_bytes, f"{what}: library_bytes"),
        is_asynchronous=read.is_asynchronous,
        call_seconds=parse_seconds(read.call_seconds, f"{what}: call_seconds"),
        launch_share=float(read.launch_share),
        source=read.source,
    )


def _decode_device(read: DeviceDocument, kind: DeviceType) -> Device:
    size = kind.memory_bytes
    if read.memory_bytes is not None:
        size = parse_bytes(read.memory_bytes, f"device {quoted(read.name)}: memory_bytes")
    return Device(name=read.name, type=read.type, host=read.host, memory_bytes=size)


def _decode_link(read: LinkDocument) -> Sequence[Link]:
    # Written for speed: there may be millions, and nearly all have plain numbers.
    rate, delay = read.bytes_per_second, read.latency_seconds
    if isinstance(rate, str) or isinstance(delay, str):
        what = f"link {quoted(read.source)} -> {quoted(read.target)}"
        rate = parse_bytes_per_second(rate, f"{what}: bytes_per_second")
        delay = parse_seconds(delay, f"{what}: latency_seconds")
    link = Link(
        source=read.source,
        target=read.target,
        bytes_per_second=float(rate),
        latency_seconds=float(delay),
        kind=read.kind,
    )
    return (link, _reverse(link)) if read.both_ways else (link,)


def _decode_table(read: TableDocument) -> CollectiveTable:
    what = f"table {quoted(read.collective)}"
    return CollectiveTable(
        collective=read.collective,
        device_type=read.device_type,
        num_devices=read.num_devices,
        num_hosts=read.num_hosts,
        devices=tuple(read.devices),
        sizes_bytes=tuple(parse_bytes(size, f"{what}: sizes_bytes") for size in read.sizes_bytes),
        seconds=tuple(parse_seconds(time, f"{what}: seconds") for time in read.seconds),
    )


def _encode_type(kind: DeviceType) -> dict[str, Any]:
    return {
        "flops_per_second": {key: float(rate) for key, rate in kind.flops_per_second.items()},
        "memory_bytes": float(kind.memory_bytes),
        "memory_bytes_per_second": float(kind.memory_bytes_per_second),
        **({"library_bytes": float(kind.library_bytes)} if kind.library_bytes else {}),
        **({} if kind.is_asynchronous else {"is_asynchronous": False}),
        **({"call_seconds": float(kind.call_seconds)} if kind.call_seconds else {}),
        **({"launch_share": float(kind.launch_share)} if kind.launch_share != 1 else {}),
        **({"source": kind.source} if kind.source else {}),
    }


def _encode_interfaces(interfaces: Sequence[Interface]) -> dict[str, Any]:
    """Left out where there are none: earlier releases know of none."""
    entries = [
        {name: text for name, text in asdict(each).items() if text or name != "bridge"}
        for each in interfaces
    ]
    return {"interfaces": entries} if entries else {}


def _decode_calibration(read: CalibrationDocument) -> Calibration:
    what = f"calibration by {quoted(read.model)}"
    seconds = {
        name: parse_seconds(getattr(read, name), f"{what}: {name}")
        for name in ("predicted_seconds", "measured_seconds")
    }
    return Calibration(**msgspec.structs.asdict(read) | seconds)


def _encode_calibrations(calibrations: Sequence[Calibration]) -> dict[str, Any]:
    """Left out where there are none: earlier releases know of none."""
    entries = [asdict(each) for each in calibrations]
    return {"calibrations": entries} if entries else {}


def _encode_links(links: Sequence[Link]) -> list[dict[str, Any]]:
    """One entry a link; one for two where a link's reverse follows it, as builders leave them."""
    entries: list[dict[str, Any]] = []
    place = 0
    while place < len(links):
        link = links[place]
        entry: dict[str, Any] = {
            "source": link.source,
            "target": link.target,
            "bytes_per_second": float(link.bytes_per_second),
        }
        if link.latency_seconds:
            entry["latency_seconds"] = float(link.latency_seconds)
        if link.kind:
            entry["kind"] = link.kind
        if place + 1 < len(links) and links[place + 1] == _reverse(link):
            entry["both_ways"] = True
            place += 1
        entries.append(entry)
        place += 1
    return entries


def _reverse(link: Link) -> Link:
    return Link(
        source=link.target,
        target=link.source,
        bytes_per_second=link.bytes_per_second,
        latency_seconds=link.latency_seconds,
        kind=link.kind,
    )
