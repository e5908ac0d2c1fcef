"""Prices rounds of transfers that run at once on a cluster's links.

Knows routes and loads; knows nothing about which collective the rounds belong to.

The rule: a round takes the latency of its slowest route plus the larger of its slowest transfer
alone (bytes over the bandwidth of its route) and its most loaded link (bytes of all transfers that
cross it over its bandwidth). Rounds follow one another.

A library's protocol (`meshwright.cost.wire`) has rates and latencies of its own for every link. Of
rounds that repeat, each piece of the message passes the slow routes and the fast ones in turn, so
that the mean of their latencies counts.

Limits between hosts (`meshwright.cost.limit`) are links to this rule. What they divide over ways is
divided over rails once, for all rounds and members alike: each rail carries a part of the message
by itself, the larger the faster it is, so that all rails would take equally long if only the limits
counted. So of each rail that much is used which the slowest pair of hosts has of it.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.array import Floats, Ints, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.cost.limit import Limits, spread_transfers
from meshwright.cost.rounds_exchange import count_crossings
from meshwright.cost.wire import Wire


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
class ExchangeRound:
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
    call_seconds: float = 0.0
    """What a library takes for the call, besides the latency."""


def price_rounds(
    cluster: Cluster,
    rounds: Sequence[Round | ExchangeRound],
    limits: Limits | None = None,
    wire: Wire | None = None,
) -> Price:
    """Add up rounds by the rule in this module's docstring.

    Where limits leave no rail to all of the members, a byte takes infinitely long.
    """
    if limits is not None:
        return _with_call(_price_limited(limits, rounds, wire), wire)
    priced = [
        _price_round(cluster, each, wire)
        if isinstance(each, Round)
        else _price_exchange(cluster, each, wire)
        for each in rounds
    ]
    return _with_call(_add_up(rounds, priced), wire)


def _with_call(price: Price, wire: Wire | None) -> Price:
    """The price with what a library takes for the call."""
    if wire is None:
        return price
    links = price.links[price.links < len(wire.call_seconds)]
    return replace(price, call_seconds=float(wire.call_seconds[links].max(initial=0.0)))


def pairs_of(exchange: ExchangeRound) -> Round:
    """An exchange with its pairs."""
    count = len(exchange.devices)
    source, target = np.nonzero(~np.eye(count, dtype=np.bool_))
    return Round(
        sources=exchange.devices[source],
        targets=exchange.devices[target],
        fractions=np.full(len(source), exchange.fraction),
    )


def _add_up(rounds: Sequence[Round | ExchangeRound], priced: Sequence[Price]) -> Price:
    links = np.unique(np.concatenate([each.links for each in priced]))
    latency, per_byte, total = 0.0, 0.0, np.zeros(len(links))
    for each, price in zip(rounds, priced, strict=True):
        repeats = each.repeats if isinstance(each, Round) else 1
        latency += repeats * price.latency_seconds
        per_byte += repeats * price.seconds_per_byte
        total[np.searchsorted(links, price.links)] += repeats * price.link_loads
    return Price(latency_seconds=latency, seconds_per_byte=per_byte, links=links, link_loads=total)


def _price_round(cluster: Cluster, each: Round, wire: Wire | None) -> Price:
    """The price of one round whose transfers take the cluster's routes."""
    routes = cluster.routes_between(each.sources, each.targets)
    links, loads = _sum_loads(routes.links, np.repeat(each.fractions, routes.hops))
    if wire is not None:  # of a route, too, the narrowest link sets the pace
        paths = wire.path_seconds(cluster, each.sources, each.targets)
        latency = _latency(each, paths, wire)
        return _price(wire.bytes_per_second, latency, 0.0, links, loads)
    alone = float((each.fractions / routes.bandwidth).max(initial=0.0))
    latency = _latency(each, routes.latency, wire)
    return _price(cluster.link_bytes_per_second, latency, alone, links, loads)


def _sum_loads(links: Ints | Longs, amounts: Floats) -> tuple[Ints, Floats]:
    """The links that are used, rising, and what passes each."""
    used, place = np.unique(links, return_inverse=True)
    loads = np.bincount(place, weights=amounts, minlength=len(used)).astype(np.float64)
    return used.astype(np.int32), loads


def _latency(each: Round, paths: Floats, wire: Wire | None) -> float:
    """The latency of one round whose routes have these."""
    if each.latency_seconds is not None:
        return each.latency_seconds
    if wire is not None and each.repeats > 1:
        return float(paths.mean())
    return float(paths.max(initial=0.0))


def _price_exchange(cluster: Cluster, each: ExchangeRound, wire: Wire | None) -> Price:
    """The one round of an exchange."""
    crossings = count_crossings(cluster, each.devices)
    links = np.flatnonzero(crossings.counts).astype(np.int32)
    loads = crossings.counts[links].astype(np.float64) * each.fraction
    if wire is not None:
        # Routes are found with the latencies of transfers; the slowest link tells the protocol's.
        usual = float(cluster.network.latency_seconds[links].max(initial=0.0)) or 1.0
        slower = float(wire.latency_seconds[links].max(initial=0.0)) / usual
        latency = crossings.latency_seconds * slower
        return _price(wire.bytes_per_second, latency, 0.0, links, loads)
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


def _price_limited(
    limits: Limits, rounds: Sequence[Round | ExchangeRound], wire: Wire | None
) -> Price:
    """Rounds under limits between hosts."""
    listed = [each if isinstance(each, Round) else pairs_of(each) for each in rounds]
    division = _divide(limits, listed)
    is_stuck = bool(division) and not any(division)
    parts = () if is_stuck else division
    total = _add_up(listed, [_price_limited_round(limits, each, parts, wire) for each in listed])
    return replace(
        total,
        seconds_per_byte=np.inf if is_stuck else total.seconds_per_byte,
        division=division,
    )


def _price_limited_round(
    limits: Limits, each: Round, division: tuple[float, ...], wire: Wire | None
) -> Price:
    """The price of one round whose transfers are under limits between hosts."""
    spread = spread_transfers(limits, each.sources, each.targets, division)
    links, loads = _sum_loads(spread.link, each.fractions[spread.transfer] * spread.weight)
    alone = float((each.fractions / spread.bytes_per_second).max(initial=0.0))
    capacity, paths = limits.capacity, spread.latency_seconds
    if wire is not None:
        paths = wire.path_seconds(limits.cluster, each.sources, each.targets)
        capacity = np.append(wire.bytes_per_second, capacity[len(wire.bytes_per_second) :])
    latency = _latency(each, paths, wire)
    return _price(capacity, latency, alone, links, loads)


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
