"""Which network interfaces carry what between ranks, on hosts that have several.

Decides on which rails a transfer or collective goes and how many of its bytes on each, from cluster
and program alone, so that all ranks decide alike. A rail is as `meshwright.cluster.way` and the
simulator have it; a way between two hosts is a rail that both are on. Opens no connection and knows
no process groups.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.way import find_exits, label_rails
from meshwright.cost.ring import order_hosts
from meshwright.plan.part import Allocation
from meshwright.program.program import Kind, Program

ALIGNED_BYTES = 64
"""Pieces begin at multiples: a cache line, and of any type's size."""
LEAST_BYTES = 16 * 1024
"""Less goes whole, since a second message takes 30 us. On one and on two links of 1 Gbit/s 8 KiB
took 0.10 and 0.17 ms, 16 KiB 0.14 and 0.11 ms; of 100 Mbit/s 0.68 and 0.10 ms (2026-11-15)."""

Pair = tuple[int, int]
Division = tuple[tuple[int, float], ...]
"""Rails, rising, and the share of the bytes on each; shares add up to one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ring:
    """The devices of a collective, each sending to the next, and how it is divided."""

    devices: tuple[int, ...]
    division: Division


@dataclass(frozen=True, slots=True, kw_only=True)
class Rails:
    """The rails of a cluster, and what of a program goes on which."""

    places: tuple[Mapping[int, int], ...]
    """By rail and number of a host on it: which of the host's interfaces it is."""
    num_interfaces: tuple[int, ...]
    """By number of host."""
    pairs: Mapping[Pair, Division]
    """By ordered pair of devices; those that are not here have no rail in common."""
    rings: Mapping[int, Ring]
    """By number of the program's group, likewise."""
    gathered: frozenset[int] = frozenset()
    """Groups in which something is gathered."""

    @property
    def used(self) -> tuple[int, ...]:
        """The rails that carry anything between pairs."""
        return tuple(sorted({rail for each in self.pairs.values() for rail, _ in each}))


@dataclass(frozen=True, slots=True, kw_only=True)
class RankWiring:
    """The rails of a run, and what this rank calls its ends of them."""

    rails: Rails
    host_of: tuple[int, ...]
    """The number of each device's host."""
    names: Mapping[int, str]
    """By rail that this rank's host is on: the name of its interface."""


def find_rails(cluster: Cluster, program: Program) -> Rails | None:
    """The rails of all that a program sends, and of its collectives.

    None where no host that takes part has several interfaces: then there is nothing to choose.
    """
    finder, rows = _RailFinder(cluster, program.allocations), program.instructions
    if all(finder.num_interfaces[finder.host_of[each]] < 2 for each in np.unique(rows["device"])):
        return None
    sends = rows[rows["kind"] == Kind.SEND]
    pairs = sorted(set(zip(sends["device"].tolist(), sends["peer"].tolist(), strict=True)))
    divisions = {pair: finder.divide_pair(*pair) for pair in pairs}
    groups = np.unique(rows["group"][rows["group"] >= 0]).tolist()
    rings = {number: finder.divide_ring(program.groups[number]) for number in groups}
    return Rails(
        places=tuple(finder.places.values()),
        num_interfaces=tuple(finder.num_interfaces),
        pairs={pair: division for pair, division in divisions.items() if division},
        rings={number: ring for number, ring in rings.items() if ring.division},
        gathered=frozenset(rows["group"][rows["kind"] == Kind.ALL_GATHER].tolist()),
    )


class _RailFinder:
    """Rails by their switch, and what is allocated on each."""

    def __init__(self, cluster: Cluster, allocations: Sequence[Allocation]) -> None:
        self.cluster = cluster
        number = cluster.host_index
        self.host_of: list[int] = cluster.host_of.tolist()
        self.allocation = {(number[each.source], number[each.target]): each for each in allocations}
        self.num_interfaces = [0] * len(cluster.hosts)
        self.places: dict[Pair, dict[int, int]] = {}
        """By rail: hosts' interfaces."""
        self.rail_of_exit = label_rails(cluster.network, len(cluster.hosts))
        for link in find_exits(cluster.network, len(cluster.hosts)):
            host = number[cluster.links[link].source]
            self.places.setdefault(self.rail_of_exit[link], {})[host] = self.num_interfaces[host]
            self.num_interfaces[host] += 1
        self.places = {key: self.places[key] for key in sorted(self.places)}
        self.number = {key: rail for rail, key in enumerate(self.places)}

    def divide_pair(self, source: int, target: int) -> Division:
        """Of what one device sends to another; nothing where they have no rail in common."""
        divided = self._rates(source, target)
        if divided is not None:
            return _share(divided)
        rail = self._route(source, target)
        return () if rail is None else ((rail, 1.0),)

    def divide_ring(self, members: Sequence[int]) -> Ring:
        """Of what a group does together: as much on each rail as its slowest allocation has there.

        Without allocations on one rail: a process group has one interface a rank, and alone a ring
        is as fast there as on all that its routes take.
        """
        blocks = order_hosts(self.cluster, tuple(members))
        ring = tuple(device for block in blocks for device in block)
        steps = [
            (one, other)
            for one, other in zip(ring, (*ring[1:], ring[0]), strict=True)
            if self.host_of[one] != self.host_of[other]
        ]
        hosts = {self.host_of[each] for each in ring}
        common = [rail for rail, places in enumerate(self.places.values()) if hosts <= set(places)]
        if not steps or not common:
            return Ring(devices=ring, division=())
        divided = [rates for each in steps if (rates := self._rates(*each)) is not None]
        if divided:
            least = {rail: min(each.get(rail, 0.0) for each in divided) for rail in common}
            division = _share({rail: rate for rail, rate in least.items() if rate > 0})
            if division:
                return Ring(devices=ring, division=division)
        taken = Counter(self._route(*each) for each in steps)
        return Ring(
            devices=ring, division=((max(common, key=lambda rail: (taken[rail], -rail)), 1.0),)
        )

    def _rates(self, source: int, target: int) -> dict[int, float] | None:
        """Allocated bytes a second on each rail between two devices; None: not divided."""
        hosts = self.host_of[source], self.host_of[target]
        allocation = self.allocation.get(hosts)
        if hosts[0] == hosts[1] or allocation is None or not allocation.shares:
            return None
        rates: dict[int, float] = {}
        for way, share in zip(self.cluster.ways.links[hosts], allocation.shares, strict=True):
            rail = self._rail(way[0], hosts[1])
            if rail is None:
                return None  # from host to host, past all switches
            if share > 0:
                rates[rail] = share * allocation.bytes_per_second
        return rates

    def _route(self, source: int, target: int) -> int | None:
        """The rail that the cluster's route takes; None within a host, or where it has none."""
        for link in self.cluster.routes_between([source], [target]).links.tolist():
            if link in self.rail_of_exit:
                return self._rail(link, self.host_of[target])
        return None

    def _rail(self, exit_link: int, target: int) -> int | None:
        """The rail of an interface, if a host is on it, too."""
        key = self.rail_of_exit.get(exit_link)
        if key is None or target not in self.places.get(key, {}):
            return None
        return self.number[key]


def _share(rates: Mapping[int, float]) -> Division:
    total = sum(rates.values())
    return tuple((rail, rates[rail] / total) for rail in sorted(rates))


def cut_pieces(num_bytes: int, division: Division) -> tuple[tuple[int, int, int], ...]:
    """The pieces of a message: rail, first byte and end of each; together they are all of it."""
    if num_bytes < LEAST_BYTES or len(division) == 1:
        rail, _ = max(division, key=lambda each: (each[1], -each[0]))
        return ((rail, 0, num_bytes),)
    ends = [
        min(num_bytes, round(share * num_bytes / ALIGNED_BYTES) * ALIGNED_BYTES)
        for share in accumulate(share for _, share in division[:-1])
    ]
    bounds = [0, *ends, num_bytes]
    return tuple(
        (rail, start, end)
        for (rail, _), start, end in zip(division, bounds, bounds[1:], strict=False)
        if end > start
    )
