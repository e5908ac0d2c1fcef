"""Prices rounds of transfers that run at once on a cluster's links.

Knows routes and loads; knows nothing about which collective the rounds belong to.

The rule: a round takes the latency of its slowest route plus the larger of its slowest transfer
alone (bytes over the bandwidth of its route) and its most loaded link (bytes of all transfers that
cross it over its bandwidth). Rounds follow one another.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.cluster.cluster import Cluster

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Round:
    """Transfers that run at once."""

    sources: Ints
    """Device numbers, one a transfer, none to itself."""
    targets: Ints
    fractions: Floats
    """Of the message, one a transfer."""
    repeats: int = 1
    """How many such rounds follow one another."""
    latency_seconds: float | None = None
    """Of one round; None: its slowest route's. A pipelined phase, whose transfers run at once
    because each passes on the chunks it got, states the latency of its longest path."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Exchange:
    """A round in which every device sends to every other at once, written without its pairs."""

    devices: Ints
    fraction: float
    """Of the message, for each pair."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Price:
    """What rounds cost in all; everything but the latency is for each byte of the message."""

    latency_seconds: float
    seconds_per_byte: float
    link_loads: Floats
    """Bytes through each link of the cluster."""


def price_rounds(cluster: Cluster, rounds: Sequence[Round | Exchange]) -> Price:
    """Add up rounds by the rule in this module's docstring."""
    latency, per_byte = 0.0, 0.0
    total = np.zeros(len(cluster.links))
    for each in rounds:
        if isinstance(each, Round):
            repeats, (slowest, alone, loads) = each.repeats, _price_round(cluster, each)
        else:
            repeats, (slowest, alone, loads) = 1, _price_exchange(cluster, each)
        busiest = float((loads / cluster.link_bytes_per_second).max())
        latency += repeats * slowest
        per_byte += repeats * max(alone, busiest)
        total += repeats * loads
    return Price(latency_seconds=latency, seconds_per_byte=per_byte, link_loads=total)


def _price_round(cluster: Cluster, each: Round) -> tuple[float, float, Floats]:
    """Latency, seconds a byte of the slowest transfer alone, and the load of every link."""
    # Imported here because Numba takes 0.3 s to import.
    from meshwright.cost.rounds_kernel import add_loads

    routing = cluster.routing
    loads = np.zeros(len(cluster.links))
    alone, slowest = add_loads(
        (each.sources, each.targets, each.fractions),
        (routing.bandwidth, routing.latency),
        (routing.next_link, routing.link_targets),
        loads,
    )
    return slowest if each.latency_seconds is None else each.latency_seconds, alone, loads


def _price_exchange(cluster: Cluster, each: Exchange) -> tuple[float, float, Floats]:
    """The same of an exchange."""
    from meshwright.cost.rounds_kernel import count_exchange, slowest_pairs

    routing = cluster.routing
    counts = np.zeros(len(cluster.links), dtype=np.int64)
    num_nodes = routing.next_link.shape[1]
    nodes = (
        np.zeros(num_nodes, dtype=np.bool_),
        np.zeros(num_nodes, dtype=np.int32),
        np.zeros(num_nodes, dtype=np.int32),
    )
    count_exchange(each.devices, (routing.next_link, routing.link_targets), nodes, counts)
    narrowest, slowest = slowest_pairs(each.devices, routing.bandwidth, routing.latency)
    return slowest, each.fraction / narrowest, counts.astype(np.float64) * each.fraction
