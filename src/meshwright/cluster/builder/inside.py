"""How the devices of one host are joined: as their types are sold, or as a file says."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from types import MappingProxyType
from typing import Any

from meshwright.cluster.builder.draft import (
    NVLINK_SECONDS,
    PCIE3_BYTES_PER_SECOND,
    PCIE_SECONDS,
    Draft,
)
from meshwright.cluster.builder.grid import TPUV4_LINK_BYTES_PER_SECOND
from meshwright.cluster.builder.paper import CUBE_MESH, join_cube_mesh
from meshwright.cluster.kind import PLAIN
from meshwright.units import format_rate

MAX_BOARD_DEVICES = 8
"""The most devices of a board that has links for all of its pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """The rates of a device inside its host, in bytes a second, each way."""

    pcie: float
    """The rate from a device to its host over PCIe."""
    switch: float = 0.0
    """To a switch that all devices of the host share, such as NVSwitch; 0: there is none."""
    pair: float = 0.0
    """To each other device of its board; 0: there are no such links."""
    has_cube: bool = False
    """Whether up to eight are joined as in a DGX-1V instead."""
    has_ring: bool = False
    """Whether the switch stands for links to neighbours in a torus (TPUs)."""
    kind: str = PLAIN
    """The kind of the links to the switch or to each other."""
    has_library: bool = True
    """Whether a library such as NCCL sends messages, over PCIe and between hosts, too."""

    @property
    def pcie_kind(self) -> str:
        """The kind of the link to the host."""
        return "pcie" if self.has_library else PLAIN

    @property
    def network_kind(self) -> str:
        """The kind of the links of NICs."""
        return "network" if self.has_library else PLAIN

    def words(self) -> str:
        """What joins devices, for people."""
        shape = "cube mesh of NVLink, or switch" if self.has_cube else "switch"
        shape = "ring" if self.has_ring else shape
        rates = {shape: self.switch, "each pair": self.pair, "PCIe": self.pcie}
        shown = [f"{name} {format_rate(rate)}" for name, rate in rates.items() if rate]
        return ", ".join(shown[: 1 if self.has_ring else None])

    def reaches_all(self, num_devices: int) -> bool:
        """Whether no pair of so many needs PCIe."""
        if self.has_cube and num_devices <= len(CUBE_MESH):
            return False
        return bool(self.switch) or bool(self.pair and num_devices <= MAX_BOARD_DEVICES)


_GEN3, _GEN4, _GEN5 = (generation * PCIE3_BYTES_PER_SECOND for generation in (1, 2, 4))
_V100 = Inside(pcie=_GEN3, switch=150e9, has_cube=True, kind="nvlink2")
_A100 = Inside(pcie=_GEN4, switch=300e9, kind="nvlink3")
_HOPPER = Inside(pcie=_GEN5, switch=450e9, kind="nvlink4")
_BLACKWELL = Inside(pcie=_GEN5, switch=900e9, kind="nvlink5")
_MI300 = Inside(pcie=_GEN5, pair=64e9, kind="infinity")

_TPU: Any = {"pcie": _GEN3, "has_ring": True, "has_library": False}

# By the data sheets. NVLink: 12 and 18 links of 25 GB/s (A100, Hopper), 18 of 50 GB/s (Blackwell);
# a V100 behind NVSwitch (DGX-2) has 6 of 25 GB/s. Grace has NVLink-C2C in place of PCIe: 450 GB/s,
# for two devices in GB200. Infinity Fabric: 7 links of 64 GB/s (MI300), 8 of 50 GB/s of which four
# modules of MI250X have two for each pair, and their dies one. Gaudi 3: 3 of its 24 ports of 200
# Gbit/s for each pair. ICI of TPUs: 2,400 (v4), 1,600 (v5e) and 4,800 Gbit/s (v5p) over 6, 4 and 6
# links. Two sockets of a server: three UPI links of 16 GT/s move 96 GB/s raw, about half in copies.
INSIDE: Mapping[str, Inside] = MappingProxyType(
    dict.fromkeys(("p100", "1080ti", "titan-v", "t4"), Inside(pcie=_GEN3))
    | dict.fromkeys(("rtx3070", "rtx3090", "rtx4080s", "rtx4090"), Inside(pcie=_GEN4))
    | dict.fromkeys(("a6000", "a10", "a30", "l4", "l40s"), Inside(pcie=_GEN4))
    | dict.fromkeys(("v100-16", "v100-32"), _V100)
    | dict.fromkeys(("a100-40", "a100-80"), _A100)
    | dict.fromkeys(("h100", "h200"), _HOPPER)
    | dict.fromkeys(("b200", "b300"), _BLACKWELL)
    | dict.fromkeys(("mi300x", "mi325x"), _MI300)
    | {
        "rtx5090": Inside(pcie=_GEN5),
        "gh200": Inside(pcie=450e9, switch=450e9, kind="nvlink4"),
        "gb200": Inside(pcie=225e9, switch=900e9, kind="nvlink5"),
        "mi250x": Inside(pcie=_GEN4, pair=100e9, kind="infinity"),
        "mi250x-gcd": Inside(pcie=_GEN4, pair=50e9, kind="infinity"),
        "gaudi3": Inside(pcie=_GEN5, pair=75e9, has_library=False),
        "tpuv4": Inside(switch=TPUV4_LINK_BYTES_PER_SECOND, **_TPU),
        "tpuv5e": Inside(switch=50e9, **_TPU),
        "tpuv5p": Inside(switch=100e9, **_TPU),
        "cpu": Inside(pcie=48e9, has_library=False),
    }
)
"""By type of the catalogue."""
UNKNOWN = Inside(pcie=_GEN4)
"""Of types that the catalogue does not have."""


def join_inside(
    draft: Draft,
    host: str,
    devices: Sequence[str],
    inside: Inside,
    *,
    seconds: float | None = None,
    switch: str = "",
) -> None:
    """Join devices of one type to each other and to their host.

    The host itself is their switch, if they have one, unless that is named. `seconds` is the
    latency of a pair; None: by what joins it.
    """
    nvlink_seconds, pcie_seconds = (
        (NVLINK_SECONDS, PCIE_SECONDS) if seconds is None else (seconds, seconds)
    )
    if inside.has_cube and len(devices) <= len(CUBE_MESH):
        join_cube_mesh(draft, devices, nvlink_seconds, inside.kind)
    elif inside.switch and not switch:
        draft.join_all(devices, host, inside.switch, nvlink_seconds / 2, inside.kind)
        return
    elif inside.switch and len(devices) > 1:
        named = draft.add_switch(switch)
        draft.join_all(devices, named, inside.switch, nvlink_seconds / 2, inside.kind)
    elif inside.pair and len(devices) <= MAX_BOARD_DEVICES:
        for one, other in combinations(devices, 2):
            draft.join(one, other, inside.pair, nvlink_seconds, inside.kind)
    draft.join_all(devices, host, inside.pcie, pcie_seconds / 2, inside.pcie_kind)
