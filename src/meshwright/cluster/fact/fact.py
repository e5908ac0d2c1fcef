"""Facts about hosts and the network between them, as one file states them.

Everything may be left out: what a file does not say is empty or None here. How the facts of several
files become a cluster is decided in `meshwright.cluster.fact.merge`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from meshwright.cluster.builder.draft import PCIE3_BYTES_PER_SECOND
from meshwright.cluster.part import MAX_DEVICES
from meshwright.errors import InputError, quoted

NVLINK, XGMI, PCIE = "nvlink", "xgmi", "pcie"
"""What two devices of a host are joined by: NVLink, Infinity Fabric, or no more than PCIe."""

MAX_HOST_DEVICES = 128
"""More devices than any host has: larger tables are no host's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceFact:
    """One accelerator of a host."""

    product: str = ""
    """What its maker calls it."""
    memory_bytes: float | None = None
    pcie_bytes_per_second: float | None = None
    """What a message reaches over its PCIe lanes, each way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NicFact:
    """One port of a network card."""

    name: str
    bytes_per_second: float | None = None
    is_up: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Join:
    """What two devices of a host are joined by."""

    kind: str
    """NVLINK, XGMI or PCIE."""
    count: int = 1
    """How many links of that kind."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostFact:
    """What a file says of a host."""

    name: str = ""
    """Empty: the file does not say which host it is of."""
    devices: tuple[DeviceFact, ...] = ()
    num_devices: int | None = None
    """None where the file says nothing of devices; else as many as `devices`, where it has them."""
    joins: Mapping[tuple[int, int], Join] = field(default_factory=dict)
    """By the numbers of two devices, the smaller first."""
    switch_links: int = 0
    """How many NVLinks each device has to switches that join all of them."""
    nics: tuple[NicFact, ...] | None = None
    """None: the file says nothing of network cards."""
    num_cores: int | None = None
    memory_bytes: float | None = None
    """The memory of the host itself."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "joins", MappingProxyType(dict(self.joins)))


@dataclass(frozen=True, slots=True, kw_only=True)
class CableFact:
    """A cable of the network, or several between the same two nodes, which add up."""

    one: str
    other: str
    bytes_per_second: float | None = None
    """Each way; None: the file does not say."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFact:
    """Measured times of a collective."""

    collective: str
    product: str
    num_devices: int
    num_hosts: int
    sizes_bytes: tuple[float, ...]
    seconds: tuple[float, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One dimension of a network that is a product of simple ones."""

    shape: str
    """ring, switch or fullyconnected."""
    size: int
    bytes_per_second: float
    latency_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that one file says."""

    hosts: tuple[HostFact, ...] = ()
    switches: tuple[str, ...] = ()
    cables: tuple[CableFact, ...] = ()
    """The ends that are no switches are hosts."""
    tables: tuple[TableFact, ...] = ()
    dimensions: tuple[Dimension, ...] = ()


def pcie_bytes_per_second(generation: float, lanes: int) -> float:
    """What messages reach over so many lanes of a generation, each way; 8 GT/s are the third."""
    return float(PCIE3_BYTES_PER_SECOND * 2.0 ** (generation - 3) * lanes / 16)


def refuse(line: int, rule: str, got: str) -> InputError:
    """The error of a line that breaks a rule; what reads files puts the file's name before it."""
    return InputError(f"line {line:,}: must {rule}, got {quoted(got.strip(), 60)}")


def expand_names(text: str, line: int) -> list[str]:
    """The names of a Slurm host list: 'a[01-03,7]-b,c' is a01-b, a02-b, a03-b, a7-b and c."""
    names: list[str] = []
    for part in _split_outside(text, line):
        found = [""]
        for place, piece in enumerate(part.replace("]", "[").split("[")):
            choices = _expand_ranges(piece, line) if place % 2 else [piece]
            if len(found) * len(choices) + len(names) > MAX_DEVICES:
                raise refuse(line, f"name at most {MAX_DEVICES:,} nodes", text)
            found = [start + end for start in found for end in choices]
        names += found
    if not all(names):
        raise refuse(line, "be a list of names such as node[1-4]", text)
    return names


def _split_outside(text: str, line: int) -> list[str]:
    """Split at commas outside of brackets."""
    parts, depth = [""], 0
    for letter in text.strip():
        depth += (letter == "[") - (letter == "]")
        if depth not in (0, 1):
            break
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    if depth:
        raise refuse(line, "close each bracket once", text)
    return parts


def _expand_ranges(text: str, line: int) -> list[str]:
    found = []
    for each in text.split(","):
        low, _, high = each.partition("-")
        high = high or low
        if not (low.isascii() and low.isdigit() and high.isascii() and high.isdigit()):
            raise refuse(line, "have numbers such as [01-04,9] in brackets", text)
        if len(high) > 9 or len(low) > 9 or not 0 <= int(high) - int(low) < MAX_DEVICES:
            raise refuse(line, f"have rising ranges of at most {MAX_DEVICES:,}", each)
        found += [f"{number:0{len(low)}d}" for number in range(int(low), int(high) + 1)]
    return found
