"""Reads and prints quantities. Inside the program time is seconds, size bytes, rate per second."""

import math
import re

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

_SIZES = {
    "": 1.0, "B": 1.0,
    "KB": 1e3, "MB": 1e6, "GB": 1e9, "TB": 1e12,
    "KIB": KIB, "MIB": MIB, "GIB": GIB, "TIB": 2.0**40,
}  # fmt: skip
_BITS = {"BIT": 1 / 8, "KBIT": 1e3 / 8, "MBIT": 1e6 / 8, "GBIT": 1e9 / 8, "TBIT": 1e12 / 8}
_TIMES = {"": 1.0, "s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
_QUANTITY = re.compile(r"\s*([0-9.]+(?:[eE][+-]?[0-9]+)?)\s*([A-Za-zµ]*?)(/s)?\s*")


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


def parse_bytes(value: float | str, what: str) -> float:
    """80e9, "80 GB" or "80 GiB" as bytes; `what` names the field in the error."""
    return _parse(value, what, _SIZES, "a size such as '80 GiB'")


def parse_bytes_per_second(value: float | str, what: str) -> float:
    """12.5e9, "12.5 GB/s" or "100 Gbit/s" as bytes a second."""
    return _parse(value, what, _SIZES | _BITS, "a rate such as '50 GB/s' or '100 Gbit/s'")


def parse_seconds(value: float | str, what: str) -> float:
    """5e-6, "5 us" or "1.5 ms" as seconds."""
    return _parse(value, what, _TIMES, "a time such as '5 us'")


def _parse(value: float | str, what: str, units: dict[str, float], wanted: str) -> float:
    if isinstance(value, str):
        match = _QUANTITY.fullmatch(value) if len(value) <= MAX_TEXT else None
        if match is None:
            raise InputError(f"{what}: must be {wanted}, got {quoted(value)}")
        unit = match[2] if units is _TIMES else match[2].upper()
        if unit not in units:
            raise InputError(f"{what}: unknown unit {quoted(match[2])}; must be {wanted}")
        try:
            number = float(match[1]) * units[unit]
        except ValueError:
            raise InputError(f"{what}: must be {wanted}, got {quoted(value)}") from None
    else:
        number = float(value)
    if not math.isfinite(number):
        raise InputError(f"{what}: must be finite, got {value}")
    return number


def format_bytes(size: float) -> str:
    """1536 -> '1.5 KiB'."""
    if not math.isfinite(size):
        return str(size)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.4g} {unit}"
        size /= 1024
    raise AssertionError


def format_seconds(seconds: float) -> str:
    """0.0123 -> '12.3 ms'."""
    if not math.isfinite(seconds):
        return str(seconds)
    for scale, unit in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if abs(seconds) >= scale:
            return f"{seconds / scale:.4g} {unit}"
    return "0 s" if seconds == 0 else f"{seconds * 1e9:.4g} ns"


def format_rate(bytes_per_second: float) -> str:
    """5e10 -> '50 GB/s'."""
    for scale, unit in ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")):
        if bytes_per_second >= scale:
            return f"{bytes_per_second / scale:.4g} {unit}"
    return f"{bytes_per_second:.4g} B/s"
