"""Reads and prints quantities. Inside the program time is seconds, size bytes, rate per second."""

import math
import re
from collections.abc import Callable

from meshwright.errors import InputError, quoted

KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30

MOST = 1e30
"""No size or rate of a step or a cluster, nor the sum of one over all ops, may be larger. It is
far above all that exists, and so far from what a float holds that products of several are still
numbers."""
LEAST_RATE = 1e-6
"""No rate may be smaller, for the same reason: sizes are divided by them."""
MOST_LATENCY = 1e8
"""No link may be slower to begin, in seconds: three years."""
MOST_SECONDS = MOST / LEAST_RATE
"""No op may take longer, nor all of them together."""
MAX_TEXT = 100
"""Characters of a quantity; matching takes the square of the spaces in it."""

_PREFIXES = {
    "": 1.0, "k": 1e3, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "E": 1e18,
    "Ki": KIB, "Mi": MIB, "Gi": GIB, "Ti": 2.0**40, "Pi": 2.0**50,
}  # fmt: skip
_TIMES = {
    "": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "\u00b5s": 1e-6, "\u03bcs": 1e-6, "ns": 1e-9,
}  # fmt: skip
"""Unicode has the micro sign twice: of its own, and among Greek letters."""
_BYTES = re.compile("(k|[KMGTP]i?|E|)B")
_BITS = re.compile("([KMGTP]i?|E|)bE?")
"""Also as Ethernet is sold: 400 GbE."""
_BIT_WORD = re.compile("([kKmMgGtTpP][iI]?|[eE]|)[bB][iI][tT][sS]?")
_FLOPS = re.compile("([kKmMgGtTpPeE]?)[fF][lL][oO][pP](?:[sS]|/[sS]([eE][cC]([oO][nN][dD])?)?)")
"""FLOPS has its second in its last letter."""
_UNCLEAR = re.compile(r"([KMGTPE])(i?)B?", re.IGNORECASE)
"""What may be bits or bytes: a prefix alone, or letters that leave open if their case was meant."""
_PER_SECOND = re.compile(r"(.*?)(?:/[sS]|/sec|/second|ps)")
_PER = " */ *| +per +"
"""What stands for a stroke between units."""
_QUANTITY = re.compile(
    r"\s*((?=\.?[0-9])[0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-z\u00b5\u03bc/ ]*?)\s*"
)


def _pattern(*units: str) -> str:
    """What texts of a quantity look like, as JSON Schema writes it."""
    number = r"^\s*([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?\s*"
    return number + f"({'|'.join(units)})?" + r"\s*$"


BYTES_PATTERN = _pattern(_BYTES.pattern)
RATE_PATTERN = _pattern(
    f"({_BYTES.pattern}|{_BITS.pattern}|{_BIT_WORD.pattern})(({_PER})([sS]|sec|second)|ps)?"
)
FLOPS_PATTERN = _pattern(_FLOPS.pattern.replace("/", f"({_PER})"))
SECONDS_PATTERN = _pattern(*filter(None, _TIMES))
"""Texts that `parse_bytes` and its like read, up to numbers that are too large for a float."""


def broken_rule(
    value: float, *, least: float = 0.0, most: float = MOST, is_positive: bool = False
) -> str:
    """The rule that a quantity breaks, for a message; empty where it breaks none."""
    if is_positive and not 0 < value < math.inf:
        return "must be positive and finite"
    if not 0 <= value < math.inf:
        return "must be finite and not negative"
    if value > most:
        return f"must be at most {most:g}"
    return f"must be at least {least:g}" if value < least else ""


def need_quantity(
    value: float, what: str, *, least: float = 0.0, most: float = MOST, is_positive: bool = False
) -> None:
    """Refuse a quantity that breaks a rule; `what` it is begins the message."""
    rule = broken_rule(value, least=least, most=most, is_positive=is_positive)
    if rule:
        raise InputError(f"{what} {rule}, got {value}")


def parse_bytes(value: float | str, what: str) -> float:
    """80e9, "80 GB" or "80 GiB" as bytes; `what` names the field in the error."""
    return _parse(value, what, _find_size, "a size such as '80 GiB'")


def parse_bytes_per_second(value: float | str, what: str) -> float:
    """12.5e9, "12.5 GB/s", "100 Gbit/s" or "100 Gb/s" as bytes a second."""
    return _parse(value, what, _find_rate, "a rate such as '50 GB/s' or '100 Gbit/s'")


def parse_flops_per_second(value: float | str, what: str) -> float:
    """312e12, "312 TFLOP/s" or "312 TFLOPS" as operations a second."""
    return _parse(value, what, _find_flops, "a rate such as '67 TFLOP/s'")


def parse_seconds(value: float | str, what: str) -> float:
    """5e-6, "5 us" or "1.5 ms" as seconds."""
    return _parse(value, what, _TIMES.get, "a time such as '5 us'")


Find = Callable[[str], float | str | None]
"""From a unit to what one of it is, to what is wrong with it, or to None: it is unknown."""


def _parse(value: float | str, what: str, find: Find, wanted: str) -> float:
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value) if len(value) <= MAX_TEXT else None
        if match is None:
            hint = "; write it without commas" if re.match(r"\s*[0-9]+,[0-9]", value) else ""
            raise InputError(f"{what}: must be {wanted}, got {quoted(value)}{hint}")
        unit = re.sub(_PER, "/", match[2])
        scale = find(unit)
        if scale is None:
            raise InputError(f"{what}: unknown unit {quoted(unit)}; must be {wanted}")
        if isinstance(scale, str):
            raise InputError(f"{what}: {quoted(value)} {scale}")
        try:
            number = float(match[1]) * scale
        except ValueError:
            raise InputError(f"{what}: must be {wanted}, got {quoted(value)}") from None
    else:
        number = float(value)
    if not math.isfinite(number):
        raise InputError(f"{what}: must be finite, got {value}")
    return number


def _find_size(unit: str) -> float | str | None:
    """Of bytes. Bits are no size, nor is anything a second."""
    if not unit:
        return 1.0
    if (match := _BYTES.fullmatch(unit)) is not None:
        return _PREFIXES[match[1]]
    if (match := _UNCLEAR.fullmatch(unit)) is not None:
        prefix = match[1].upper()
        return f"must say how much it is: '{prefix}B' or '{prefix}iB'"
    return None


def _find_rate(unit: str) -> float | str | None:
    """Of bytes or bits, which differ by the case of their letter, a second."""
    if not unit:
        return 1.0
    match = _PER_SECOND.fullmatch(unit)
    amount = unit if match is None else match[1]
    if (match := _BYTES.fullmatch(amount)) is not None:
        return _PREFIXES[match[1]]
    if (match := _BITS.fullmatch(amount)) is not None:
        return _PREFIXES[match[1]] / 8
    if (match := _BIT_WORD.fullmatch(amount)) is not None:
        return _PREFIXES[match[1][:1].upper() + match[1][1:].lower()] / 8
    if (match := _UNCLEAR.fullmatch(amount)) is not None:
        prefix = match[1].upper() + match[2].lower()
        return f"may be bits or bytes: must be '{prefix}bit/s' or '{prefix}B/s'"
    return None


def _find_flops(unit: str) -> float | None:
    """Of operations a second."""
    match = _FLOPS.fullmatch(unit)
    if match is None:
        return None if unit else 1.0
    return _PREFIXES[match[1].upper()]


def format_number(value: float) -> str:
    """Four digits, and commas between thousands: 15789.6 -> '15,790', 602.234 -> '602.2'."""
    if not math.isfinite(value):
        return str(value)
    rounded = float(f"{value:.4g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:g}"


def format_count(number: int, noun: str) -> str:
    """1 -> '1 op', 1218 -> '1,218 ops'."""
    plural = noun if number == 1 else f"{noun}es" if noun.endswith("ch") else f"{noun}s"
    return f"{number:,} {plural}"


def format_percent(share: float) -> str:
    """0.1234 -> '12.3 %'."""
    if not math.isfinite(share):
        return "unknown"
    return f"{float(f'{100 * share:.3g}'):,g} %" if abs(share) >= 1e-6 else "0 %"


def _scaled(value: float, unit: str) -> str:
    """With the largest decimal prefix that leaves one or more."""
    scales = ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
    scale, prefix = next((each for each in scales if value >= each[0]), (1.0, ""))
    return f"{format_number(value / scale)} {prefix}{unit}"


def format_flops(flops: float) -> str:
    """14340.0 -> '14.34 kFLOP'; from 1e12 on in TFLOP."""
    return _scaled(flops, "FLOP")


def format_bytes(size: float) -> str:
    """1536 -> '1.5 KiB'."""
    if not math.isfinite(size):
        return str(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:,.0f} B" if unit == "B" else f"{format_number(size)} {unit}"
        size /= 1024
    raise AssertionError


def format_seconds(seconds: float) -> str:
    """0.0123 -> '12.3 ms'."""
    if not math.isfinite(seconds):
        return str(seconds)
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= scale:
            return f"{format_number(seconds / scale)} {unit}"
    return "0 s" if seconds == 0 else f"{format_number(seconds * 1e9)} ns"


def format_rate(bytes_per_second: float) -> str:
    """5e10 -> '50 GB/s'."""
    return _scaled(bytes_per_second, "B/s")
