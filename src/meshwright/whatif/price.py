"""What devices and hosts cost an hour, and with that what a cluster costs. Knows no currency."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from meshwright.change.host import makes_of
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.errors import InputError, nearest, quoted

_PRICE = re.compile(r"[$\u20ac\u00a3]?\s*([0-9]+\.?[0-9]*|\.[0-9]+)\s*(?:/\s*([A-Za-z]+))?")
_HOURS = {"s": 1 / 3600, "min": 1 / 60, "h": 1.0, "hour": 1.0, "day": 24.0, "month": 730.0}
"""A month is the twelfth part of a year of 8,760 hours."""
_MOST = 1e12
SECONDS_PER_HOUR = 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """What one device of a type costs, or one host."""

    name: str
    """A type of device, or a host: its name, or a pattern with `*` and `?`."""
    per_hour: float

    def __post_init__(self) -> None:
        if not 0 <= self.per_hour <= _MOST:
            raise InputError(
                f"price {quoted(self.name)}: must be from 0 to {_MOST:g} an hour, "
                f"got {self.per_hour}"
            )


def read_price(text: str) -> Price:
    """The price that a text such as 'h100=2.10/h' states."""
    name, sign, amount = text.rpartition("=")
    match = _PRICE.fullmatch(amount.strip())
    if not (sign and name.strip()) or match is None:
        raise InputError(f"price: must be such as 'h100=2.10/h', got {quoted(text)}")
    unit = match[2] or "h"
    if unit not in _HOURS:
        raise InputError(
            f"price {quoted(name)}: must be per {', '.join(_HOURS)}, got {quoted(unit)}"
        )
    return Price(name=name.strip(), per_hour=float(match[1]) / _HOURS[unit])


def check_prices(prices: Sequence[Price], cluster: Cluster) -> None:
    """Refuse a price of what is neither a type of device nor a host."""
    known = (*cluster.type_names, *DEVICE_TYPES)
    for price in prices:
        is_host = any(fnmatchcase(host, price.name) for host in cluster.hosts)
        if price.name not in known and not is_host:
            raise InputError(
                f"price: no type of device and no host {quoted(price.name)}; "
                f"{nearest(price.name, (*known, *cluster.hosts[:100]))}"
            )


def price_per_hour(cluster: Cluster, prices: Sequence[Price]) -> float:
    """What all devices of a cluster cost an hour, in use or not; NaN where some have no price.

    A host that has a price costs that, whatever its devices do.
    """
    of_type = {each.name: each.per_hour for each in prices if each.name in cluster.types}
    of_host = [each for each in prices if each.name not in of_type]
    total = 0.0
    for host, devices in makes_of(cluster).items():
        own = [each.per_hour for each in of_host if fnmatchcase(host, each.name)]
        if own:
            total += own[-1]
        else:
            total += sum(of_type.get(kind, math.nan) for kind, _ in devices)
    return total
