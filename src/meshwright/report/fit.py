"""Reads latency and bandwidth off measured transfers. Decides which transfers tell anything: those
that had their route to themselves, and those that shared one link with each other and nothing with
anything else. Changes no cluster (see `meshwright.report.calibrate`)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster
from meshwright.program.program import Kind
from meshwright.report.breakdown import task_times
from meshwright.simulate.allocation import Pair, crossed_links
from meshwright.simulate.timeline import Timeline
from meshwright.units import KIB

MIN_BYTES = 64 * KIB
"""Smaller messages time the software and the buffers on the way, not the wire (of token buckets
with 64 kB of burst they get through almost free)."""
MAX_SIZES = 200
"""More different sizes than this are thinned out: their pairs are compared."""
_ALONE = 0.01
"""A transfer may share a link for this part of its time and still count as alone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredTraffic:
    """The transfers and collectives of a measured step, by task, and the links they cross."""

    start: Floats
    """Of every task: when its last member was ready."""
    finish: Floats
    sizes: Floats
    """Bytes of each transfer; NaN: no transfer."""
    pairs: Mapping[tuple[int, int], list[int]]
    """The transfers from device to device."""
    links: Mapping[int, frozenset[int]]
    """By transfer or collective the links it may cross."""
    periods: Mapping[int, list[frozenset[int]]]
    """By link the sets of tasks that kept it busy without a pause, in order."""

    @property
    def alone(self) -> frozenset[int]:
        """The tasks that had all their links to themselves."""
        found = set(self.links)
        for periods in self.periods.values():
            for period in periods:
                if len(period) > 1:
                    found -= period
        return frozenset(task for task in found if self.finish[task] > self.start[task])

    def seconds(self, tasks: list[int]) -> Floats:
        """How long each took."""
        seconds: Floats = self.finish[tasks] - self.start[tasks]
        return seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class PairLine:
    """Seconds of a transfer = latency + bytes / rate; None: the measurements do not tell."""

    latency_seconds: float | None = None
    bytes_per_second: float | None = None


def fit_line(sizes: Floats, seconds: Floats, latency: float) -> PairLine:
    """The line through transfers of one pair of devices; `latency` is what was thought before.

    Theil (1950) and Sen (1968): the median slope between transfers of different sizes, then the
    median intercept; up to 29% of outliers change nothing. Sizes within a factor of two tell noise
    rather than slopes. Where there are no others, the latency stays and the rate follows; where all
    are small, nothing is said about the rate.
    """
    slopes = _slopes(sizes, seconds)
    is_large = sizes >= MIN_BYTES
    if len(slopes) and (slope := float(np.median(slopes))) > 0:
        intercept = float(np.median(seconds - slope * sizes))
        if intercept > 0:
            return PairLine(latency_seconds=intercept, bytes_per_second=1 / slope)
        # No latency is negative: the best line through the origin.
        rate = float(np.median(sizes[is_large] / seconds[is_large]))
        return PairLine(latency_seconds=0.0, bytes_per_second=rate)
    left = seconds - latency
    usable = is_large & (left > 0)
    if not usable.any():
        return PairLine()
    return PairLine(bytes_per_second=float(np.median(sizes[usable] / left[usable])))


def _slopes(sizes: Floats, seconds: Floats) -> Floats:
    """Seconds a byte between the medians of any two sizes that lie far enough apart."""
    distinct = np.unique(sizes)
    if len(distinct) > MAX_SIZES:
        distinct = distinct[np.linspace(0, len(distinct) - 1, MAX_SIZES).astype(np.int64)]
    middle = np.array([np.median(seconds[sizes == each]) for each in distinct])
    low, high = np.triu_indices(len(distinct), 1)
    is_apart = (distinct[high] >= 2 * distinct[low]) & (distinct[high] >= MIN_BYTES)
    low, high = low[is_apart], high[is_apart]
    slopes: Floats = (middle[high] - middle[low]) / (distinct[high] - distinct[low])
    return slopes


def read_traffic(timeline: Timeline, cluster: Cluster) -> MeasuredTraffic:
    """What moved in a measured step; without transfers whose bandwidth the plan has allocated,
    except that they get in the way of others."""
    rows = timeline.program.instructions
    start, finish = task_times(timeline)
    sizes = np.full(len(timeline.cause), np.nan)
    limited = {(each.source, each.target) for each in timeline.program.allocations}
    pairs: dict[tuple[int, int], list[int]] = {}
    links = _collective_links(timeline, cluster)
    sends = rows[rows["kind"] == Kind.SEND]
    ends = list(zip(sends["device"].tolist(), sends["peer"].tolist(), strict=True))
    route = _crossed(timeline, cluster, ends)
    for row, pair in zip(sends, ends, strict=True):
        task = int(row["task"])
        links[task] = route[pair]
        if (cluster.devices[pair[0]].host, cluster.devices[pair[1]].host) not in limited:
            pairs.setdefault(pair, []).append(task)
            sizes[task] = row["bytes"]
    periods = _busy_periods(links, start.tolist(), finish.tolist())
    return MeasuredTraffic(
        start=start, finish=finish, sizes=sizes, pairs=pairs, links=links, periods=periods
    )


def _crossed(
    timeline: Timeline, cluster: Cluster, pairs: Sequence[Pair]
) -> dict[Pair, frozenset[int]]:
    """The links between these devices; of all ways, where an allocation is divided over some."""
    allocations, distinct = timeline.program.allocations, list(dict.fromkeys(pairs))
    found = crossed_links(cluster, allocations, distinct)
    return {pair: frozenset(links) for pair, links in found.items()}


def _collective_links(timeline: Timeline, cluster: Cluster) -> dict[int, frozenset[int]]:
    """By collective any link between two of its devices: which ones, its algorithm decides."""
    rows, groups = timeline.program.instructions, timeline.program.groups
    of_group: dict[int, frozenset[int]] = {}
    for group in np.unique(rows["group"][rows["group"] >= 0]).tolist():
        pairs = [(one, other) for one in groups[group] for other in groups[group] if one != other]
        of_group[group] = frozenset().union(*_crossed(timeline, cluster, pairs).values())
    members = rows[rows["group"] >= 0]
    return {int(row["task"]): of_group[int(row["group"])] for row in members}


def _busy_periods(
    links: Mapping[int, frozenset[int]], start: list[float], finish: list[float]
) -> dict[int, list[frozenset[int]]]:
    """What follows with hardly any overlap begins a new period."""
    on_link: dict[int, list[int]] = {}
    for task in sorted(links, key=lambda task: start[task]):
        for link in links[task]:
            if finish[task] > start[task]:
                on_link.setdefault(link, []).append(task)
    found = {}
    for link, tasks in on_link.items():
        periods: list[list[int]] = []
        until, shortest = 0.0, 0.0
        for task in tasks:
            length = finish[task] - start[task]
            if not periods or start[task] >= until - _ALONE * min(length, shortest):
                periods.append([])
                shortest = length
            periods[-1].append(task)
            until, shortest = max(until, finish[task]), min(length, shortest)
        found[link] = [frozenset(each) for each in periods]
    return found


def fit_pairs(traffic: MeasuredTraffic, cluster: Cluster) -> dict[tuple[int, int], PairLine]:
    """The lines of all pairs of devices with transfers that were alone."""
    alone = traffic.alone
    lines = {}
    for pair, tasks in traffic.pairs.items():
        chosen = [task for task in tasks if task in alone]
        if chosen:
            seconds = traffic.seconds(chosen)
            lines[pair] = fit_line(traffic.sizes[chosen], seconds, float(cluster.latency[pair]))
    return lines


def fit_shared(traffic: MeasuredTraffic, cluster: Cluster) -> dict[int, float]:
    """Rates of links that several transfers shared who met nobody else on their way: the bytes of
    each such period over its time, the median."""
    found: dict[int, list[float]] = {}
    latency = {
        task: float(cluster.latency[pair])
        for pair, tasks in traffic.pairs.items()
        for task in tasks
    }
    period_of: dict[tuple[int, int], frozenset[int]] = {
        (link, task): period
        for link, periods in traffic.periods.items()
        for period in periods
        for task in period
    }
    for link, periods in traffic.periods.items():
        for period in periods:
            met = (period_of[other, task] for task in period for other in traffic.links[task])
            members = list(period)
            size = float(traffic.sizes[members].sum())  # NaN where anything else is among them
            if len(members) < 2 or not size >= MIN_BYTES or not all(each <= period for each in met):
                continue
            first = min(members, key=lambda task: traffic.start[task])
            span = float(traffic.finish[members].max() - traffic.start[first]) - latency[first]
            if span > 0:
                found.setdefault(link, []).append(size / span)
    return {link: float(np.median(rates)) for link, rates in found.items()}
