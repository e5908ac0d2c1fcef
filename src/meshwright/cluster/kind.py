"""Kinds of links, and what NCCL reaches of each. Knows neither clusters nor collectives.

A data sheet states what a link signals; what a message gets of it depends on the protocol that the
library sends it by: LL sends a flag with every word, LL128 one with every line of a cache, and
`simple` signals whole chunks. So each protocol has a time for a call, one for a step over a link,
and a share of the link's rate. A link of no kind is used at its whole rate, by one protocol, with
its own latency and no time for a call, as the papers' models have it.

The figures are fitted to nccl-tests on one host of each generation and on two hosts; see
`benchmarks/collectives.py` for the data, their sources and the errors on rows held out.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType


class Protocol(StrEnum):
    """How a library sends messages over links."""

    PLAIN = "plain"
    """At a link's own rate and latency."""
    LL = "ll"
    LL128 = "ll128"
    SIMPLE = "simple"
    SWITCH = "switch"
    """Switches add up and multiply what passes (NVLink SHARP, which NCCL calls NVLS)."""
    EXCHANGE_LL = "exchange_ll"
    """Small messages from each device to each."""
    EXCHANGE = "exchange"
    """Larger messages from each device to each."""
    PAIR = "pair"
    """From one device to another: what a plan sends outside of collectives, and shifts."""


RINGS = (Protocol.LL, Protocol.LL128, Protocol.SIMPLE)
"""By which rings, trees and chains send."""
EXCHANGES = (Protocol.EXCHANGE_LL, Protocol.EXCHANGE)
"""By which all devices send to each other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What one protocol makes of a link."""

    call_seconds: float = 0.0
    """Of each call that uses such a link; of several kinds the longest counts."""
    delay: float = 1.0
    """Times the link's latency that a step over it takes."""
    share: float = 1.0
    """Of what can be reached of the link's rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkKind:
    """A kind of link."""

    latency_seconds: float = 0.0
    """From device to device, unless a cluster says otherwise: the LL128 ring column of NCCL's own
    tables (`hwLat` in src/graph/tuning.cc, 2.18)."""
    share: float = 1.0
    """Of the rate on the data sheet, that can be reached."""
    own_part: float = 0.0
    """What a device's own part of a message takes, which kernels copy from buffer to buffer, over
    what a part takes that comes by such a link."""
    uses: Mapping[Protocol, Use]
    """By protocol; one that is not there gets all that can be reached, at the link's latency."""


def _kind(
    latency_seconds: float, share: float, own_part: float, **uses: tuple[float, float, float]
) -> LinkKind:
    """Of each protocol: microseconds of a call and of a step, and the share of what is reached."""
    return LinkKind(
        latency_seconds=latency_seconds,
        share=share,
        own_part=own_part,
        uses={
            Protocol(name): Use(
                call_seconds=call * 1e-6, delay=step * 1e-6 / latency_seconds, share=part
            )
            for name, (call, step, part) in uses.items()
        },
    )


PLAIN = ""
"""The kind of links that are used as they are."""

_AMPERE = {
    "ll": (8.5, 0.81, 0.08), "ll128": (12.3, 0.94, 0.552), "simple": (32.5, 6.67, 1.0),
    "exchange_ll": (0.0, 13.5, 0.413), "exchange": (0.0, 29.4, 1.0), "pair": (0.0, 13.5, 1.0),
}  # fmt: skip

# Pairs take as long to start as small exchanges and get the whole rate at once, as two devices with
# a communicator of their own do (vidur-a100). Eight that send around by one are much slower.
KINDS: Mapping[str, LinkKind] = MappingProxyType(
    {
        PLAIN: LinkKind(uses={Protocol.PAIR: Use()}),
        # Volta: a DGX-1 reaches 21.4 of 25 GB/s of each link; the rest as NVLink 3.
        "nvlink2": _kind(1.9e-6, 0.856, 0.45, **_AMPERE),
        "nvlink3": _kind(1.9e-6, 0.766, 0.45, **_AMPERE),
        "nvlink4": _kind(
            1.9e-6, 0.786, 0.45, ll=(5.0, 0.78, 0.083), ll128=(5.3, 0.87, 0.51),
            simple=(17.1, 1.08, 1.0), switch=(63.9, 0.0, 0.711),
            exchange_ll=(0.0, 6.9, 0.058), exchange=(0.0, 13.4, 1.0), pair=(0.0, 6.9, 1.0),
        ),
        "nvlink5": _kind(
            1.9e-6, 0.708, 0.45, ll=(7.5, 1.34, 0.041), ll128=(8.5, 1.34, 0.451),
            simple=(20.3, 2.01, 1.0), switch=(86.3, 0.0, 0.676),
            exchange_ll=(0.0, 11.4, 0.263), exchange=(0.0, 23.0, 1.0), pair=(0.0, 11.4, 1.0),
        ),
        # Of 448 GB/s of an MI300X 313 are reached in an all-reduce of eight, of 64 of a pair 47.7
        # (Bekman, Machine Learning Engineering, network/README.md, 2026); the rest as NVLink 3.
        "infinity": _kind(1.9e-6, 0.72, 0.45, **_AMPERE),
        "pcie": _kind(
            2.5e-6, 0.915, 0.0, ll=(4.5, 1.2, 0.2), ll128=(6.3, 0.31, 0.504),
            simple=(17.0, 3.2, 1.0),
            exchange_ll=(0.0, 9.9, 0.46), exchange=(0.0, 14.0, 1.0), pair=(0.0, 9.9, 1.0),
        ),
        # InfiniBand and RoCE between cards that reach devices' memory.
        "network": _kind(
            4e-6, 0.9, 0.0, ll=(0.0, 7.4, 0.026), ll128=(0.0, 33.0, 0.444),
            simple=(0.0, 138.0, 1.0), switch=(0.0, 40.8, 1.0),
            exchange_ll=(0.0, 39.0, 0.4), exchange=(0.0, 60.0, 1.0), pair=(0.0, 39.0, 1.0),
        ),
    }
)  # fmt: skip
"""All kinds of links, by name."""
