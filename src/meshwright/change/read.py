"""Reads changes from the words that people write for them: 'leaf0=2x', 'h100=141GB', '+8'.

Units are read as everywhere (see `meshwright.units`), which tells bits and bytes apart. Whether the
cluster has what a word names is found when the change is made.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from meshwright.argument import shown
from meshwright.change.amount import Amount, read_amount
from meshwright.change.kind import (
    ALL,
    NICS,
    Batch,
    Change,
    Counted,
    DeviceCount,
    DeviceFigure,
    Figure,
    LinkLatency,
    LinkRate,
    TypeSwap,
    Without,
)
from meshwright.cluster.part import MAX_DEVICES
from meshwright.errors import InputError, nearest, quoted
from meshwright.units import (
    parse_bytes,
    parse_bytes_per_second,
    parse_flops_per_second,
    parse_seconds,
)

Parse = Callable[[str, str], float]


def read_change(option: str, text: str) -> Change:
    """The change that an option of `OPTIONS` asks for with a text."""
    if option not in OPTIONS:
        raise InputError(f"unknown change {quoted(option)}; {nearest(option, OPTIONS)}")
    if not isinstance(text, str):
        raise InputError(f"{option}: must be a text such as '2x', got {shown(text)}")
    return OPTIONS[option](option, text.strip())


def read_changes(given: Mapping[str, str | Sequence[str]]) -> list[Change]:
    """The changes that texts ask for, by option: one, or several; hosts go once."""
    found = [
        read_change(option, text)
        for option, texts in given.items()
        for text in (texts if isinstance(texts, list | tuple) else (texts,))
    ]
    return [
        each
        for place, each in enumerate(found)
        if not isinstance(each, Without) or each not in found[:place]
    ]


def _read_link(option: str, text: str) -> Change:
    links, amount = _named(option, text, "'leaf0=2x' or 'host0-leaf0=400Gb/s'")
    return LinkRate(links=links, amount=_rate(amount, f"{option} {quoted(links)}"))


def _read_nic(option: str, text: str) -> Change:
    return LinkRate(links=NICS, amount=_rate(text, option))


def _read_latency(option: str, text: str) -> Change:
    links, _, amount = text.rpartition("=")
    read = read_amount(amount, option, parse_seconds)
    return LinkLatency(links=links.strip() or ALL, amount=read)


def _figure_reader(figure: Figure, parse: Parse) -> Callable[[str, str], Change]:
    def read(option: str, text: str) -> Change:
        types, _, amount = text.rpartition("=")
        what = f"{option} {quoted(types)}" if types else option
        return DeviceFigure(
            types=types.strip() or ALL, figure=figure, amount=read_amount(amount, what, parse)
        )

    return read


def _read_type(option: str, text: str) -> Change:
    old, new = _named(option, text, "'h100=h200'")
    return TypeSwap(old=old, new=new)


def _count_reader(unit: Counted) -> Callable[[str, str], Change]:
    def read(option: str, text: str) -> Change:
        like, _, number = text.rpartition("=")
        what, number = f"{option} {quoted(text)}", number.strip()
        if re.fullmatch(r"[+-][0-9]{1,9}", number):
            if not 0 < abs(int(number)) <= MAX_DEVICES:
                raise InputError(f"{what}: must be from 1 to {MAX_DEVICES:,} more or fewer")
            return DeviceCount(unit=unit, add=int(number), like=like.strip())
        amount = read_amount(number, what, _whole)
        if like:
            raise InputError(f"{what}: must be a number to add, such as '{like}=+1'")
        return DeviceCount(unit=unit, amount=amount)

    return read


def _read_without(option: str, text: str) -> Change:
    if not text:
        raise InputError(f"{option}: must name a host, got ''")
    return Without(hosts=text)


def _read_batch(option: str, text: str) -> Change:
    return Batch(amount=read_amount(text, option, _number))


def _rate(text: str, what: str) -> Amount:
    return read_amount(text, what, parse_bytes_per_second)


def _whole(text: str, what: str) -> float:
    if not re.fullmatch(r"[0-9]{1,9}", text):
        raise InputError(
            f"{what}: must be such as '+8', '-8', 'x2' or a number in all, got {quoted(text)}"
        )
    return float(text)


def _number(text: str, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise InputError(f"{what}: must be a number of samples or such as '2x', got {quoted(text)}")
    return value


def _named(option: str, text: str, wanted: str) -> tuple[str, str]:
    """What stands before and after the last equals sign."""
    name, sign, rest = text.rpartition("=")
    if not (sign and name.strip() and rest.strip()):
        raise InputError(f"{option}: must be such as {wanted}, got {quoted(text)}")
    return name.strip(), rest.strip()


OPTIONS: Mapping[str, Callable[[str, str], Change]] = MappingProxyType(
    {
        "link": _read_link,
        "nic": _read_nic,
        "latency": _read_latency,
        "memory": _figure_reader(Figure.MEMORY, parse_bytes),
        "speed": _figure_reader(Figure.FLOPS, parse_flops_per_second),
        "memory_rate": _figure_reader(Figure.MEMORY_RATE, parse_bytes_per_second),
        "type": _read_type,
        "devices": _count_reader(Counted.DEVICES),
        "hosts": _count_reader(Counted.HOSTS),
        "without": _read_without,
        "batch": _read_batch,
    }
)
"""By the name of its option: what reads its text."""
