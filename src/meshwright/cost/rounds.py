"""Prices rounds of transfers that run at once on a cluster's links.

Knows routes and loads; knows nothing about which collective the rounds belong to.

The rule: a round takes the latency of its slowest route plus the larger of its slowest transfer
alone (bytes over the bandwidth of its route) and its most loaded link (bytes of all transfers that
cross it over its bandwidth). Rounds follow one another.

Limits between hosts (`meshwright.cost.limit`) are links to this rule. What they divide over ways is
divided over rails once, for all rounds and members alike: each rail carries a part of the message
by itself, the larger the faster it is, so that all rails would take equally long if only the limits
counted. So of each rail that much is used which the slowest pair of hosts has of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.cluster.cluster import Cluster
from meshwright.cost.limit import Limits, spread_transfers
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
    division: tuple[float, ...] = ()
    """The part of the message on each rail; empty: it is not divided."""


def price_rounds(
    cluster: Cluster, rounds: Sequence[Round | Exchange], limits: Limits | None = None
) -> Price:
    """Add up rounds by the rule in this module's docstring.

    Where limits leave no rail to all of the members, a byte takes infinitely long.
    """
    if limits is not None:
        return _price_limited(limits, rounds)
    priced = [
        _price_round(cluster, each) if isinstance(each, Round) else _price_exchange(cluster, each)
        for each in rounds
    ]
    return _add_up(rounds, priced)


def pairs_of(exchange: Exchange) -> Round:
    """An exchange with its pairs."""
    count = len(exchange.devices)
    source, target = np.nonzero(~np.eye(count, dtype=np.bool_))
    return Round(
        sources=exchange.devices[source],
        targets=exchange.devices[target],
        fractions=np.full(len(source), exchange.fraction),
    )


def _add_up(rounds: Sequence[Round | Exchange], priced: Sequence[Price]) -> Price:
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
    return _price(cluster.link_bytes_per_second, latency, alone, links, loads)


def _price_exchange(cluster: Cluster, each: Exchange) -> Price:
    """The one round of an exchange."""
    crossings = count_crossings(cluster, each.devices)
    links = np.flatnonzero(crossings.counts).astype(np.int32)
    loads = crossings.counts[links].astype(np.float64) * each.fraction
    alone = each.fraction / crossings.bytes_per_second
    capacity = cluster.link_bytes_per_second
    return _price(capacity, crossings.latency_seconds, alone, links, loads)


def _price(capacity: Floats, latency: float, alone: float, links: Ints, loads: Floats) -> Price:
    """The larger of the slowest transfer alone and the most loaded link sets the pace."""
    busiest = float((loads / capacity[links]).max(initial=0.0))
    return Price(
        latency_seconds=latency,
        seconds_per_byte=max(alone, busiest),
        links=links,
        link_loads=loads,
    )


def _price_limited(limits: Limits, rounds: Sequence[Round | Exchange]) -> Price:
    """Rounds under limits between hosts."""
    listed = [each if isinstance(each, Round) else pairs_of(each) for each in rounds]
    division = _divide(limits, listed)
    is_stuck = bool(division) and not any(division)
    parts = () if is_stuck else division
    total = _add_up(listed, [_price_limited_round(limits, each, parts) for each in listed])
    return replace(
        total,
        seconds_per_byte=np.inf if is_stuck else total.seconds_per_byte,
        division=division,
    )


def _price_limited_round(limits: Limits, each: Round, division: tuple[float, ...]) -> Price:
    """One such round."""
    spread = spread_transfers(limits, each.sources, each.targets, division)
    links, place = np.unique(spread.link, return_inverse=True)
    amounts = each.fractions[spread.transfer] * spread.weight
    loads = np.bincount(place, weights=amounts, minlength=len(links)).astype(np.float64)
    alone = float((each.fractions / spread.bytes_per_second).max(initial=0.0))
    latency = each.latency_seconds
    if latency is None:
        latency = float(spread.latency_seconds.max(initial=0.0))
    return _price(limits.capacity, latency, alone, links.astype(np.int32), loads)


def _divide(limits: Limits, rounds: Sequence[Round]) -> tuple[float, ...]:
    """The part of the message on each rail; empty: nothing is divided; zeros: no rail has all."""
    if not limits.is_divided.any():
        return ()
    num_rails = 1 + max(max(each, default=0) for each in limits.rails)
    rates = np.zeros((len(limits.limits), num_rails))
    for number, (limit, rails) in enumerate(zip(limits.limits, limits.rails, strict=True)):
        rates[number, list(rails)] = np.multiply(limit.shares, limit.bytes_per_second)
    seconds, is_used = np.zeros(rates.shape[1]), False
    for each in rounds:
        of_transfer = limits.find(each.sources, each.targets)
        picked = (of_transfer >= 0) & limits.is_divided[of_transfer] & (each.fractions > 0)
        loads = np.bincount(of_transfer[picked], weights=each.fractions[picked])
        used = np.flatnonzero(loads)
        is_used |= bool(len(used))
        with np.errstate(divide="ignore"):  # a rail that a pair has no rate on takes for ever
            slowest = (loads[used, None] / rates[used]).max(axis=0, initial=0.0)
        seconds += each.repeats * slowest
    if not is_used:
        return ()
    speed = 1 / seconds
    return tuple((speed / (speed.sum() or 1.0)).tolist())
