"""What a candidate takes, by sums over its stages: a bound that holds, and a guess.

Of stage s with forward and backward times F and B a microbatch, M microbatches, and what goes
before and after it on the longest way through the stages, a step takes at least
    before(s) + M (F(s) + B(s)) + after(s) + updates(s).
No link moves its bytes in less time than they take either. The guess adds the transfers that
nothing hides and the all-reduce of gradients. The bound is used
to leave candidates out, the guess to try them in a good order; the simulator decides.

Replicas exchange the rows that they have in common; all pairs of two stages send at the same time,
so that pairs whose routes share a link share its bandwidth.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Ints, sum_by
from meshwright.cluster.cluster import Cluster
from meshwright.cost.memory import usable_bytes
from meshwright.kernel.row import sum_values
from meshwright.plan.plan import ScheduleKind
from meshwright.search.judge import MEMORY_TOLERANCE
from meshwright.search.method.pipeline.candidate import Candidate
from meshwright.search.method.pipeline.microbatch_price import Prices, StageTeam

Home = tuple[int, ...]

_TINY = 1e-300
"""Seconds: a transfer that takes no time still is one."""

_HIDDEN = 0.8
"""Of an all-reduce, and of the backward pass beside it, what overlaps at most."""
_STALL = 0.5
"""Of a stage's transfers what 1F1B waits for: with k microbatches in flight between two stages a
round trip of computing and both transfers passes k times in the time of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What is known of a candidate's step before it is simulated."""

    bound_seconds: float
    guess_seconds: float
    largest_seconds: float
    """The slowest stage's time a microbatch: compute, transfers, its part of what comes once."""
    missing_bytes: float
    """What devices lack at least, all together."""

    @property
    def rank(self) -> tuple[float, float]:
        """Smaller is more promising: what may fit first, then what is guessed to be faster."""
        return self.missing_bytes, self.guess_seconds


class Estimator:
    """Estimates candidates of one graph on one cluster."""

    def __init__(self, prices: Prices, sharing: str) -> None:
        self._prices = prices
        self._cluster = prices.instance.cluster
        self._usable = usable_bytes(prices.instance.graph, self._cluster)
        self._sums: dict[tuple[bytes, StageTeam, int], Floats] = {}
        self._traffic = Traffic(self._cluster, sharing)

    def estimate(self, candidate: Candidate) -> Estimate:
        """Sums, and the longest way through the stages."""
        (forward, backward, update), fastest = self._stage_seconds(candidate)
        count = candidate.cut.num_stages
        busy_links = np.zeros(self._traffic.num_links)
        there, back = (self._delays(candidate, table, busy_links) for table in candidate.cut.wires)
        # A way through slow replicas only may not exist.
        before = _longest_ways(fastest[0], there, transfers=0.0)
        # What backward reads of forward, another stage's backward need not have ended for.
        after = _longest_ways(fastest[1], (back * candidate.cut.returns).T, transfers=0.0)
        if candidate.kind is ScheduleKind.ZERO_BUBBLE:
            after = np.zeros(count)  # weight gradients hold up nobody
        microbatches = candidate.microbatches
        busy = forward + backward
        own = _home_sums(candidate, busy)
        bound = before + microbatches * busy + after
        shared = microbatches * own + update
        moving = there.sum(axis=0) + there.sum(axis=1) + back.sum(axis=0) + back.sum(axis=1)
        sync = self._sync_seconds(candidate)
        # Gradients are summed while the last microbatch still runs backward.
        sync = np.maximum(sync - _HIDDEN * backward, (1 - _HIDDEN) * sync)
        if candidate.kind is ScheduleKind.GPIPE:
            passes = (
                _pass_seconds(candidate, forward, there),
                _pass_seconds(candidate, backward, back.T),
            )
            guess = sum(passes) + sync + update
        else:
            late_before = _longest_ways(forward, there)
            late_after = _longest_ways(backward, back.T)
            if candidate.kind is ScheduleKind.ZERO_BUBBLE:
                late_after = late_after / 2
            steady = microbatches * own + (microbatches - 1) * _STALL * moving
            guess = late_before + steady + np.maximum(late_after, sync) + update
        busiest = float(busy_links.max(initial=0.0))
        return Estimate(
            bound_seconds=max(float(np.maximum(bound, shared).max()), busiest),
            guess_seconds=max(float(guess.max()), busiest),
            largest_seconds=float((own + moving + (sync + update) / microbatches).max()),
            missing_bytes=self._missing_bytes(candidate),
        )

    def _missing_bytes(self, candidate: Candidate) -> float:
        """State, and what is saved for the microbatches in flight, beyond what devices hold."""
        cut, microbatches = candidate.cut, candidate.microbatches
        graph = self._prices.instance.graph
        state = sum_by(cut.stage_of_op, graph.state_bytes, cut.num_stages)
        saved = sum_by(cut.stage_of_op, self._prices.saved_bytes, cut.num_stages)
        held = np.zeros(self._cluster.num_devices)
        for stage, home in enumerate(candidate.homes):
            flights = 1.0 if cut.num_stages > len(set(candidate.homes)) else cut.num_stages - stage
            if candidate.kind is ScheduleKind.GPIPE or graph.is_inference:
                flights = microbatches
            part = min(flights, microbatches) / microbatches / len(home)
            held[list(home)] += state[stage] + part * saved[stage]
        return float(np.maximum(held - self._usable * (1 + MEMORY_TOLERANCE), 0.0).sum())

    def _stage_seconds(self, candidate: Candidate) -> tuple[Floats, Floats]:
        """Of each stage (column) forward and backward of a microbatch, and updates.

        On the grade of its devices that takes longest for all that they run, and on the fastest.
        """
        grade_of = self._prices.grade_of
        slowest, fastest = np.zeros((2, 3, candidate.cut.num_stages))
        for home in dict.fromkeys(candidate.homes):
            grades = sorted({int(grade_of[device]) for device in home})
            own = [stage for stage, each in enumerate(candidate.homes) if each == home]
            teams = [StageTeam(grade=each, replicas=len(home)) for each in grades]
            sums = [self._team_sums(candidate, team)[:, own] for team in teams]
            weight = np.array([candidate.microbatches, candidate.microbatches, 1])
            slowest[:, own] = max(sums, key=lambda each: float((weight @ each).sum()))
            fastest[:, own] = np.minimum.reduce(sums)
        return slowest, fastest

    def _team_sums(self, candidate: Candidate, team: StageTeam) -> Floats:
        key = candidate.cut.key, team, candidate.microbatches
        if key not in self._sums:
            prices, cut = self._prices, candidate.cut
            seconds = prices.op_seconds(team, candidate.microbatches)
            phases = (prices.forward, prices.backward, prices.update)
            self._sums[key] = np.stack(
                [sum_by(cut.stage_of_op[each], seconds[each], cut.num_stages) for each in phases]
            )
        return self._sums[key]

    def _delays(self, candidate: Candidate, table: Floats, busy: Floats) -> Floats:
        """Stage x stage: seconds that a microbatch's tensors travel; `busy` grows by link."""
        delays = np.zeros_like(table)
        rows, columns = np.nonzero(table)
        for one, other in zip(rows.tolist(), columns.tolist(), strict=True):
            flow = self._traffic.flow(candidate.homes[one], candidate.homes[other])
            size = table[one, other]
            moving = size / candidate.microbatches * flow.seconds_per_byte
            delays[one, other] = max(flow.latency_seconds + moving, _TINY)
            busy[flow.links] += size * flow.seconds
        return delays

    def _sync_seconds(self, candidate: Candidate) -> Floats:
        """Of each stage a ring all-reduce of its gradients."""
        graph, cut = self._prices.instance.graph, candidate.cut
        size = sum_by(cut.stage_of_op, graph.parameter_bytes, cut.num_stages)
        rates = [self._traffic.ring_seconds_per_byte(home) for home in candidate.homes]
        seconds: Floats = size * np.array(rates)
        return seconds


def _home_sums(candidate: Candidate, seconds: Floats) -> Floats:
    """Of each stage the sum over all stages that its devices hold."""
    total = sum_values(zip(candidate.homes, seconds.tolist(), strict=True))
    return np.array([total[home] for home in candidate.homes])


def _pass_seconds(candidate: Candidate, seconds: Floats, delays: Floats) -> float:
    """All microbatches through all stages one way: the first one's way, then the slowest device's
    or transfer's time for every other."""
    first = float((_longest_ways(seconds, delays) + seconds).max())
    slowest = max(float(_home_sums(candidate, seconds).max()), float(delays.max()))
    return first + (candidate.microbatches - 1) * slowest


def _longest_ways(seconds: Floats, delays: Floats, transfers: float = 1.0) -> Floats:
    """Of each stage what earlier stages take on the longest way to it, or, backwards, from it.

    `transfers`: how much of each counts.
    """
    ways = np.zeros(len(seconds))
    for stage in range(1, len(seconds)):
        linked = np.flatnonzero(delays[:stage, stage])
        if len(linked):
            passed = ways[linked] + seconds[linked] + transfers * delays[linked, stage]
            ways[stage] = passed.max()
    return ways


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Flow:
    """One byte of the batch from the replicas of a stage to those of another."""

    latency_seconds: float
    seconds_per_byte: float
    """Of the slowest pair, with all pairs at once."""
    links: Ints
    seconds: Floats
    """That each of these links is busy."""


class Traffic:
    """Flows between homes of one cluster, each worked out once."""

    def __init__(self, cluster: Cluster, sharing: str) -> None:
        self._cluster = cluster
        self._shares = sharing == "fair"
        self._flows: dict[tuple[Home, Home], Flow] = {}
        self._rings: dict[Home, float] = {}

    @property
    def num_links(self) -> int:
        """How many links the cluster has."""
        return len(self._cluster.links)

    def flow(self, one: Home, other: Home) -> Flow:
        """From one home to another; what stays on a device takes no time."""
        if (one, other) not in self._flows:
            self._flows[one, other] = self._find_flow(_overlaps(one, other))
        return self._flows[one, other]

    def _find_flow(self, pairs: list[tuple[int, int, float]]) -> Flow:
        cluster = self._cluster
        busy: dict[int, float] = {}
        latency = slowest = 0.0
        for source, target, share in pairs:
            if source == target:
                continue
            latency = max(latency, float(cluster.latency[source, target]))
            slowest = max(slowest, share / float(cluster.bandwidth[source, target]))
            if self._shares:
                for link in cluster.routing.links(source, target).tolist():
                    busy[link] = busy.get(link, 0.0) + share
        links = np.array(sorted(busy), dtype=np.int32)
        seconds = np.array([busy[link] for link in sorted(busy)])
        seconds = seconds / cluster.link_bytes_per_second[links] if len(links) else seconds
        return Flow(
            latency_seconds=latency,
            seconds_per_byte=max(slowest, float(seconds.max(initial=0.0))),
            links=links,
            seconds=seconds,
        )

    def ring_seconds_per_byte(self, home: Home) -> float:
        """Of a ring all-reduce: 2 (R - 1) / R of the bytes over every link of the ring.

        In the order of the devices' numbers, in which those of a host stand together.
        """
        if home not in self._rings:
            count, ring = len(home), sorted(home)
            after = [*ring[1:], ring[0]]
            hops = [(u, v, 1.0) for u, v in zip(ring, after, strict=True)] if count > 1 else []
            share = 2 * (count - 1) / count
            self._rings[home] = share * self._find_flow(hops).seconds_per_byte
        return self._rings[home]


def _overlaps(one: Home, other: Home) -> list[tuple[int, int, float]]:
    """Pairs of devices with rows in common, and which part of the batch these are."""
    first, second = len(one), len(other)
    found = []
    for i in range(first):
        for j in range(i * second // first, -(-(i + 1) * second // first)):
            low, high = max(i * second, j * first), min((i + 1) * second, (j + 1) * first)
            found.append((one[i], other[j], (high - low) / (first * second)))
    return found
