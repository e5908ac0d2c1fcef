"""What can be changed of a request, one class for each kind of change. Each only says what is to
be changed; `meshwright.change.apply` does it."""

from dataclasses import dataclass
from enum import StrEnum

from meshwright.argument import need_type
from meshwright.change.amount import Amount
from meshwright.errors import InputError
from meshwright.units import format_bytes, format_flops, format_rate, format_seconds

NICS = "nic"
"""The word for the links that join hosts to the network."""
ALL = "*"
"""The word for all links, or for all types of devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRate:
    """Other bandwidths of some links."""

    links: str
    """The word for them, as `meshwright.change.select` reads it."""
    amount: Amount
    """Of bytes a second."""

    def __str__(self) -> str:
        return f"{self.links} {self.amount.words(format_rate)}"


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkLatency:
    """Other latencies of some links."""

    links: str
    amount: Amount
    """Of seconds."""

    def __str__(self) -> str:
        return f"latency of {self.links} {self.amount.words(format_seconds)}"


class Figure(StrEnum):
    """What a data sheet says of a type of device, that can be changed."""

    MEMORY = "memory"
    """The size of its memory, in bytes."""
    FLOPS = "speed"
    """Its peak rate at every precision, in FLOP a second."""
    MEMORY_RATE = "memory rate"
    """The bandwidth of its memory, in bytes a second."""


_SHOW = {
    Figure.MEMORY: format_bytes,
    Figure.FLOPS: lambda rate: f"{format_flops(rate)}/s",
    Figure.MEMORY_RATE: format_rate,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFigure:
    """Another figure of some types of devices."""

    types: str
    """The name of a type, or a pattern with `*` and `?`."""
    figure: Figure
    amount: Amount
    """Of the figure's unit. A value of `speed` is the rate at the fastest precision of 16 bits or
    more; the others keep their proportion to it."""

    def __str__(self) -> str:
        return f"{self.figure} of {self.types} {self.amount.words(_SHOW[self.figure])}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TypeSwap:
    """Devices of one type in the place of those of another."""

    old: str
    new: str
    """A type of the cluster or of the catalogue."""

    def __str__(self) -> str:
        return f"{self.new} for {self.old}"


class Counted(StrEnum):
    """What a number of devices is counted in."""

    DEVICES = "device"
    HOSTS = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCount:
    """More devices or fewer, by whole hosts."""

    unit: Counted
    add: int | None = None
    """How many more; negative: fewer."""
    amount: Amount | None = None
    """How many in all, in place of `add`."""
    like: str = ""
    """The host that those added are copies of; empty: any, where all are alike."""

    def __post_init__(self) -> None:
        if (self.add is None) == (self.amount is None):
            raise InputError(
                "devices: must be a number to add or a number in all, got both or none"
            )
        if self.add == 0:
            raise InputError("devices: a number to add must not be 0")

    def __str__(self) -> str:
        number = f"{self.add:+d}" if self.add is not None else ""
        if self.amount is not None:
            number = self.amount.words(lambda value: f"{value:,.0f}")
        many = "" if self.add in (1, -1) else "s"
        return f"{number} {self.unit}{many}{' like ' + self.like if self.like else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Without:
    """Hosts that are not there, with their devices and links."""

    hosts: str
    """The name of a host, or a pattern with `*` and `?`."""

    def __str__(self) -> str:
        return f"without {self.hosts}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Another number of samples in a step."""

    amount: Amount

    def __str__(self) -> str:
        return f"batch {self.amount.words(lambda value: f'{value:,g}')}"


ClusterChange = LinkRate | LinkLatency | DeviceFigure | TypeSwap | DeviceCount | Without
Change = ClusterChange | Batch


def need_change(value: object, what: str) -> None:
    """Refuse what is no change."""
    kinds = (LinkRate, LinkLatency, DeviceFigure, TypeSwap, DeviceCount, Without, Batch)
    need_type(value, kinds, what, "a change, as `meshwright.change.kind` has them")
