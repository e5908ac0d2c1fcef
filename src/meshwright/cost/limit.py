"""What traffic between some hosts may use, and which links it takes then. Knows no plans.

A limit is a rate for all that goes from one host to another. It stands among the links as one more,
past the cluster's. It may be divided over the ways between the two hosts: then traffic takes all of
these at once, in place of the links that its route has between the hosts, and may be faster than
any one of them. What does not pass its hosts keeps its route under whatever limit.

Who talks to several hosts at once, as collectives do, takes a rail: what several pairs' ways have
in common (see `meshwright.cluster.way`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, pairwise

import numpy as np
import numpy.typing as npt

from meshwright.array import Bools, Floats, Ints, Longs
from meshwright.cluster.cluster import Cluster, Routes
from meshwright.cluster.way import label_rails


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLimit:
    """What traffic from one host to another may use."""

    source: int
    """Host numbers, as in the cluster's `hosts`."""
    target: int
    bytes_per_second: float
    shares: tuple[float, ...] = ()
    """The part of it on each way of the cluster's `ways`; empty: all of it is on the route."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Limits:
    """The limits on a cluster: one or more, at most one for each ordered pair of hosts."""

    cluster: Cluster
    limits: tuple[HostLimit, ...]

    @cached_property
    def capacity(self) -> Floats:
        """Bytes a second of the cluster's links, then of the limits."""
        rates = [each.bytes_per_second for each in self.limits]
        return np.append(self.cluster.link_bytes_per_second, rates)

    @cached_property
    def is_divided(self) -> Bools:
        """Of each limit whether it is divided over ways."""
        return np.array([bool(each.shares) for each in self.limits])

    @cached_property
    def rails(self) -> tuple[tuple[int, ...], ...]:
        """Of each limit the rail of each of its ways, numbered as switches are."""
        label = label_rails(self.cluster.network, len(self.cluster.hosts))
        ways = self.cluster.ways.links if self.is_divided.any() else {}
        labels = [
            [label[way[0]] for way in ways[each.source, each.target]] if each.shares else []
            for each in self.limits
        ]
        number = {key: place for place, key in enumerate(sorted({*chain.from_iterable(labels)}))}
        return tuple(tuple(number[key] for key in each) for each in labels)

    @cached_property
    def _keys(self) -> tuple[Longs, Longs]:
        """The pairs of hosts as one number each, rising, and whose limit each is."""
        count = len(self.cluster.hosts)
        keys = np.array([each.source * count + each.target for each in self.limits], dtype=np.int64)
        order = np.argsort(keys)
        return keys[order], order

    def find(self, sources: npt.ArrayLike, targets: npt.ArrayLike) -> Longs:
        """The limit that each pair of devices is under; -1: none."""
        keys, number = self._keys
        one, other = np.asarray(sources, dtype=np.int64), np.asarray(targets, dtype=np.int64)
        host_of = self.cluster.host_of
        wanted = host_of[one] * len(self.cluster.hosts) + host_of[other]
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        return np.where((keys[place] == wanted) & (one != other), number[place], -1)

    def pairs(self) -> tuple[Longs, Longs]:
        """Sources and targets of all pairs of devices that are under a limit."""
        members = self.cluster.devices_of_host
        ends = [(members[each.source], members[each.target]) for each in self.limits]
        sources = np.concatenate([np.repeat(one, len(other)) for one, other in ends])
        targets = np.concatenate([np.tile(other, len(one)) for one, other in ends])
        is_pair = sources != targets
        return sources[is_pair], targets[is_pair]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SpreadTransfers:
    """Transfers, and what each of them puts on links."""

    latency_seconds: Floats
    """By transfer: of its route."""
    bytes_per_second: Floats
    """By transfer: alone on the network."""
    transfer: Longs
    """Of each use of a link: whose it is."""
    link: Longs
    """The link, or past the cluster's links the limit."""
    weight: Floats
    """Bytes on it for each byte of the transfer. Of a limit that is divided otherwise than the
    transfer: what of the limit is taken up, going by the way that is full first."""

    def by_transfer(self) -> Iterator[tuple[Ints, Floats]]:
        """The links of each transfer and their weights."""
        order = np.argsort(self.transfer, kind="stable")
        bounds = np.searchsorted(self.transfer[order], np.arange(len(self.bytes_per_second) + 1))
        links, weights = self.link[order].astype(np.int32), self.weight[order]
        for low, high in pairwise(bounds.tolist()):
            yield links[low:high], weights[low:high]


def spread_transfers(
    limits: Limits,
    sources: npt.ArrayLike,
    targets: npt.ArrayLike,
    division: Sequence[float] = (),
) -> SpreadTransfers:
    """What transfers between devices (numbers, one of each a transfer) put on which links.

    `division`: the part that goes over each rail, for all that are divided; empty: as their limits
    are.
    """
    one, other = np.asarray(sources, dtype=np.int64), np.asarray(targets, dtype=np.int64)
    routes = limits.cluster.routes_between(one, other)
    transfer = np.repeat(np.arange(len(routes.bandwidth)), routes.hops)
    number = limits.find(one, other)
    is_divided = (number >= 0) & limits.is_divided[number]
    is_kept = np.ones(len(transfer), dtype=np.bool_)
    if is_divided.any():
        host_of = limits.cluster.host_of
        ends = host_of[one], host_of[other]
        is_between, passes = _find_between(limits.cluster, routes, transfer, *ends)
        is_divided &= passes
        is_kept = ~(is_between & is_divided[transfer])
    own = _limit_uses(limits, number, is_divided, division)
    owner = np.concatenate((transfer[is_kept], own[0]))
    link = np.concatenate((routes.links[is_kept].astype(np.int64), own[1]))
    weight = np.concatenate((np.ones(np.count_nonzero(is_kept)), own[2]))
    return SpreadTransfers(
        latency_seconds=routes.latency,
        bytes_per_second=_alone(limits, routes, owner, link, weight),
        transfer=owner,
        link=link,
        weight=weight,
    )


def _find_between(
    cluster: Cluster, routes: Routes, transfer: Longs, sources: Longs, targets: Longs
) -> tuple[Bools, Bools]:
    """Of each link of routes whether it lies between the hosts, and which routes pass both."""
    network, start = cluster.network, routes.starts[:-1][transfer]
    leaves = network.sources[routes.links] == (network.num_devices + sources)[transfer]
    enters = network.targets[routes.links] == (network.num_devices + targets)[transfer]
    left, entered = (np.concatenate(([0], np.cumsum(each))) for each in (leaves, enters))
    has_left = left[1:] > left[start]
    is_between = has_left & (entered[:-1] == entered[start])
    passes = np.bincount(transfer, weights=enters & has_left, minlength=len(routes.hops)) > 0
    return is_between, passes


def _limit_uses(
    limits: Limits, number: Longs, is_divided: Bools, division: Sequence[float]
) -> tuple[Longs, Longs, Floats]:
    """What transfers put on their limits and, if they are divided, on the ways: whose each use is,
    the link and the weight."""
    under = np.flatnonzero(number >= 0)
    keys, kind = np.unique(2 * number[under] + is_divided[under], return_inverse=True)
    uses = [
        _divided_uses(limits, key // 2, division)
        if key % 2
        else [(len(limits.cluster.links) + key // 2, 1.0)]
        for key in keys.tolist()
    ]
    links = np.array([link for each in uses for link, _ in each], dtype=np.int64)
    weights = np.array([weight for each in uses for _, weight in each], dtype=np.float64)
    sizes = np.array([len(each) for each in uses], dtype=np.int64)
    count = sizes[kind]
    owner = np.repeat(np.arange(len(under)), count)
    place = np.arange(len(owner)) - (np.cumsum(count) - count)[owner]
    place += (np.cumsum(sizes) - sizes)[kind][owner]
    return under[owner], links[place], weights[place]


def _divided_uses(
    limits: Limits, number: int, division: Sequence[float]
) -> list[tuple[int, float]]:
    """The links of the ways of a limit, and itself, and what a divided transfer puts on each."""
    limit = limits.limits[number]
    parts = [division[rail] for rail in limits.rails[number]] if division else limit.shares
    ways = limits.cluster.ways.links[limit.source, limit.target]
    uses = [(link, part) for way, part in zip(ways, parts, strict=True) if part > 0 for link in way]
    # Of each way the limit has its share: the fullest way decides how much of it is taken up.
    filled = [part / share for part, share in zip(parts, limit.shares, strict=True) if part > 0]
    return [*uses, (len(limits.cluster.links) + number, max(filled))]


def _alone(limits: Limits, routes: Routes, owner: Longs, link: Longs, weight: Floats) -> Floats:
    """The rate of each transfer by itself: no link gets more than it carries."""
    rate = np.full(len(routes.bandwidth), np.inf)
    if limits.cluster.hop_bytes_per_second:
        # A route is as wide as its number of links says, whatever these are.
        is_limit = link >= len(limits.cluster.links)
        rate, owner = routes.bandwidth.copy(), owner[is_limit]
        link, weight = link[is_limit], weight[is_limit]
    np.minimum.at(rate, owner, limits.capacity[link] / weight)
    return rate
