"""Times collectives on a set of devices of a cluster. Knows nothing about graphs or plans.

The size of a message is what NCCL's tests call it: of an all-reduce and a broadcast the vector, of
an all-gather and a reduce-scatter the whole (gathered) vector, of an all-to-all all that one
device holds, a p-th of which goes to each, of a shift what each device sends to the one after it
in the order given. The first device given is the root of a broadcast.

Every formula is a line: a latency plus seconds for each byte. So a `CollectiveModel`, which is
where the work is, can be kept for a set of devices and asked for any size. Where links are of a
kind, a library's protocols (`meshwright.cost.wire`) have a line each.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.cluster.cluster import Cluster, CollectiveTable
from meshwright.cluster.kind import Protocol
from meshwright.cost.limit import Limits
from meshwright.cost.rounds import ExchangeRound, Round, price_rounds
from meshwright.cost.way import (
    PASSES,
    Algorithm,
    Collective,
    Way,
    arrange,
    collective_rounds,
    find_ways,
    offered_algorithms,
)
from meshwright.errors import InputError

__all__ = [
    "Algorithm",
    "Collective",
    "CollectiveCost",
    "CollectiveLine",
    "CollectiveModel",
    "Way",
    "arrange",
    "collective_cost",
    "collective_model",
    "collective_rounds",
    "find_table",
    "find_unbeaten",
    "find_ways",
    "offered_algorithms",
    "open_lines",
    "price_line",
    "table_seconds",
]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveCost:
    """One collective of one size, alone on the network."""

    algorithm: Algorithm
    seconds: float
    latency_seconds: float
    """The part of `seconds` that does not depend on bandwidth."""
    amount_bytes: float
    """Bytes through its busiest link in all."""
    links: Ints
    """The links it uses, rising, past the cluster's the limits; none when nothing is moved."""
    link_share: Floats
    """Bytes through each of them over `amount_bytes`, in (0, 1]; through limits it may be more."""
    division: tuple[float, ...] = ()
    """The part of the message on each rail between hosts; empty: it is not divided."""
    protocol: Protocol = Protocol.PLAIN


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveLine:
    """One algorithm on one set of devices, for any size."""

    algorithm: Algorithm
    latency_seconds: float
    seconds_per_byte: float
    amount_per_byte: float
    """Bytes through the busiest link for each byte of the message."""
    links: Ints
    link_share: Floats
    division: tuple[float, ...] = ()
    protocol: Protocol = Protocol.PLAIN

    def seconds(self, message_bytes: float) -> float:
        """Latency plus the size times seconds a byte."""
        return self.latency_seconds + message_bytes * self.seconds_per_byte

    def cost(self, message_bytes: float) -> CollectiveCost:
        """The cost of one size."""
        is_used = message_bytes > 0
        return CollectiveCost(
            algorithm=self.algorithm,
            seconds=self.seconds(message_bytes),
            latency_seconds=self.latency_seconds,
            amount_bytes=message_bytes * self.amount_per_byte,
            links=self.links if is_used else self.links[:0],
            link_share=self.link_share if is_used else self.link_share[:0],
            division=self.division,
            protocol=self.protocol,
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CollectiveModel:
    """A collective on a set of devices: its algorithms' lines, and a table that overrides them."""

    lines: tuple[CollectiveLine, ...]
    table: CollectiveTable | None
    link_bytes_per_second: Floats
    """Of every link of the cluster."""

    def cost(self, message_bytes: float) -> CollectiveCost:
        """What the table says, else the fastest algorithm for this size, the first of equals."""
        if not 0 <= message_bytes < np.inf:
            raise InputError(
                f"collective: message_bytes must be finite and not negative, got {message_bytes}"
            )
        fastest = min(self.lines, key=lambda line: line.seconds(message_bytes))
        if self.table is None:
            return fastest.cost(message_bytes)
        return self._table_cost(fastest, message_bytes)

    def _table_cost(self, line: CollectiveLine, message_bytes: float) -> CollectiveCost:
        """The measured time, spread over links as the fastest formula does.

        Where the measurement beats what the links allow, it counts as fewer bytes: the links are
        full then, and never more than full.
        """
        assert self.table is not None
        seconds = table_seconds(self.table, message_bytes)
        formula = line.cost(message_bytes)
        latency = min(formula.latency_seconds, seconds) if message_bytes else seconds
        amount = formula.amount_bytes
        if len(formula.links):
            rates = self.link_bytes_per_second[formula.links] / formula.link_share
            amount = min(amount, (seconds - latency) * float(rates.min()))
        count = len(formula.links) if amount > 0 else 0
        return CollectiveCost(
            algorithm=Algorithm.TABLE,
            seconds=seconds,
            latency_seconds=latency,
            amount_bytes=amount,
            links=formula.links[:count],
            link_share=formula.link_share[:count],
        )


def collective_cost(
    cluster: Cluster,
    collective: Collective,
    devices: Sequence[int],
    message_bytes: float,
    algorithm: Algorithm | None = None,
) -> CollectiveCost:
    """Cost of a collective of one size, by the fastest algorithm where none is given."""
    return collective_model(cluster, collective, devices, algorithm).cost(message_bytes)


def collective_model(
    cluster: Cluster,
    collective: Collective,
    devices: Sequence[int],
    algorithm: Algorithm | None = None,
    limits: Limits | None = None,
) -> CollectiveModel:
    """The cost of a collective of any size on these devices (their numbers).

    With no algorithm given, a measured table overrides all formulas and else the fastest counts;
    with one given, only that one counts. `limits` are what its traffic between hosts may use.
    """
    chosen = _check_devices(cluster, devices)
    table = find_table(cluster, collective, chosen)
    if algorithm is Algorithm.TABLE and table is None:
        raise InputError(f"cluster {cluster.name}: no table of {collective} on {chosen} is known")
    is_formula = algorithm not in (None, Algorithm.TABLE)
    lines: tuple[CollectiveLine, ...]
    if len(chosen) == 1:
        lines = (_nothing(algorithm or Algorithm.RING),)
    else:
        blocks = arrange(cluster, collective, chosen)
        ways = find_ways(cluster, collective, blocks, algorithm if is_formula else None)
        lines = tuple(
            price_line(
                cluster,
                collective,
                len(chosen),
                way,
                collective_rounds(cluster, collective, blocks, chosen[0], *way),
                limits,
            )
            for way in ways
        )
    return CollectiveModel(
        lines=open_lines(lines, f"{collective} on {len(chosen):,} devices"),
        table=None if is_formula or len(chosen) == 1 else table,
        link_bytes_per_second=cluster.link_bytes_per_second if limits is None else limits.capacity,
    )


def open_lines(lines: Sequence[CollectiveLine], what: str) -> tuple[CollectiveLine, ...]:
    """The algorithms that limits between hosts leave a rail for, without protocols that another
    line beats for every size; that there is none is refused."""
    found = [line for line in lines if line.seconds_per_byte < np.inf]
    if any(line.protocol is not Protocol.PLAIN for line in found):
        places = find_unbeaten([(each.latency_seconds, each.seconds_per_byte) for each in found])
        found = [found[place] for place in places]
    if not found:
        raise InputError(
            f"{what}: must have one way with a rate between all hosts that send to each other, "
            f"but the limits between them have none in common"
        )
    return tuple(found)


def find_unbeaten(lines: Sequence[tuple[float, float]]) -> list[int]:
    """The places of the lines, latency and seconds a byte, that no other line is as fast as for
    every size; of lines that are the same the first."""
    return [
        place
        for place, own in enumerate(lines)
        if not any(
            other[0] <= own[0] and other[1] <= own[1] and (other != own or number < place)
            for number, other in enumerate(lines)
            if number != place
        )
    ]


def find_table(
    cluster: Cluster, collective: Collective, devices: Sequence[int]
) -> CollectiveTable | None:
    """The measured table for these devices: of just these, else of any of their type, as many and
    on as many hosts, with as many on each; None: there is none."""
    if not cluster.tables:
        return None
    types = {cluster.devices[each].type for each in devices}
    if len(types) != 1:
        return None
    counts = Counter(cluster.devices[each].host for each in devices)
    key = (str(collective), types.pop(), len(devices))
    names = frozenset(cluster.devices[each].name for each in devices)
    usual = None
    for table in cluster.tables:
        if (table.collective, table.device_type, table.num_devices) != key:
            continue
        if table.devices:
            if names.issuperset(table.devices):
                return table
        elif table.num_hosts == len(counts) and len(set(counts.values())) == 1:
            usual = usual or table
    return usual


def table_seconds(table: CollectiveTable, message_bytes: float) -> float:
    """The time a table gives for a message.

    Between two sizes the logarithm of the time is linear in the logarithm of the size. Below the
    smallest size the time stays (a latency floor); above the largest it grows at the last
    segment's bandwidth, or in proportion to the size where that segment does not rise.
    """
    sizes, seconds = table.sizes_bytes, table.seconds
    if message_bytes <= sizes[0]:
        return seconds[0]
    if message_bytes > sizes[-1]:
        slope = (seconds[-1] - seconds[-2]) / (sizes[-1] - sizes[-2])
        if slope <= 0:
            slope = seconds[-1] / sizes[-1]
        return seconds[-1] + slope * (message_bytes - sizes[-1])
    return float(np.exp(np.interp(np.log(message_bytes), np.log(sizes), np.log(seconds))))


def _check_devices(cluster: Cluster, devices: Sequence[int]) -> tuple[int, ...]:
    chosen = tuple(int(each) for each in devices)
    if not chosen:
        raise InputError("collective: must have at least one device")
    for each in chosen:
        if not 0 <= each < cluster.num_devices:
            raise InputError(
                f"collective: device must be from 0 to {cluster.num_devices - 1}, got {each}"
            )
    if len(set(chosen)) != len(chosen):
        raise InputError(f"collective: devices must be distinct, got {chosen}")
    return chosen


def _nothing(algorithm: Algorithm) -> CollectiveLine:
    """One device has nothing to do."""
    return CollectiveLine(
        algorithm=algorithm,
        latency_seconds=0.0,
        seconds_per_byte=0.0,
        amount_per_byte=0.0,
        links=np.zeros(0, dtype=np.int32),
        link_share=np.zeros(0),
    )


def price_line(
    cluster: Cluster,
    collective: Collective,
    num_devices: int,
    way: Way,
    rounds: Sequence[Round | ExchangeRound],
    limits: Limits | None = None,
) -> CollectiveLine:
    """The line of a collective on groups of so many devices whose rounds are these."""
    algorithm, wire = way
    price = price_rounds(cluster, rounds, limits, wire)
    is_copied = algorithm in (Algorithm.RING, Algorithm.DIRECT) and collective not in (
        Collective.SHIFT,
        Collective.BROADCAST,
    )
    copied = 1.0
    if wire is not None and is_copied:
        used = price.links[price.links < len(cluster.links)]
        steps = PASSES.get(collective, 1) * (num_devices - 1)
        copied += float(wire.own_part[used].min(initial=1.0)) / steps
    amount = float(price.link_loads[price.links < len(cluster.links)].max())
    share = price.link_loads / amount
    price.links.setflags(write=False)
    share.setflags(write=False)
    return CollectiveLine(
        algorithm=algorithm,
        latency_seconds=price.call_seconds + price.latency_seconds,
        seconds_per_byte=price.seconds_per_byte * copied,
        amount_per_byte=amount,
        links=price.links,
        link_share=share,
        division=price.division,
        protocol=Protocol.PLAIN if wire is None else wire.protocol,
    )
