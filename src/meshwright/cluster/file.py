"""Cluster files of every form, recognised by content.

Forms: the long one (see `meshwright.cluster.document`); the short one, by hosts (see
`meshwright.cluster.by_host`); a builder and its arguments; and the clusters that published workload
files (dnn-partitioning, Piper) state beside their graphs.
"""

import dataclasses
import inspect
import re
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any

import msgspec

from meshwright.cluster import build
from meshwright.cluster.by_host import decode_hosts
from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.cluster.document import check_header, decode_interfaces, probe_cluster
from meshwright.cluster.doubt import find_doubts
from meshwright.cluster.form import BuilderDocument, HostsDocument, Quantity
from meshwright.errors import InputError, errors_in, nearest, quoted, some
from meshwright.files import (
    Fields,
    Name,
    as_json,
    decode_json,
    is_given,
    probe_json,
    read_bytes,
)
from meshwright.from_yaml import find_line
from meshwright.message import warn
from meshwright.units import parse_bytes_per_second, parse_seconds

BUILDERS: Mapping[str, Callable[..., Cluster]] = types.MappingProxyType(
    {
        name: getattr(build, name)
        for name in build.__all__
        if name not in ("from_hosts", "from_links")
    }
)
"""The builders a file may name. Lists of hosts and of links need none: they are forms."""

MAX_LIST = 2048
"""The most entries of a list among a builder's arguments."""
MAX_MATRIX_VALUES = 2 * MAX_LIST**2
"""Values of all arguments together; a matrix has a row for each device."""

_Quantity: Any = Quantity
_Row: Any = Annotated[list[_Quantity], msgspec.Meta(max_length=MAX_LIST)]
_Matrix: Any = Annotated[list[_Quantity | _Row], msgspec.Meta(max_length=MAX_LIST)] | _Quantity

DNN_PARTITIONING_BYTES_PER_SECOND = 2.0**31
"""dnn-partitioning states transfers in milliseconds; the graph reader turns them into bytes at
this rate, a power of two so that the times come back exactly."""
_UNLIMITED_BYTES = 2.0**50
"""Stands for a host memory that the file does not limit."""
_UNSTATED_RATE = 1e12
"""Stands for peaks that these files do not state: their ops carry measured times instead."""


_AT = re.compile(r" - at `([^`]*)`$")
"""How messages of msgspec name a field."""
_TYPE = re.compile(r"^device type '([^']*)': ")
"""How messages name what stands among a file's types."""
MAX_LINED_BYTES = 1 << 20
"""Lines are looked for in files up to this size; larger ones nobody has written by hand."""


class _DnnPartitioning(msgspec.Struct):
    max_fpgas: int = msgspec.field(name="maxFPGAs")
    max_size_per_fpga: float = msgspec.field(name="maxSizePerFPGA")
    max_cpus: int = msgspec.field(name="maxCPUs", default=0)


class _Piper(msgspec.Struct):
    max_devices: int = msgspec.field(name="maxDevices")
    max_memory_per_device: float = msgspec.field(name="maxMemoryPerDevice")
    bandwidth: float


def read_cluster(path: str | Path) -> Cluster:
    """Read a cluster file of any form, gzip or not, and warn of what it hardly means."""
    text = read_bytes(path)
    data = as_json(text, str(path))
    try:
        cluster = decode_cluster(data, str(path))
    except InputError as error:
        raise InputError(_with_line(str(error), text, path)) from None
    for doubt in find_doubts(cluster, data):
        warn(_with_line(f"{path}: {doubt}", text, path))
    return cluster


def _with_line(message: str, text: bytes, path: str | Path) -> str:
    """A message on a file with the line of the field that it names."""
    start = f"{path}: "
    if len(text) > MAX_LINED_BYTES or not message.startswith(start):
        return message
    rest = message.removeprefix(start)
    at = _AT.search(rest)
    line = find_line(text, at[1] if at else _TYPE.sub(r"types.\1.", rest, count=1))
    return message if line is None else f"{start}line {line}: {rest}"


def decode_cluster(data: bytes, where: str) -> Cluster:
    """The cluster that a file's content describes; `where` begins the messages."""
    data = as_json(data, where)
    probe = probe_cluster(data, where)
    try:
        if not is_given(probe.format) and is_given(probe.max_fpgas):
            return _read_dnn_partitioning(data, where)
        if not is_given(probe.format) and is_given(probe.max_devices):
            return _read_piper(data, where)
        check_header(probe, where)
        if is_given(probe.build):
            return _run_builder(Fields(data, BuilderDocument, where), where)
        if probe.is_short:
            fields = Fields(data, HostsDocument, where)
            read = HostsDocument(
                **{each: fields.read(each) for each in HostsDocument.__struct_fields__}
            )
            return _finish(_located(where, lambda: decode_hosts(read)), fields, where)
        if not is_given(probe.devices):
            keys = some(list(probe_json(data, dict[str, msgspec.Raw], where)))
            raise InputError(f"{where}: must have hosts, racks, devices or build, has {keys}")
        return Cluster.from_json(data, where)
    except OverflowError as error:  # a whole number too large for a float
        raise InputError(f"{where}: a number is too large ({error})") from None


def _run_builder(fields: Fields, where: str) -> Cluster:
    chosen = fields.read("build")
    if chosen not in BUILDERS:
        raise InputError(f"{where}: unknown builder {quoted(chosen)}; {nearest(chosen, BUILDERS)}")
    builder = BUILDERS[chosen]
    given = fields.read("arguments", max_values=MAX_MATRIX_VALUES)
    arguments = _check_arguments(builder, given, f"{where}: {chosen}")
    cluster = _located(f"{where}: {chosen}", lambda: builder(**arguments))
    return _finish(cluster, fields, where)


def _finish(cluster: Cluster, fields: Fields, where: str) -> Cluster:
    """The cluster with the name and the interfaces that the file gives it."""
    name, interfaces = fields.read("name"), fields.read("interfaces")
    return _located(
        where,
        lambda: dataclasses.replace(
            cluster,
            name=cluster.name if name is None else name,
            interfaces=decode_interfaces(interfaces),
        ),
    )


def _located(where: str, make: Callable[[], Cluster]) -> Cluster:
    """Make a cluster; a refusal says where it was described."""
    with errors_in(where):
        return make()


def _check_arguments(
    builder: Callable[..., Cluster], given: Mapping[str, msgspec.Raw], where: str
) -> dict[str, Any]:
    """The arguments, checked against the builder's signature and with their units read."""
    known = dict(inspect.signature(builder).parameters)
    known.pop("name", None)
    for name in given:
        if name not in known:
            raise InputError(f"{where}: unknown argument {quoted(name)}; {nearest(name, known)}")
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in given:
            raise InputError(f"{where}: argument {name} is missing")
    return {
        name: _read_argument(name, value, known[name].annotation, f"{where}: {name}")
        for name, value in given.items()
    }


def _read_argument(name: str, value: msgspec.Raw, annotation: Any, what: str) -> object:
    if name == "device_type":
        return decode_json(value, Name, what)
    if name.endswith("bytes_per_second"):
        kind = _Quantity if annotation is float else _Matrix
        found = decode_json(value, kind, what, max_values=MAX_MATRIX_VALUES)
        return _read_quantity(found, parse_bytes_per_second, what)
    if name.endswith("latency_seconds"):
        return _read_quantity(decode_json(value, _Quantity, what), parse_seconds, what)
    return decode_json(value, annotation, what, max_values=MAX_LIST)


def _read_quantity(value: object, parse: Callable[[float | str, str], float], what: str) -> object:
    """A number or text with a unit, or lists of these."""
    if isinstance(value, list):
        return [_read_quantity(each, parse, what) for each in value]
    assert isinstance(value, int | float | str)
    return parse(value, what)


def _read_dnn_partitioning(data: bytes, where: str) -> Cluster:
    """Accelerators, then CPUs, every pair joined; CPU memory is not limited in these files."""
    read = probe_json(data, _DnnPartitioning, where)
    for name, count in (("maxFPGAs", read.max_fpgas), ("maxCPUs", read.max_cpus)):
        if not 0 <= count <= MAX_LIST:
            raise InputError(f"{where}: {name} must be from 0 to {MAX_LIST}, got {str(count)[:40]}")
    if read.max_fpgas and not 0 < read.max_size_per_fpga < float("inf"):
        raise InputError(
            f"{where}: maxSizePerFPGA must be positive and finite, got {read.max_size_per_fpga}"
        )
    # Where there are no accelerators their memory is of no consequence.
    memory = {
        "accelerator": read.max_size_per_fpga if read.max_fpgas else _UNLIMITED_BYTES,
        "cpu-host": _UNLIMITED_BYTES,
    }
    kinds = ["accelerator"] * read.max_fpgas + ["cpu-host"] * read.max_cpus
    rate = DNN_PARTITIONING_BYTES_PER_SECOND
    return _located(where, lambda: _stated_cluster("dnn-partitioning", kinds, memory, rate))


def _read_piper(data: bytes, where: str) -> Cluster:
    read = probe_json(data, _Piper, where)
    if not 1 <= read.max_devices <= MAX_LIST:
        raise InputError(
            f"{where}: maxDevices must be from 1 to {MAX_LIST}, got {str(read.max_devices)[:40]}"
        )
    memory = {"accelerator": read.max_memory_per_device}
    kinds = ["accelerator"] * read.max_devices
    return _located(where, lambda: _stated_cluster("piper", kinds, memory, read.bandwidth))


def _stated_cluster(
    name: str, kinds: list[str], memory_bytes: Mapping[str, float], bytes_per_second: float
) -> Cluster:
    """Devices of the given types, each on a host of its own, all pairs joined alike."""
    if len(kinds) > MAX_LIST:
        raise InputError(f"{name}: must have at most {MAX_LIST:,} devices, got {len(kinds):,}")
    devices = tuple(
        Device(name=f"{kind}{place}", type=kind, host=f"host{place}", memory_bytes=size)
        for place, kind in enumerate(kinds)
        for size in (memory_bytes[kind],)
    )
    return Cluster(
        name=name,
        types={
            kind: DeviceType(
                name=kind,
                flops_per_second={"fp32": _UNSTATED_RATE},
                memory_bytes=size,
                memory_bytes_per_second=_UNSTATED_RATE,
            )
            for kind, size in memory_bytes.items()
            if kind in kinds
        },
        devices=devices,
        links=tuple(
            Link(source=one.name, target=other.name, bytes_per_second=bytes_per_second)
            for one in devices
            for other in devices
            if one is not other
        ),
    )
