"""What transfers and collectives of a program put between hosts, and what else they take.

Everything that communicates is rounds, one after the other; a round is over when the slowest of its
pairs of hosts is, and when what no rate is about (links of devices, traffic inside hosts) is. Knows
nothing of when things run.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.kind import Protocol
from meshwright.cost.axis import axis_model
from meshwright.cost.collective import (
    Algorithm,
    CollectiveCost,
    collective_rounds,
)
from meshwright.cost.limit import Limits
from meshwright.cost.ring import order_hosts
from meshwright.cost.rounds import Round, pairs_of
from meshwright.cost.wire import find_wire
from meshwright.plan.part import Allocation
from meshwright.program.program import Kind, Program
from meshwright.search.method.bandwidth.rate.rates import HostPairs, is_between_hosts
from meshwright.simulate.allocation import find_limits
from meshwright.simulate.tasks import COLLECTIVES, Models
from meshwright.simulate.transfer import find_pairs
from meshwright.units import MOST


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TrafficRound:
    """One round of something, for each byte."""

    pairs: Longs
    """Numbers of pairs of hosts."""
    amounts: Floats
    """Bytes between each of them."""
    least_seconds: float
    """What it takes at any rate."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Kinship:
    """Tasks that do the same between the same devices: a queue of transfers, or collectives."""

    tasks: Longs
    message_bytes: Floats
    """Of each."""
    latency_seconds: Floats
    """Of each, before anything moves."""
    phases: tuple[TrafficRound, ...]
    user: int
    """Tasks of one user never meet: they queue, or their devices take one after the other."""
    queues: bool
    """Whether it is transfers of one pair of devices, of which the next waits for the last."""

    @property
    def host_pairs(self) -> list[int]:
        """The numbers of the pairs of hosts that it uses, rising."""
        return sorted({int(pair) for phase in self.phases for pair in phase.pairs})


Timed = tuple[float, tuple[TrafficRound, ...]]
"""Latency, and what follows it."""


def list_traffic(
    program: Program, cluster: Cluster, hosts: HostPairs, *, sharing: str, prefers_rings: bool
) -> list[Kinship]:
    """All that a program communicates.

    `prefers_rings`: collectives whose algorithm is free go in rings, which load few pairs of hosts;
    else by the algorithm that is fastest under the program's allocations.
    """
    transfers = list(_transfers(program, cluster, hosts, sharing))
    return transfers + list(_collectives(program, cluster, hosts, len(transfers), prefers_rings))


def _transfers(
    program: Program, cluster: Cluster, hosts: HostPairs, sharing: str
) -> Iterator[Kinship]:
    """One for each pair of devices that sends."""
    under, limits = _under_all(program, cluster, hosts)
    pairs = find_pairs(under, cluster, limits)
    if not len(pairs.rows):
        return
    rows = program.instructions[pairs.rows]
    size = rows["bytes"] if sharing == "fair" else rows["bytes"] - rows["beside_bytes"]
    order = np.argsort(pairs.pair, kind="stable")
    bounds = np.searchsorted(pairs.pair[order], np.arange(len(pairs.latency_seconds) + 1))
    capacity = _own_capacity(cluster)
    for number in range(len(pairs.latency_seconds)):
        members = order[bounds[number] : bounds[number + 1]]
        low, high = pairs.use_start[number], pairs.use_start[number + 1]
        links, weights = pairs.use_link[low:high], pairs.use_weight[low:high]
        is_limit = links >= len(cluster.links)
        own = float((weights[~is_limit] / capacity[links[~is_limit]]).max(initial=0.0))
        if cluster.hop_bytes_per_second or not is_limit.any():
            own = 1.0 / float(pairs.bytes_per_second[number])
        phase = TrafficRound(
            pairs=links[is_limit].astype(np.int64) - len(cluster.links),
            amounts=weights[is_limit],
            least_seconds=own,
        )
        yield Kinship(
            tasks=rows["task"][members].astype(np.int64),
            message_bytes=size[members],
            latency_seconds=np.full(len(members), pairs.latency_seconds[number]),
            phases=(phase,),
            user=number,
            queues=True,
        )


def _under_all(
    program: Program, cluster: Cluster, hosts: HostPairs
) -> tuple[Program, Limits | None]:
    """The program as if every pair of hosts had a rate that never binds, divided evenly."""
    everything = tuple(
        Allocation(
            source=cluster.hosts[source],
            target=cluster.hosts[target],
            bytes_per_second=MOST,
            shares=_even(cluster, (source, target)),
        )
        for source, target in hosts.pairs
    )
    return replace(program, allocations=everything), find_limits(everything, cluster)


def _even(cluster: Cluster, pair: tuple[int, int]) -> tuple[float, ...]:
    count = len(cluster.ways.links[pair])
    return (1.0 / count,) * count if count > 1 or pair in cluster.ways.off_route else ()


def _own_capacity(cluster: Cluster) -> Floats:
    """Of links that are on no way between hosts their rate; of the others no limit."""
    on_ways = {link for ways in cluster.ways.links.values() for way in ways for link in way}
    capacity = cluster.link_bytes_per_second.copy()
    capacity[sorted(on_ways)] = np.inf
    return capacity


def _collectives(
    program: Program, cluster: Cluster, hosts: HostPairs, num_users: int, prefers_rings: bool
) -> Iterator[Kinship]:
    """One for each kind, group and size. Those of one group are one user."""
    rows = program.instructions[np.flatnonzero(program.instructions["group"] >= 0)]
    firsts = rows[np.unique(rows["task"], return_index=True)[1]]
    models = Models(program, cluster, find_limits(program.allocations, cluster))
    keys = np.stack((firsts["kind"], firsts["group"]), axis=1).astype(np.int64)
    for kind, group in np.unique(keys, axis=0).tolist() if len(keys) else ():
        model = models.find(Kind(kind), group)
        of_group = firsts[(keys[:, 0] == kind) & (keys[:, 1] == group)]
        for size in np.unique(of_group["bytes"]).tolist():
            tasks = of_group["task"][of_group["bytes"] == size].astype(np.int64)
            cost = model.cost(size)
            if program.beside:
                found = _team_phase(program, cluster, hosts, Kind(kind), group, cost, size)
            else:
                found = _phases(
                    program, cluster, hosts, Kind(kind), group, cost, size, prefers_rings
                )
            yield Kinship(
                tasks=tasks,
                message_bytes=np.full(len(tasks), size),
                latency_seconds=np.full(len(tasks), found[0]),
                phases=found[1],
                user=num_users + group,
                queues=False,
            )


def _phases(
    program: Program, cluster: Cluster, hosts: HostPairs, kind: Kind, group: int,
    cost: CollectiveCost, size: float, prefers_rings: bool,
) -> Timed:  # fmt: skip
    """Latency and the rounds of a collective, these for each byte of the message."""
    members = program.groups[group]
    is_inside = len({int(hosts.host_of[each]) for each in members}) == 1
    if size <= 0 or is_inside or cost.algorithm is Algorithm.TABLE:
        return cost.latency_seconds, (_inside(cost, size),)
    blocks = order_hosts(cluster, members)
    is_free = not (kind == Kind.ALL_REDUCE and program.group_algorithm[group])
    algorithm = Algorithm.RING if prefers_rings and is_free else cost.algorithm
    wire = None if cost.protocol is Protocol.PLAIN else find_wire(cluster, cost.protocol)
    rounds = [
        each if isinstance(each, Round) else pairs_of(each)
        for each in collective_rounds(
            cluster, COLLECTIVES[kind], blocks, members[0], algorithm, wire
        )
    ]
    capacity, latency = _own_capacity(cluster), 0.0
    if wire is not None:
        phases = tuple(_phase(cluster, hosts, each, capacity) for each in rounds)
        return cost.latency_seconds, phases
    for each in rounds:
        slowest = float(cluster.routes_between(each.sources, each.targets).latency.max(initial=0.0))
        latency += each.repeats * (
            slowest if each.latency_seconds is None else each.latency_seconds
        )
    return latency, tuple(_phase(cluster, hosts, each, capacity) for each in rounds)


def _inside(cost: CollectiveCost, size: float) -> TrafficRound:
    """What no rate is about, at its known time."""
    moving = (cost.seconds - cost.latency_seconds) / size if size > 0 else 0.0
    return TrafficRound(pairs=np.zeros(0, np.int64), amounts=np.zeros(0), least_seconds=moving)


def _phase(cluster: Cluster, hosts: HostPairs, each: Round, capacity: Floats) -> TrafficRound:
    """One kind of round of a collective, with all its repeats."""
    pair = hosts.number[hosts.host_of[each.sources], hosts.host_of[each.targets]]
    between = pair >= 0
    amounts = np.bincount(pair[between], weights=each.fractions[between]).astype(np.float64)
    routes = cluster.routes_between(each.sources, each.targets)
    # What has a rate leaves the links of its route between the hosts for those of its ways.
    is_kept = ~(np.repeat(between, routes.hops) & is_between_hosts(cluster)[routes.links])
    loads = np.bincount(
        routes.links[is_kept],
        weights=np.repeat(each.fractions, routes.hops)[is_kept],
        minlength=len(capacity),
    )
    kept = ~between | bool(cluster.hop_bytes_per_second)
    alone = float((each.fractions[kept] / routes.bandwidth[kept]).max(initial=0.0))
    busiest = max(alone, float((loads / capacity).max(initial=0.0)))
    used = np.flatnonzero(amounts)
    return TrafficRound(
        pairs=used, amounts=each.repeats * amounts[used], least_seconds=each.repeats * busiest
    )


def _team_phase(
    program: Program, cluster: Cluster, hosts: HostPairs, kind: Kind, group: int,
    cost: CollectiveCost, size: float,
) -> Timed:  # fmt: skip
    """All rounds of a team's collective as one: what it and those beside it put between hosts in
    all, which is the least that they take."""
    limits = _under_all(program, cluster, hosts)[1]
    together = (program.groups[group], *program.beside[group])
    if size <= 0 or limits is None:
        return cost.latency_seconds, (_inside(cost, size),)
    lines = axis_model(cluster, COLLECTIVES[kind], together, limits).lines
    line = min(lines, key=lambda each: each.seconds(size))
    is_limit = line.links >= len(cluster.links)
    if not is_limit.any():
        return cost.latency_seconds, (_inside(cost, size),)
    loads = line.link_share * line.amount_per_byte
    own = loads[~is_limit] / _own_capacity(cluster)[line.links[~is_limit]]
    phase = TrafficRound(
        pairs=line.links[is_limit].astype(np.int64) - len(cluster.links),
        amounts=loads[is_limit],
        least_seconds=float(own.max(initial=0.0)),
    )
    return line.latency_seconds, (phase,)


def pairs_of_collectives(traffic: Sequence[Kinship]) -> set[int]:
    """The pairs of hosts that collectives use: those go over one set of ways, all alike."""
    return {pair for each in traffic if not each.queues for pair in each.host_pairs}
