"""What a cluster file may say, but hardly means: forgotten units, zeros too many or too few."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.document import Quantity
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


def find_doubts(cluster: Cluster) -> Iterator[str]:
    """One line for each thing that is hardly meant, of as many links as it holds for."""
    for name in cluster.type_names:
        yield from _doubt_type(cluster.types[name])
    for device in cluster.devices[:_MOST_LINKS]:
        size = device.memory_bytes
        if not LEAST_MEMORY <= size <= MOST_MEMORY:
            yield f"device {quoted(device.name)}: memory_bytes is {_hardly(size, LEAST_MEMORY)}"
            break
    links = cluster.links
    if len(links) > _MOST_LINKS:
        return
    slow = [each for each in links if each.bytes_per_second < LEAST_RATE]
    fast = [each for each in links if each.bytes_per_second > MOST_RATE]
    for found, bound, limit in ((slow, "below", LEAST_RATE), (fast, "above", MOST_RATE)):
        if found:
            rate = format_rate(found[0].bytes_per_second)
            wanted = format_rate(limit)
            yield f"{_name(found)}: bytes_per_second is {bound} {wanted}, got {rate}"
    late = [each for each in links if each.latency_seconds > MOST_LATENCY]
    if late:
        delay = format_seconds(late[0].latency_seconds)
        wanted = format_seconds(MOST_LATENCY)
        yield f"{_name(late)}: latency_seconds is above {wanted}, got {delay}"
    count = Counter((each.source, each.target) for each in links)
    twice = [each for each in links if count[each.source, each.target] > 1]
    if twice:
        times = count[twice[0].source, twice[0].target]
        yield f"{_name(twice[:1])}: stands {times} times; a route takes one of them"


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


def find_zeros(data: bytes) -> Iterator[str]:
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
