"""A lower bound on the time of a placement: exact optima of small windows around the longest path.

Let v and w be ops of one path. Whatever is both after v and before w runs between the end of v and
the start of w, so the least time that these few ops need by themselves, on as many devices and with
the fastest transfers there are, is time that every placement takes there. On the longest path
windows that follow each other add up. A path alone counts only the longest branch between a fork
and its join; a window knows that the other branches need either the same device or transfers both
ways. What must share a device also runs there one by one.

Windows are solved one by one, so that forward may keep two layers on one device while backward has
them on two. For small steps, pairs of units are therefore decided for the whole step: either both
are on one device, whose load they add to, or all that they exchange is moved. The least bound of
all branches holds. Best first, so that every branch taken raises the bound, until the work is used
up or nothing on the longest path is left to decide.

Holds for all placements of whole ops: devices are as fast as the fastest of each op, every pair as
near as the nearest, nothing else runs, and memory has no limit. Only the ops of one co-location
group must share a device.
"""

import heapq
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.compiled import Array, compiled
from meshwright.search.bound.window_solve import (
    MOST_OPS,
    SIZE,
    WindowScan,
    WindowShape,
    collect_after,
    collect_between,
    fill_window,
    least_seconds,
)
from meshwright.search.instance import Instance

_WORK = 150_000
"""The ops that all bounds together may look at: what a second is enough for."""
_LEAST_BOUNDS = 400
"""Steps too large for so many bounds are not branched on."""
_PAIRS = 3
"""Pairs that are tried at each branch; the one that raises the lesser of its two bounds most stays.
"""

ROUNDING = 1.0 - 1e-10
"""Sums in another order than the simulator's may differ in the last bits; bounds stay below."""
_MOST_SEEN = 256
"""Ops looked at for a window; a longer search back is given up."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decisions:
    """Which units must share a device, and which must not: what a bound may take for granted."""

    label: Ints
    """The label of each unit; units of one label share a device."""
    apart: Ints
    """Pairs of labels that do not share a device, one a row."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bounded:
    """A bound and the path that it stands around."""

    seconds: float
    path: Ints


def window_bound(instance: Instance) -> float:
    """No placement is faster."""
    return ROUNDING * WindowBounder(instance).bound(undecided(instance)).seconds


def undecided(instance: Instance) -> Decisions:
    """Every unit for itself."""
    label = np.arange(instance.num_units, dtype=np.int32)
    return Decisions(label=label, apart=np.zeros((0, 2), np.int32))


class WindowBounder:
    """The arrays of the kernels, and the optima of windows that were solved before."""

    def __init__(self, instance: Instance) -> None:
        num_ops = instance.num_ops
        self.instance = instance
        self.seconds = instance.seconds.min(axis=1)
        self.transfer = _least_transfer(instance)
        """The seconds of each edge into an op, between the nearest two devices."""
        self._joins = np.append(np.diff(instance.in_start) > 1, True)
        self._forks = np.append(np.diff(instance.out_start) > 1, True)
        self._scan = WindowScan(
            instance.in_start, instance.in_edges, self.seconds, self.transfer,
            np.zeros(num_ops + 1, np.int64), np.zeros(_MOST_SEEN, np.int32),
            np.zeros(MOST_OPS, np.int32),
        )  # fmt: skip
        self._window = WindowShape(
            np.zeros(SIZE), np.zeros(SIZE, np.int32), np.zeros((SIZE, SIZE)),
            np.zeros((SIZE, SIZE), np.bool_),
        )  # fmt: skip
        self._solved: dict[bytes, float] = {}
        self._number = 0

    def bound(self, decisions: Decisions) -> Bounded:
        """The largest sum of windows along the longest path, each from some op of it to a later."""
        unit_of = decisions.label[self.instance.unit_of]
        lag = self._compulsory(unit_of, decisions.apart)
        path, head = _longest_path(self.instance, self.seconds, lag)
        load = self._load(unit_of, head, lag)
        ends = [-1, *path.tolist(), self.instance.num_ops]
        done = [0.0]  # the earliest that each of `ends` has finished
        for j in range(1, len(ends)):
            ready = done[j - 1]
            if len(decisions.apart) and 1 < j <= len(path):
                first, end = self.instance.in_start[ends[j]], self.instance.in_start[ends[j] + 1]
                edges = self.instance.in_edges[first:end]
                reads = (edges["op"] == ends[j - 1]) & (edges["bytes"] >= 0)
                ready += float(lag[first:end][reads].max(initial=0.0))
            if self._joins[ends[j]]:
                ready = self._best_window(ends, done, j, ready, unit_of, decisions.apart)
            done.append(ready + (float(self.seconds[ends[j]]) if j <= len(path) else 0.0))
        return Bounded(seconds=max(load, done[-1]), path=path)

    def _load(self, unit_of: Ints, head: Floats, lag: Floats) -> float:
        """What the ops of one label need on one device: all from some head on, one by one.

        Of the ops that start at a time or later: this time, their sum, and the least way after one.
        """
        instance = self.instance
        tail = np.zeros(instance.num_ops)
        _fill_tails(instance.in_start, instance.in_edges, self.seconds, lag, tail)
        order = np.lexsort((-head, unit_of))
        first = np.flatnonzero(np.append(True, np.diff(unit_of[order]) != 0))
        return _one_device(order, np.append(first, len(order)), head, self.seconds, tail)

    def _best_window(
        self, ends: list[int], done: list[float], j: int, ready: float, unit_of: Ints, apart: Ints
    ) -> float:
        for i in range(j - 1, -1, -1):
            if i > 0 and not self._forks[ends[i]]:
                continue
            count = self._collect(ends[i], ends[j])
            if count < 0:
                break
            ready = max(ready, done[i] + self._solve(count, ends[i], ends[j], unit_of, apart))
        return ready

    def _compulsory(self, unit_of: Ints, apart: Ints) -> Floats:
        """The transfer time of each edge into an op where its ends must be apart, else zero."""
        instance = self.instance
        lag = np.zeros(len(self.transfer))
        if len(apart):
            target = unit_of[np.repeat(np.arange(instance.num_ops), np.diff(instance.in_start))]
            source = unit_of[instance.in_edges["op"]]
            for one, other in apart.tolist():
                is_cut = (source == one) & (target == other) | (source == other) & (target == one)
                lag[is_cut] = self.transfer[is_cut]
        return lag

    def _collect(self, first: int, last: int) -> int:
        """How many ops are between two, which become the members; -1: too many."""
        self._number += 1
        if last == self.instance.num_ops:
            return collect_after(self._scan, first, self._number)
        return collect_between(self._scan, first, last, self._number)

    def _solve(self, count: int, first: int, last: int, unit_of: Ints, apart: Ints) -> float:
        fill_window(self._scan, unit_of, apart, first, last, count, self._window)
        key = b"".join(array.tobytes() for array in self._window)
        if key not in self._solved:
            self._solved[key] = least_seconds(self._window, count, self.instance.num_devices)
        return self._solved[key]


def _least_transfer(instance: Instance) -> Floats:
    """The fastest transfer of each edge into an op between any two devices, rounded down."""
    size = np.maximum(instance.in_edges["bytes"], 0.0)
    off = ~np.eye(instance.num_devices, dtype=bool)
    pairs = np.unique(np.stack((instance.latency[off], instance.bandwidth[off])), axis=1)
    least = np.full(len(size), np.inf)
    for latency, bandwidth in pairs.T:
        np.minimum(least, latency + size / bandwidth, out=least)
    least[~np.isfinite(least)] = 0.0  # one device: there is nowhere to move to
    return least


def longest_path(instance: Instance, seconds: Floats) -> float:
    """The longest path along tensors when ops take `seconds` and transfers nothing."""
    _, head = _longest_path(instance, seconds, np.zeros(len(instance.in_edges)))
    return float((head + seconds).max(initial=0.0))


def _longest_path(instance: Instance, seconds: Floats, lag: Floats) -> tuple[Ints, Floats]:
    """Its ops, the first one first, and when each op can start; `lag` is compulsory on edges."""
    head, finish = np.zeros(instance.num_ops), np.zeros(instance.num_ops)
    before = np.full(instance.num_ops, -1, np.int32)
    _trace_longest(instance.in_start, instance.in_edges, seconds, lag, head, finish, before)
    path = []
    op = int(np.argmax(finish)) if instance.num_ops else -1
    while op >= 0:
        path.append(op)
        op = int(before[op])
    return np.array(path[::-1], np.int32), head


@compiled
def _trace_longest(
    in_start: Array, in_edges: Array, seconds: Array, lag: Array, head: Array, finish: Array,
    before: Array,
) -> None:  # fmt: skip
    """When each op can start and finish at the earliest, and the op that it starts after."""
    for op in range(len(finish)):
        start = 0.0
        for e in range(in_start[op], in_start[op + 1]):
            source = in_edges[e].op
            ready = finish[source] + lag[e]
            if in_edges[e].bytes >= 0.0 and (before[op] < 0 or ready > start):
                start, before[op] = ready, source
        head[op], finish[op] = start, start + seconds[op]


@compiled
def _fill_tails(in_start: Array, in_edges: Array, seconds: Array, lag: Array, tail: Array) -> None:
    """The longest way after each op."""
    for op in range(len(tail) - 1, -1, -1):
        for e in range(in_start[op], in_start[op + 1]):
            source = in_edges[e].op
            if in_edges[e].bytes >= 0.0:
                tail[source] = max(tail[source], lag[e] + seconds[op] + tail[op])


@compiled
def _one_device(order: Array, first: Array, head: Array, seconds: Array, tail: Array) -> float:
    """The longest that a label's ops take on one device; each label's are by falling head."""
    longest = 0.0
    for k in range(len(first) - 1):
        total, least = 0.0, np.inf
        for at in range(first[k], first[k + 1]):
            op = order[at]
            total += seconds[op]
            least = min(least, tail[op])
            longest = max(longest, head[op] + total + least)
    return longest


def can_branch(instance: Instance) -> bool:
    """Whether the step is small enough for the work, and there is something to decide."""
    return instance.num_devices > 1 and _WORK // max(1, instance.num_ops) >= _LEAST_BOUNDS


def branch_bound(
    instance: Instance, target: float = np.inf, is_over: Callable[[], bool] = lambda: False
) -> float:
    """No placement is faster. Stops when the bound has reached `target`, or when it is told to."""
    if not can_branch(instance):
        return window_bound(instance)
    left = _WORK // max(1, instance.num_ops)
    windows = WindowBounder(instance)
    root = undecided(instance)
    first = windows.bound(root)
    # The number breaks ties between equal bounds.
    nodes: list[tuple[float, int, Decisions, Bounded]] = [(first.seconds, 0, root, first)]
    count = 0
    while left > 0 and nodes[0][0] < target and not is_over():
        _, _, decisions, bounded = nodes[0]
        children: list[tuple[Decisions, Bounded]] = []
        best = -np.inf
        for one, other in _pairs(windows, decisions, bounded.path):
            tried = [
                (each, windows.bound(each))
                for each in (_together(decisions, one, other), _apart(decisions, one, other))
                if each is not None
            ]
            left -= len(tried)
            least = min((each.seconds for _, each in tried), default=np.inf)
            if least > best:
                best, children = least, tried
        if not children:
            break  # nothing is left to decide where it matters
        heapq.heappop(nodes)
        for each, found in children:
            count += 1
            seconds = max(found.seconds, bounded.seconds)  # what held before holds still
            heapq.heappush(nodes, (seconds, count, each, found))
    return ROUNDING * nodes[0][0]


def _pairs(windows: WindowBounder, decisions: Decisions, path: Ints) -> Iterator[tuple[int, int]]:
    """Undecided pairs of units along the path, those that exchange most first."""
    instance = windows.instance
    decided = {(int(a), int(b)) for a, b in decisions.apart} | {
        (int(b), int(a)) for a, b in decisions.apart
    }
    found: dict[tuple[int, int], float] = {}
    for source, target in zip(path[:-1].tolist(), path[1:].tolist(), strict=True):
        one = int(decisions.label[instance.unit_of[source]])
        other = int(decisions.label[instance.unit_of[target]])
        if one == other or (one, other) in decided:
            continue
        first, end = instance.in_start[target], instance.in_start[target + 1]
        reads = instance.in_edges["op"][first:end] == source
        moved = float(windows.transfer[first:end][reads].max(initial=0.0))
        pair = (min(one, other), max(one, other))
        found[pair] = found.get(pair, 0.0) + moved
    yield from sorted(found, key=lambda pair: (-found[pair], pair))[:_PAIRS]


def _together(decisions: Decisions, one: int, other: int) -> Decisions | None:
    """Both on one device; None where that cannot be."""
    label = np.where(decisions.label == other, one, decisions.label).astype(np.int32)
    apart = np.where(decisions.apart == other, one, decisions.apart).astype(np.int32)
    if (apart[:, 0] == apart[:, 1]).any():
        return None
    return Decisions(label=label, apart=np.unique(apart, axis=0))


def _apart(decisions: Decisions, one: int, other: int) -> Decisions:
    return Decisions(
        label=decisions.label,
        apart=np.append(decisions.apart, [[one, other]], axis=0).astype(np.int32),
    )
