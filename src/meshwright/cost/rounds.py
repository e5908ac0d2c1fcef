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
from meshwright.cost.rounds_exchange import count_crossings

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
    links: Ints
    """The links that are used, rising."""
    link_loads: Floats
    """Bytes through each of them."""


def price_rounds(cluster: Cluster, rounds: Sequence[Round | Exchange]) -> Price:
    """Add up rounds by the rule in this module's docstring."""
    priced = [
        _price_round(cluster, each) if isinstance(each, Round) else _price_exchange(cluster, each)
        for each in rounds
    ]
    links = np.unique(np.concatenate([each.links for each in priced]))
    latency, per_byte, total = 0.0, 0.0, np.zeros(len(links))
    for each, price in zip(rounds, priced, strict=True):
        repeats = each.repeats if isinstance(each, Round) else 1
        latency += repeats * price.latency_seconds
        per_byte += repeats * price.seconds_per_byte
        total[np.searchsorted(links, price.links)] += repeats * price.link_loads
    return Price(latency_seconds=latency, seconds_per_byte=per_byte, links=links, link_loads=total)


def _price_round(cluster: Cluster, each: Round) -> Price:
    """One such round."""
    routes = cluster.routes_between(each.sources, each.targets)
    links, place = np.unique(routes.links, return_inverse=True)
    amounts = np.repeat(each.fractions, routes.hops)
    loads = np.bincount(place, weights=amounts, minlength=len(links)).astype(np.float64)
    alone = float((each.fractions / routes.bandwidth).max(initial=0.0))
    latency = each.latency_seconds
    if latency is None:
        latency = float(routes.latency.max(initial=0.0))
    return _price(cluster, latency, alone, links, loads)


def _price_exchange(cluster: Cluster, each: Exchange) -> Price:
    """The one round of an exchange."""
    crossings = count_crossings(cluster, each.devices)
    links = np.flatnonzero(crossings.counts).astype(np.int32)
    loads = crossings.counts[links].astype(np.float64) * each.fraction
    alone = each.fraction / crossings.bytes_per_second
    return _price(cluster, crossings.latency_seconds, alone, links, loads)


def _price(cluster: Cluster, latency: float, alone: float, links: Ints, loads: Floats) -> Price:
    """The larger of the slowest transfer alone and the most loaded link sets the pace."""
    busiest = float((loads / cluster.link_bytes_per_second[links]).max(initial=0.0))
    return Price(
        latency_seconds=latency,
        seconds_per_byte=max(alone, busiest),
        links=links,
        link_loads=loads,
    )
