"""What a cluster file may say, but hardly means: forgotten units, zeros too many or too few."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from meshwright.cluster.by_host import decode_latencies, decode_racks
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.document import probe_cluster
from meshwright.cluster.form import HostsDocument, Quantity
from meshwright.cluster.part import DeviceType, Link
from meshwright.errors import quoted
from meshwright.files import Name, decode_or
from meshwright.units import format_rate, format_seconds, parse_seconds

LEAST_RATE, MOST_RATE = 1e6, 1e14
"""Bytes a second that a link is believed to have: a slow line, ten times a switch of today."""
MOST_LATENCY = 0.1
"""Seconds; around the world and back."""
LEAST_MEMORY, MOST_MEMORY = 1e6, 1e18
"""Bytes that a device is believed to have: a small controller; more than the pebibyte of those that
are to have no end."""
LEAST_FLOPS, MOST_FLOPS = 1e6, 1e19
"""FLOP a second: a slow controller, a thousand times the fastest device."""
MOST_MEMORY_RATE = 1e16
"""Bytes a second of a device's memory: a thousand times the fastest."""
_MOST_LINKS, _MOST_BYTES = 100_000, 16 << 20
"""A file of more was written by a program."""


def find_doubts(cluster: Cluster, data: bytes = b"{}") -> Iterator[str]:
    """One line for each thing that is hardly meant, of as many links as it holds for; `data` is the
    file in JSON, so that it is called as there."""
    yield from _doubt_devices(cluster)
    short = _read_short(data)
    if short is not None:
        yield from _doubt_racks(short)
    else:
        yield from _doubt_links(cluster.links)
        yield from _find_zeros(data)


def _doubt_devices(cluster: Cluster) -> Iterator[str]:
    for name in cluster.type_names:
        yield from _doubt_type(cluster.types[name])
    for device in cluster.devices[:_MOST_LINKS]:
        size = device.memory_bytes
        if not LEAST_MEMORY <= size <= MOST_MEMORY:
            yield f"device {quoted(device.name)}: memory_bytes is {_hardly(size, LEAST_MEMORY)}"
            break


def _doubt_links(links: Sequence[Link]) -> Iterator[str]:
    if len(links) > _MOST_LINKS:
        return
    slow = [each for each in links if each.bytes_per_second < LEAST_RATE]
    fast = [each for each in links if each.bytes_per_second > MOST_RATE]
    for found in filter(None, (slow, fast)):
        yield f"{_name(found)}: bytes_per_second {_odd_rate(found[0].bytes_per_second)}"
    late = [each for each in links if each.latency_seconds > MOST_LATENCY]
    if late:
        yield f"{_name(late)}: latency_seconds {_late(late[0].latency_seconds)}"
    count = Counter((each.source, each.target) for each in links)
    twice = [each for each in links if count[each.source, each.target] > 1]
    if twice:
        times = count[twice[0].source, twice[0].target]
        yield f"{_name(twice[:1])}: stands {times} times; a route takes one of them"


def _read_short(data: bytes) -> HostsDocument | None:
    """The document, if it is of the short form."""
    if len(data) > _MOST_BYTES or not probe_cluster(data, "").is_short:
        return None
    return decode_or(msgspec.Raw(data), HostsDocument, HostsDocument())


def _doubt_racks(read: HostsDocument) -> Iterator[str]:
    """What is hardly meant of the short form, by its fields."""
    racks = decode_racks(read)
    rates = {f"{rack.label}.uplink": rack.uplink_bytes_per_second for rack in racks}
    latencies: dict[str, float | None] = {
        name.removesuffix("_seconds"): delay for name, delay in decode_latencies(read).items()
    }
    for host in (host for rack in racks for host in rack.hosts):
        rates[f"{host.label}.nics"] = host.nic_bytes_per_second if host.num_nics else None
        rates[f"{host.label}.nvlink"] = host.nvlink_bytes_per_second
        rates[f"{host.label}.pcie"] = host.pcie_bytes_per_second
        latencies[f"{host.label}.latency"] = host.latency_seconds
    for what, rate in rates.items():
        if rate is not None and not LEAST_RATE <= rate <= MOST_RATE:
            yield f"{what} {_odd_rate(rate)}"
    for what, delay in latencies.items():
        if delay == 0:
            yield f"{what} is zero"
        elif delay is not None and delay > MOST_LATENCY:
            yield f"{what} {_late(delay)}"
    for rack in racks:
        if rack.oversubscription < 1:
            yield f"{rack.label}.oversubscription is below 1, got {rack.oversubscription:g}"


def _odd_rate(rate: float) -> str:
    bound, limit = ("below", LEAST_RATE) if rate < LEAST_RATE else ("above", MOST_RATE)
    return f"is {bound} {format_rate(limit)}, got {format_rate(rate)}"


def _late(delay: float) -> str:
    return f"is above {format_seconds(MOST_LATENCY)}, got {format_seconds(delay)}"


def _doubt_type(given: DeviceType) -> Iterator[str]:
    """What is hardly meant of a type of device."""
    for precision, rate in given.flops_per_second.items():
        if not LEAST_FLOPS <= rate <= MOST_FLOPS:
            what = f"flops_per_second.{precision}"
            yield f"types.{given.name}: {what} is {_hardly(rate, LEAST_FLOPS)}"
    ranges = {
        "memory_bytes": (LEAST_MEMORY, MOST_MEMORY),
        "memory_bytes_per_second": (LEAST_RATE, MOST_MEMORY_RATE),
    }
    for what, (least, most) in ranges.items():
        value = getattr(given, what)
        if not least <= value <= most:
            yield f"types.{given.name}: {what} is {_hardly(value, least)}"


def _hardly(value: float, least: float) -> str:
    return f"hardly meant to be so {'small' if value < least else 'large'}, got {value:g}"


class _StatedLink(msgspec.Struct):
    source: Name
    target: Name
    latency_seconds: Quantity | None = None


class _Stated(msgspec.Struct):
    links: list[_StatedLink] = []
    arguments: dict[Name, msgspec.Raw] = {}


def _find_zeros(data: bytes) -> Iterator[str]:
    """One line for latencies of zero that a document in JSON states; they may be left out, too."""
    if len(data) > _MOST_BYTES or b"latency" not in data:
        return
    stated = decode_or(msgspec.Raw(data), _Stated, _Stated())  # another form has other keys
    zeros = [
        each
        for each in stated.links
        if each.latency_seconds is not None and parse_seconds(each.latency_seconds, "") == 0
    ]
    if zeros:
        yield f"{_name(zeros)}: latency_seconds is zero"
    for name, text in stated.arguments.items():
        value: Any = decode_or(text, object, None) if "latency" in name else None
        if isinstance(value, int | float | str) and parse_seconds(value, "") == 0:
            yield f"arguments: {name} is zero"


def _name(links: Sequence[Link | _StatedLink]) -> str:
    first = f"link {quoted(links[0].source)} -> {quoted(links[0].target)}"
    return first if len(links) == 1 else f"{first} and {len(links) - 1} more"
