"""The network as nested groups of devices, and what collectives take on it, by formula.

A tier is a size of groups (a device, a host, the hosts of a leaf, ...) and what it takes to send
out of such a group: when one device does, and when all do at once, measured by pricing that very
pattern on the cluster's links. Formulas on tiers tell thousands of candidates apart; the few that
are simulated are priced on their actual links (`meshwright.cost.axis`), and have the last word.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import ceil, log2

import numpy as np
import numpy.typing as npt

from meshwright.array import Longs
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.kind import EXCHANGES, RINGS, Protocol
from meshwright.cluster.nest import find_nest, is_switched
from meshwright.cost.collective import Collective, find_unbeaten
from meshwright.cost.rounds import Price, Round, price_rounds
from meshwright.cost.way import PROTOCOLS
from meshwright.cost.wire import Wire, find_wire, has_switch
from meshwright.kernel.row import group_values

Lines = tuple[tuple[float, float], ...]
"""Latency and seconds a byte of some algorithms."""
Axis = tuple[tuple[int, int], ...]
"""The members of a group as (count, stride), nested; strides in places of the device order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkTier:
    """Groups of `size` neighbouring devices, and the way out of them."""

    size: int
    seconds_per_byte: float
    """Seconds a byte where every device sends out of its group at once."""
    alone_seconds_per_byte: float
    """Seconds a byte where one device alone sends."""
    latency_seconds: float
    call_seconds: float = 0.0
    """What a library takes for a call that leaves the group; of several tiers the longest."""
    own_part: float = 0.0
    """See `meshwright.cluster.kind.LinkKind`; of several tiers the least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _TierStep:
    """A tier whose borders a group crosses."""

    inside: int
    """How many members are within one of its groups."""
    outside: int
    """How many members are within one of the next tier's groups."""
    ways: tuple[tuple[float, int], ...]
    """Out of its group and of those within it, all of which are left on the way: seconds a byte
    where all who take part send at once, and members of a group there."""
    alone: float
    latency: float
    tier: NetworkTier

    def sent(self, senders: int) -> float:
        """Seconds a byte where so many of the members within a group send out of it at once."""
        crowded = (each * min(senders, members) / members for each, members in self.ways)
        return max(self.alone, *crowded)


@dataclass(frozen=True, kw_only=True)
class Tiers:
    """A cluster's devices in an order that keeps neighbours near, and its tiers."""

    order: tuple[int, ...]
    """Device numbers; a block of a plan is a run of these."""
    tiers: tuple[NetworkTier, ...]
    """The tiers from single devices outwards; the last one's groups are joined by the whole
    network."""
    is_even: bool = True
    """Whether all pairs of a tier are about alike, as behind switches."""
    by_protocol: Mapping[Protocol, "Tiers"] = field(default_factory=dict)
    """The same devices as each protocol of a library finds them; empty: links are of no kind."""

    @cached_property
    def host_size(self) -> int:
        """Devices of a group of the second tier: what is joined the fastest."""
        return self.tiers[1].size if len(self.tiers) > 1 else len(self.order)

    def lines(self, collective: Collective, axis: Axis, crowd: Axis = ()) -> Lines:
        """Of each algorithm its latency and seconds a byte of the message, of groups of this shape
        all at once; the fastest for a size counts.

        `crowd`: the devices that are in such groups, as nested counts; none: every device is.
        """
        count = _members_inside(axis, len(self.order) + 1)
        if count == 1:
            return ((0.0, 0.0),)
        if self.by_protocol:
            return self._library_lines(collective, axis, count, crowd)
        if collective is Collective.ALL_TO_ALL:
            return (self._exchange(axis, count, crowd),)
        passes = 2 if collective is Collective.ALL_REDUCE else 1
        steps = self._steps(axis, count, crowd)
        if collective is Collective.SHIFT:  # one of the rounds of a ring, with all of the message
            latency = max(step.latency for step in steps)
            return ((latency, max(step.sent(1) for step in steps)),)
        lines = [_ring(steps, count, passes)]
        if count & (count - 1) == 0:
            lines.append(_halve(steps, passes))
        size = steps[0].outside
        if steps[0].inside == 1 < size < count and count % size == 0:
            lines += [_nest(steps, count, passes), _channels(steps, count, passes)]
        if passes == 2:
            lines.append(_tree(steps, count))
        return tuple(lines)

    def _library_lines(self, collective: Collective, axis: Axis, count: int, crowd: Axis) -> Lines:
        """What NCCL does, by each of its protocols, without lines that another one beats."""
        lines: list[tuple[float, float]] = []
        for protocol in PROTOCOLS.get(collective, (*RINGS, Protocol.SWITCH)):
            if protocol in self.by_protocol:
                tiers = self.by_protocol[protocol]
                lines += tiers._lines_of(protocol, collective, axis, count, crowd)
        return tuple(lines[place] for place in find_unbeaten(lines))

    def _lines_of(
        self, protocol: Protocol, collective: Collective, axis: Axis, count: int, crowd: Axis
    ) -> Lines:
        """Those of one protocol, whose tiers these are."""
        steps = self._steps(axis, count, crowd)
        passes = 2 if collective is Collective.ALL_REDUCE else 1
        own = 1 + min(step.tier.own_part for step in steps) / (passes * (count - 1))
        found: list[tuple[float, tuple[float, float]]] = []
        if collective is Collective.ALL_TO_ALL:
            found = [(own, self._exchange(axis, count, crowd))]
        elif collective is Collective.SHIFT:
            sent = max(step.sent(1) for step in steps)
            found = [(1.0, (max(step.latency for step in steps), sent))]
        elif protocol is not Protocol.SWITCH:
            found = [(own, _rings(steps, count, passes))]
            if passes == 2 and steps[-1].tier.size > 1:
                found.append((1.0, _rail_tree(steps, count, is_switched=False)))
        elif passes == 2 and steps[0].tier is self.tiers[0]:
            found = [(1.0, _rail_tree(steps, count, is_switched=True))]
        call = max(step.tier.call_seconds for step in steps)
        return tuple((call + latency, slope * part) for part, (latency, slope) in found)

    def _steps(self, axis: Axis, count: int, crowd: Axis) -> list[_TierStep]:
        """The tiers whose borders a group crosses, from the innermost on."""
        inside = [_members_inside(axis, tier.size) for tier in self.tiers]
        crowded = [tier.seconds_per_byte * _share(crowd, tier.size) for tier in self.tiers]
        ways = tuple(zip(crowded, inside, strict=True))
        return [
            _TierStep(
                inside=here,
                outside=there,
                ways=ways[: number + 1],
                alone=tier.alone_seconds_per_byte,
                latency=tier.latency_seconds,
                tier=tier,
            )
            for number, (tier, here, there) in enumerate(
                zip(self.tiers, inside, [*inside[1:], count], strict=True)
            )
            if here < there
        ]

    def _exchange(self, axis: Axis, count: int, crowd: Axis) -> tuple[float, float]:
        """Every member sends a p-th to each other one, all at once."""
        per_byte, latency = 0.0, 0.0
        for step in self._steps(axis, count, crowd):
            amount = (count - step.inside) / count
            per_byte = max(per_byte, amount * step.sent(step.inside))
            latency = max(latency, step.latency)
        return latency, per_byte

    def shift_line(self, offset: int, size: int, distance: int = 0) -> tuple[float, float]:
        """Latency and seconds a byte where each device of a block sends so many places on (none:
        to the next block).

        Of a block shorter than a tier's group only the last one in it leaves it, with the way out
        of the others to itself; `offset` says which that is.
        """
        per_byte, latency = 0.0, 0.0
        for tier in self.tiers:
            if offset // tier.size != (offset + (distance or size) + size - 1) // tier.size:
                share = min(1.0, size / tier.size)
                across = max(share * tier.seconds_per_byte, tier.alone_seconds_per_byte)
                per_byte = max(per_byte, across)
                latency = max(latency, tier.latency_seconds)
        return latency, per_byte


def _ring(steps: Sequence[_TierStep], count: int, passes: int) -> tuple[float, float]:
    """Neighbours at once: of a tier's group one member sends out of it."""
    rounds = passes * (count - 1)
    per_byte = max(step.sent(1) for step in steps)
    return rounds * max(step.latency for step in steps), rounds / count * per_byte


def _rings(steps: Sequence[_TierStep], count: int, passes: int) -> tuple[float, float]:
    """As many rings at once as members of the innermost groups; each piece of the message passes
    slow and fast ways in turn."""
    size = steps[0].outside if len(steps) > 1 and steps[0].tier.size == 1 else 1
    # Of as many rings as a host has members each link within it is left out by one.
    within = (size - 1) / size if size > 1 else 1.0
    per_byte = max(
        within * step.sent(1) if step is steps[0] else step.sent(size) / size for step in steps
    )
    borders = [*(1 / step.outside for step in steps[:-1]), 0.0]
    latency = sum(
        (1 / step.inside - border) * step.latency
        for step, border in zip(steps, borders, strict=True)
    )
    rounds = passes * (count - 1)
    return rounds * latency, rounds / count * per_byte


def _rail_tree(steps: Sequence[_TierStep], count: int, *, is_switched: bool) -> tuple[float, float]:
    """Two trees between the innermost groups for each of their members, and within them chains or
    the sums of a switch."""
    within = [step for step in steps if step.tier.size == 1]
    between = steps[len(within) :]
    size = within[0].outside if within else 1
    hosts = ceil(count / size)
    latency = per_byte = 0.0
    for step in within:
        per_byte = (1.0 if is_switched else 2 * (size - 1) / size) * step.sent(1)
        latency = 0.0 if is_switched else 2 * (size - 1) * step.latency
    if between:
        sent = min(2.0, hosts / 2) / size
        per_byte = max(per_byte, sent * max(step.sent(size) for step in between))
        latency += 2 * ceil(log2(hosts)) * max(step.latency for step in between)
    return latency, per_byte


def _halve(steps: Sequence[_TierStep], passes: int) -> tuple[float, float]:
    """Exchanges at doubling distances: all members send, half as much each time."""
    latency = sum(log2(step.outside / step.inside) * step.latency for step in steps)
    per_byte = sum((1 / step.inside - 1 / step.outside) * step.sent(step.inside) for step in steps)
    return passes * latency, passes * per_byte


def _nest(steps: Sequence[_TierStep], count: int, passes: int) -> tuple[float, float]:
    """Rings within the innermost groups, then one between them for each member of a group."""
    within, *between = steps
    size = within.outside
    hosts = count // size
    latency = (size - 1) * within.latency + (hosts - 1) * max(step.latency for step in between)
    across = max(step.sent(size) for step in between)
    per_byte = (size - 1) / size * within.sent(1) + (hosts - 1) / count * across
    return passes * latency, passes * per_byte


def _channels(steps: Sequence[_TierStep], count: int, passes: int) -> tuple[float, float]:
    """There are as many rings as the innermost groups have members, each by another one's card."""
    within, *between = steps
    size = within.outside
    rounds = passes * (count - 1)
    per_byte = max(within.sent(1), *(step.sent(size) / size for step in between))
    return rounds * max(step.latency for step in steps), rounds / count * per_byte


def _tree(steps: Sequence[_TierStep], count: int) -> tuple[float, float]:
    """Two binary trees between hosts, each with half of the message, and chains within them.

    A host inside one tree has three neighbours there and is a leaf of the other, so that twice the
    message leaves it; of two or three hosts less does.
    """
    size = steps[0].outside if len(steps) > 1 else 1
    hosts = ceil(count / size)
    sent = min(2.0, hosts / 2)
    outer = steps if size == 1 else steps[1:]
    per_byte = sent * max(step.sent(1) for step in outer)
    latency = ceil(log2(hosts)) * max(step.latency for step in outer)
    if size > 1:
        per_byte = max(per_byte, min(2.0, size / 2) * steps[0].sent(1))
        latency += (size - 1) * steps[0].latency
    return 2 * latency, per_byte


def _share(crowd: Axis, size: int) -> float:
    """Which part of the devices of a tier's group take part."""
    return _members_inside(crowd, size) / size if crowd else 1.0


def _members_inside(axis: Axis, size: int) -> int:
    """How many members of a group stand within one group of a tier."""
    inside = 1
    for count, stride in axis:
        if stride < size:
            inside *= min(count, max(1, size // stride))
    return inside


def find_groups(order: Sequence[int], axis: Axis, crowd: Axis) -> list[list[int]]:
    """The devices of every group of a shape among a crowd, those that are whole."""
    places = np.zeros(1, dtype=np.int64)
    for count, stride in crowd or ((len(order), 1),):
        places = (places[:, None] + np.arange(count) * stride).ravel()
    places.sort()
    first, rest = places.copy(), places
    size = 1
    for count, stride in sorted(axis, key=lambda each: -each[1]):  # within a pod from its start
        here = rest // stride % count * stride
        first, rest = first - here, rest - here
        size *= count
    starts = zip(first.tolist(), places.tolist(), strict=True)
    members = group_values((start, order[place]) for start, place in starts)
    return [each for each in members.values() if len(each) == size]


def find_tiers(cluster: Cluster) -> Tiers:
    """Order the devices by nested groups and measure the way out of each tier's."""
    nest = find_nest(cluster)
    places = [size for size in nest.sizes if size < cluster.num_devices]
    around = [*nest.sizes[1:], cluster.num_devices]
    order = np.array(nest.order)

    def measured(wire: Wire | None) -> tuple[NetworkTier, ...]:
        return tuple(
            _measure(cluster, order, size, outer, wire)
            for size, outer in zip(places, around, strict=False)
        )

    protocols = [Protocol.PAIR, *EXCHANGES, *RINGS] if cluster.has_kinds and places else []
    if protocols and has_switch(cluster, order[: around[0]].astype(np.int32)):
        protocols.append(Protocol.SWITCH)
    return Tiers(
        order=nest.order,
        tiers=measured(None),
        is_even=is_switched(cluster) and _has_even_hosts(cluster),
        by_protocol={
            each: Tiers(order=nest.order, tiers=measured(find_wire(cluster, each)))
            for each in protocols
        },
    )


def _has_even_hosts(cluster: Cluster) -> bool:
    """Whether hosts have as many devices each, all pairs of which are alike: direct links of a few
    are not, nor are hosts of different types."""
    hosts = cluster.devices_of_host
    if len(set(map(len, hosts))) > 1:
        return False
    if len(hosts[0]) == 1:
        return True
    found = []
    for host in hosts[:: max(1, len(hosts) // 16)]:
        bandwidth, _ = cluster.pair_table(host, host)
        found.append(bandwidth[~np.eye(len(host), dtype=np.bool_)])
    return bool(np.min(found) > 0.99 * np.max(found))


def _measure(
    cluster: Cluster, order: Longs, size: int, outer: int, wire: Wire | None
) -> NetworkTier:
    """Let every device send to its like in the next group of the same group of the next tier."""
    sources = order.astype(np.int32)
    targets = np.concatenate(
        [np.roll(sources[k : k + outer], -size) for k in range(0, len(sources), outer)]
    )
    sources, targets = sources[sources != targets], targets[sources != targets]
    everyone = _price(cluster, sources, targets, wire)
    # One device of each group alone: the slowest of these pairs is what one transfer gets.
    firsts = range(0, len(sources), size)
    firsts = firsts[:: max(1, len(firsts) // 16)]  # some 16 groups, evenly chosen
    alone = [_price(cluster, sources[k : k + 1], targets[k : k + 1], wire) for k in firsts]
    return NetworkTier(
        size=size,
        seconds_per_byte=everyone.seconds_per_byte,
        alone_seconds_per_byte=max(each.seconds_per_byte for each in alone),
        latency_seconds=max(each.latency_seconds for each in alone),
        call_seconds=max(each.call_seconds for each in alone),
        own_part=0.0 if wire is None else float(wire.own_part[everyone.links].min(initial=1.0)),
    )


def _price(
    cluster: Cluster,
    sources: npt.NDArray[np.int32],
    targets: npt.NDArray[np.int32],
    wire: Wire | None,
) -> Price:
    each = Round(sources=sources, targets=targets, fractions=np.ones(len(sources)))
    return price_rounds(cluster, [each], wire=wire)
