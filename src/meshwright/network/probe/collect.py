"""Measures a whole cluster: between hosts, inside hosts, and collectives by size and group."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Protocol

import numpy as np

from meshwright.cluster.part import CollectiveTable
from meshwright.network.probe.probe import Findings, Meter, Pair, probe

COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")
LEAST_BYTES, STEP = 1024, 8
"""Sizes of collectives begin here, each so many times the one before."""
MOST_SECONDS = 1.0
"""A collective that takes longer is not measured at larger sizes: the last rate holds on."""


class RankMeter(Protocol):
    """Measures what flows, small messages and collectives between ranks take."""

    def rates(self, pairs: Sequence[Pair]) -> list[float]:
        """Bytes a second of flows at once, as `Meter` has them."""
        ...

    def latencies(self, pairs: Sequence[Pair]) -> list[float]:
        """Seconds of small messages, as `Meter` has them."""
        ...

    def collective_seconds(self, collective: str, ranks: Sequence[int], size: int) -> float:
        """The time of a collective of a size on some ranks."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Inside:
    """What two devices of a host reach of each other, the slowest pair."""

    bytes_per_second: float
    latency_seconds: float


@dataclass(slots=True, kw_only=True)
class Measured:
    """All that was measured, as far as it came."""

    between: Findings | None = None
    """None: there is one host."""
    inside: dict[int, Inside] = field(default_factory=dict)
    """By the number of the host; none for hosts of one device."""
    tables: list[CollectiveTable] = field(default_factory=list)
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class _HostMeter:
    """Hosts are measured by their first ranks."""

    meter: RankMeter
    first: Sequence[int]

    def rates(self, flows: Sequence[Pair]) -> list[float]:
        return self.meter.rates([(self.first[one], self.first[other]) for one, other in flows])

    def latencies(self, pairs: Sequence[Pair]) -> list[float]:
        return self.meter.latencies([(self.first[one], self.first[other]) for one, other in pairs])


def collect(
    meter: RankMeter,
    ranks_of_host: Sequence[Sequence[int]],
    *,
    device_types: Sequence[str],
    names: Sequence[str],
    most_bytes: int,
    tell: Callable[[str], None],
) -> Measured:
    """Measure everything; `names` and `device_types` are those of ranks. Ctrl-C ends it with what
    has been measured."""
    found = Measured()
    try:
        if len(ranks_of_host) > 1:
            hosts: Meter = _HostMeter(meter, [ranks[0] for ranks in ranks_of_host])
            found.between = probe(hosts, len(ranks_of_host), tell=tell)
        _look_inside(meter, ranks_of_host, found.inside, tell)
        for ranks in find_groups(ranks_of_host, device_types):
            for collective in COLLECTIVES if most_bytes else ():
                tell(f"{collective} of {len(ranks):,} ranks")
                points: dict[float, float] = {}
                try:
                    _time_sizes(meter, collective, ranks, most_bytes, points)
                finally:
                    if len(points) > 1:
                        table = _make_table(
                            collective, ranks, points, ranks_of_host, device_types, names
                        )
                        found.tables.append(table)
        found.is_whole = found.between is None or found.between.is_whole
    except KeyboardInterrupt:
        if found.between is None and not found.inside:
            raise
        tell("interrupted: writing what was measured")
    return found


def _look_inside(
    meter: RankMeter,
    ranks_of_host: Sequence[Sequence[int]],
    inside: dict[int, Inside],
    tell: Callable[[str], None],
) -> None:
    """Pairs of devices of each host, one pair at a time, on all hosts at once."""
    pairs_of = [list(combinations(ranks, 2)) for ranks in ranks_of_host]
    for turn in range(max(map(len, pairs_of), default=0)):
        tell(f"inside of hosts: pair {turn + 1:,}")
        hosts = [host for host, pairs in enumerate(pairs_of) if turn < len(pairs)]
        pairs = [pairs_of[host][turn] for host in hosts]
        found = zip(hosts, meter.rates(pairs), meter.latencies(pairs), strict=True)
        for host, rate, seconds in found:
            old = inside.get(host, Inside(bytes_per_second=np.inf, latency_seconds=0.0))
            inside[host] = Inside(
                bytes_per_second=min(old.bytes_per_second, rate),
                latency_seconds=max(old.latency_seconds, seconds),
            )


def find_groups(
    ranks_of_host: Sequence[Sequence[int]], device_types: Sequence[str]
) -> list[tuple[int, ...]]:
    """Groups whose collectives are measured: each host's, one rank of each host, and all; only
    groups of one type of device have tables."""
    groups = [tuple(ranks) for ranks in ranks_of_host]
    groups.append(tuple(ranks[0] for ranks in ranks_of_host))
    groups.append(tuple(rank for ranks in ranks_of_host for rank in ranks))
    return [
        group
        for group in dict.fromkeys(groups)
        if len(group) > 1 and len({device_types[rank] for rank in group}) == 1
    ]


def _time_sizes(
    meter: RankMeter,
    collective: str,
    ranks: tuple[int, ...],
    most_bytes: int,
    points: dict[float, float],
) -> None:
    size, seconds = LEAST_BYTES, 0.0
    while size <= most_bytes and seconds < MOST_SECONDS:
        # What is sent is whole numbers for each rank.
        length = 4 * len(ranks) * max(1, round(size / 4 / len(ranks)))
        seconds = meter.collective_seconds(collective, ranks, length)
        points[float(length)] = max(seconds, 1e-9)
        size *= STEP


def _make_table(
    collective: str,
    ranks: tuple[int, ...],
    points: Mapping[float, float],
    ranks_of_host: Sequence[Sequence[int]],
    device_types: Sequence[str],
    names: Sequence[str],
) -> CollectiveTable:
    sizes = sorted(points)
    return CollectiveTable(
        collective=collective,
        device_type=device_types[ranks[0]],
        num_devices=len(ranks),
        num_hosts=sum(bool(set(host) & set(ranks)) for host in ranks_of_host),
        devices=tuple(names[rank] for rank in ranks),
        sizes_bytes=tuple(sizes),
        seconds=tuple(points[size] for size in sizes),
    )
