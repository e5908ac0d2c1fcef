"""What a cluster file may say, but hardly means: forgotten units, zeros too many or too few."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.document import Quantity
from meshwright.cluster.part import Link
from meshwright.errors import quoted
from meshwright.files import Name, decode_or
from meshwright.units import format_rate, format_seconds, parse_seconds

LEAST_RATE, MOST_RATE = 1e6, 1e14
"""Bytes a second that a link is believed to have: a slow line, ten times a switch of today."""
MOST_LATENCY = 0.1
"""Seconds; around the world and back."""
_MOST_LINKS, _MOST_BYTES = 100_000, 16 << 20
"""A file of more was written by a program."""


def find_doubts(cluster: Cluster) -> Iterator[str]:
    """One line for each thing that is hardly meant, of as many links as it holds for."""
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
