"""Fixes every order of a simulated program: what waits for what then, whatever the rates are.

Devices run their ops in the order of the simulation, transfers of one pair of devices queue as they
did there. Knows what the simulator did, not how rates are chosen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush

import numpy as np

from meshwright.array import Floats, Longs, Records, count_up, places_in
from meshwright.kernel.row import follow_lines
from meshwright.search.method.bandwidth.rate.precedence import ARC, Precedence, make_precedence
from meshwright.search.method.bandwidth.rate.traffic import Kinship, TrafficRound
from meshwright.simulate.tasks import EngineInput

Edges = tuple[Longs, Longs]
"""Tasks, and the tasks that wait for them."""
Loads = list[tuple[int, float]]
"""Pairs of a precedence, and the bytes between them for each byte of a message."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Ordered:
    """A program whose orders are fixed."""

    precedence: Precedence
    shares: tuple[dict[int, float], ...]
    """Of each pair of the precedence: which pairs of hosts (numbers) its traffic is between, and
    how many times its rate each has."""

    def sums(self, rates: Floats, num_pairs: int) -> Floats:
        """By pair of hosts, from the rates by pair of the precedence."""
        total = np.zeros(num_pairs)
        for own, rate in zip(self.shares, rates.tolist(), strict=True):
            for pair, share in own.items():
                total[pair] += share * rate
        return total


def fix_order(
    engine: EngineInput, traffic: Sequence[Kinship], *, sharing: str, is_apart: bool, bundles: bool
) -> Ordered:
    """What waits for what in the order in which an engine has run its tasks.

    `is_apart`: whoever sends between two hosts has a part of their rate of its own; else each has
    all of it, which no sharing can beat. `bundles`: whether pairs that a collective uses and
    nothing else does are one pair.
    """
    tasks = engine.tasks[:-1]
    source = np.repeat(np.arange(len(tasks)), np.diff(engine.tasks["first_next"]))
    plain = source.astype(np.int64), engine.following[: len(source)].astype(np.int64)
    turn = _turns(tasks, plain)
    queued = _chains(_queues(traffic if sharing == "fair" else (), len(tasks)), turn)
    streams = _chains(tasks["stream"].astype(np.int64), turn)
    waits = np.concatenate((plain[0], streams[0])), np.concatenate((plain[1], streams[1]))
    shares, variables = _number(traffic, is_apart, bundles)
    # A task has a node for its end; a collective one more for the start of each round.
    extra = np.zeros(len(tasks), dtype=np.int64)
    for each in traffic:
        extra[each.tasks] = 0 if each.queues else len(each.phases)
    order = np.argsort(turn)
    end = np.empty(len(tasks), dtype=np.int64)
    end[order] = np.cumsum(extra[order] + 1)
    arcs = _Arcs(end, extra, waits, queued)
    arcs.add_plain(tasks["seconds"], traffic)
    for each, loads in zip(traffic, variables, strict=True):
        arcs.add_traffic(each, loads)
    return Ordered(
        precedence=make_precedence(int(end.max(initial=0)) + 1, len(shares), arcs.gathered()),
        shares=shares,
    )


def _turns(tasks: Records, edges: Edges) -> Longs:
    """The place of each task in one order of all: by start, then finish; what takes no time, and
    starts when what it waits for does, after that."""
    level = np.zeros(len(tasks), dtype=np.int64)
    source, target = edges
    is_tied = (tasks["start"][source] == tasks["start"][target]) & (
        tasks["finish"][source] == tasks["finish"][target]
    )
    source, target = source[is_tied], target[is_tied]
    while len(source):
        late = level[source] >= level[target]
        if not late.any():
            break
        np.maximum.at(level, target[late], level[source[late]] + 1)
    order = np.lexsort((level, tasks["finish"], tasks["start"]))
    turn = places_in(order, len(tasks), np.int64)
    if (turn[edges[0]] > turn[edges[1]]).any():
        # Moments that are one to the simulator may differ in the last bits.
        turn[_sorted(turn, edges)] = np.arange(len(tasks))
    return turn


def _sorted(turn: Longs, edges: Edges) -> list[int]:
    """Tasks after all that they wait for, else by turn."""
    following: dict[int, list[int]] = {}
    for source, target in zip(edges[0].tolist(), edges[1].tolist(), strict=True):
        following.setdefault(source, []).append(target)
    waits = np.bincount(edges[1], minlength=len(turn)).tolist()
    ready = [(int(turn[task]), task) for task, count in enumerate(waits) if count == 0]
    heapify(ready)
    order = []
    while ready:
        _, task = heappop(ready)
        order.append(task)
        for after in following.get(task, ()):
            waits[after] -= 1
            if waits[after] == 0:
                heappush(ready, (int(turn[after]), after))
    return order


def _queues(traffic: Sequence[Kinship], num_tasks: int) -> Longs:
    """By task the queue that it is in; -1: none."""
    queue = np.full(num_tasks, -1, dtype=np.int64)
    for number, each in enumerate(traffic):
        if each.queues:
            queue[each.tasks[each.message_bytes > 0]] = number
    return queue


def _chains(line: Longs, turn: Longs) -> Edges:
    """Of tasks in one line each to the next; line -1 is none."""
    members = np.flatnonzero(line >= 0)
    first, second = follow_lines(line[members], turn[members])
    return members[first], members[second]


def _number(
    traffic: Sequence[Kinship], is_apart: bool, bundles: bool
) -> tuple[tuple[dict[int, float], ...], list[list[Loads]]]:
    """What the pairs of the precedence stand for, and by kinship and round what it puts on which.

    Pairs of hosts that every round uses together, in one proportion, have their rates in that
    proportion, and are one: of the ways through a ring, all equally long, one is left.
    """
    uses: dict[tuple[int, int], set[tuple[tuple[int, float], ...]]] = {}
    for each in traffic:
        user = each.user if is_apart else -1
        for phase in each.phases:
            for pair in phase.pairs.tolist():
                uses.setdefault((user, pair), set()).add(_proportion(phase))
    numbers: dict[tuple[int, tuple[tuple[int, float], ...]], int] = {}
    variables = []
    for each in traffic:
        user = each.user if is_apart else -1
        of_phases: list[Loads] = []
        for phase in each.phases:
            whole = _proportion(phase)
            is_one = bundles and all(len(uses[user, pair]) == 1 for pair, _ in whole)
            parts = [whole] if is_one and whole else [((pair, 1.0),) for pair, _ in whole]
            amounts = [float(phase.amounts.max())] if is_one and whole else phase.amounts.tolist()
            own = [numbers.setdefault((user, part), len(numbers)) for part in parts]
            of_phases.append(list(zip(own, amounts, strict=True)))
        variables.append(of_phases)
    return tuple(dict(part) for _, part in numbers), variables


def _proportion(phase: TrafficRound) -> tuple[tuple[int, float], ...]:
    """Pairs of hosts and their parts of the largest amount, which may differ in the last bits."""
    if not len(phase.pairs):
        return ()
    parts = np.round(phase.amounts / phase.amounts.max(), 12)
    return tuple(zip(phase.pairs.tolist(), parts.tolist(), strict=True))


class _Arcs:
    """Gathers arcs, by the nodes of tasks."""

    def __init__(self, end: Longs, extra: Longs, waits: Edges, queued: Edges) -> None:
        self._end, self._begin = end, end - extra
        order = np.argsort(waits[1], kind="stable")
        self._sources = end[waits[0][order]]
        self._first = np.searchsorted(waits[1][order], np.arange(len(end) + 1))
        self._before = np.full(len(end), -1, dtype=np.int64)
        self._before[queued[1]] = end[queued[0]]
        self._found: list[Records] = [np.zeros(0, ARC)]

    def gathered(self) -> Records:
        return np.concatenate(self._found)

    def _add(
        self, source: Longs, target: Longs, fixed: Floats | float, pair: int = -1,
        amount: Floats | float = 0.0, least: Floats | float = 0.0,
    ) -> None:  # fmt: skip
        arcs = np.zeros(len(source), ARC)
        arcs["source"], arcs["target"], arcs["pair"] = source, target, pair
        arcs["fixed"], arcs["amount"], arcs["least"] = fixed, amount, least
        self._found.append(arcs)

    def _entries(self, tasks: Longs) -> tuple[Longs, Longs]:
        """The nodes that tasks wait for, and for which of them; the start of the step for those
        that wait for nothing."""
        count = self._first[tasks + 1] - self._first[tasks]
        member = np.repeat(np.arange(len(tasks)), count)
        source = self._sources[count_up(count) + self._first[tasks][member]]
        alone = np.flatnonzero(count == 0)
        return (
            np.concatenate((source, np.zeros(len(alone), np.int64))),
            np.concatenate((member, alone)),
        )

    def add_plain(self, seconds: Floats, traffic: Sequence[Kinship]) -> None:
        """The tasks that communicate nothing."""
        is_plain = np.ones(len(seconds), dtype=np.bool_)
        for each in traffic:
            is_plain[each.tasks] = False
        tasks = np.flatnonzero(is_plain)
        source, member = self._entries(tasks)
        self._add(source, self._end[tasks[member]], seconds[tasks[member]])

    def add_traffic(self, each: Kinship, loads: Sequence[Loads]) -> None:
        """Transfers of one queue, or collectives of one kind."""
        source, member = self._entries(each.tasks)
        latency = each.latency_seconds[member]
        if each.queues:
            end, phase = self._end[each.tasks], each.phases[0]
            self._add_phase(source, end[member], latency, each, member, phase, loads[0])
            before = self._before[each.tasks]
            after = np.flatnonzero(before >= 0)
            self._add_phase(before[after], end[after], 0.0, each, after, phase, loads[0])
            return
        begin, everyone = self._begin[each.tasks], np.arange(len(each.tasks))
        self._add(source, begin[member], latency)
        for k, phase in enumerate(each.phases):
            self._add_phase(begin + k, begin + k + 1, 0.0, each, everyone, phase, loads[k])

    def _add_phase(
        self, source: Longs, target: Longs, fixed: Floats | float, each: Kinship,
        member: Longs, phase: TrafficRound, loads: Loads,
    ) -> None:  # fmt: skip
        """A round: as many arcs side by side as there are pairs of hosts."""
        size = each.message_bytes[member]
        least = size * phase.least_seconds
        if not loads:
            self._add(source, target, fixed + least)
        for pair, amount in loads:
            self._add(source, target, fixed, pair, size * amount, least)
