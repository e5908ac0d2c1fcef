"""A lower bound on the time of a placement: exact optima of small windows around the longest path.

Let v and w be ops of one path. Whatever is both after v and before w runs between the end of v and
the start of w, so the least time that these few ops need by themselves, on as many devices and with
the fastest transfers there are, is time that every placement takes there. On the longest path
windows that follow each other add up. A path alone counts only the longest branch between a fork
and its join; a window knows that the other branches need either the same device or transfers both
ways. What must share a device also runs there one by one.

Holds for all placements of whole ops: devices are as fast as the fastest of each op, every pair as
near as the nearest, nothing else runs, and memory has no limit. Only the ops of one co-location
group must share a device.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.compiled import compiled, inlined
from meshwright.search.instance import Floats, Instance, Ints

Bools = npt.NDArray[np.bool_]

ROUNDING = 1.0 - 1e-10
"""Sums in another order than the simulator's may differ in the last bits; bounds stay below."""
MOST_OPS = 10
"""In a window, its ends not counted."""
_MOST_SEEN = 256
"""Ops looked at for a window; a longer search back is given up."""
_MOST_NODES = 50_000
"""Of the search for a window's optimum; beyond, its longest path counts."""
_SIZE = MOST_OPS + 2
_ENTRY, _EXIT = MOST_OPS, MOST_OPS + 1
"""Places of a window's ends among its ops."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Decisions:
    """Which units must share a device, and which must not: what a bound may take for granted."""

    label: Ints
    """Of each unit; units of one label share a device."""
    apart: Ints
    """Pairs of labels that do not, one a row."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bounded:
    """A bound and the path that it stands around."""

    seconds: float
    path: Ints


def window_bound(instance: Instance) -> float:
    """No placement is faster."""
    return ROUNDING * Windows(instance).bound(undecided(instance)).seconds


def undecided(instance: Instance) -> Decisions:
    """Every unit for itself."""
    label = np.arange(instance.num_units, dtype=np.int32)
    return Decisions(label=label, apart=np.zeros((0, 2), np.int32))


class Windows:
    """The arrays of the kernels, and the optima of windows that were solved before."""

    def __init__(self, instance: Instance) -> None:
        num_ops = instance.num_ops
        self.instance = instance
        self.seconds = instance.seconds.min(axis=1)
        self.transfer = _least_transfer(instance)
        """Of each edge into an op, between the nearest two devices."""
        self._joins = np.append(np.diff(instance.in_start) > 1, True)
        self._forks = np.append(np.diff(instance.out_start) > 1, True)
        self._stamp, self._seen = np.zeros(num_ops + 1, np.int64), np.zeros(_MOST_SEEN, np.int32)
        self._members = np.zeros(MOST_OPS, np.int32)
        self._window = (
            np.zeros(_SIZE), np.zeros(_SIZE, np.int32), np.zeros((_SIZE, _SIZE)),
            np.zeros((_SIZE, _SIZE), np.bool_),
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
                ready += self._lag_between(ends[j - 1], ends[j], lag)
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
        """Of each edge into an op what its transfer takes, if its ends must be apart."""
        instance = self.instance
        lag = np.zeros(len(self.transfer))
        if len(apart):
            target = unit_of[np.repeat(np.arange(instance.num_ops), np.diff(instance.in_start))]
            source = unit_of[instance.in_edges["op"]]
            for one, other in apart.tolist():
                is_cut = (source == one) & (target == other) | (source == other) & (target == one)
                lag[is_cut] = self.transfer[is_cut]
        return lag

    def _lag_between(self, source: int, target: int, lag: Floats) -> float:
        first, end = self.instance.in_start[target], self.instance.in_start[target + 1]
        edges = self.instance.in_edges[first:end]
        reads = (edges["op"] == source) & (edges["bytes"] >= 0)
        return float(lag[first:end][reads].max(initial=0.0))

    def _collect(self, first: int, last: int) -> int:
        """The ops between two, into `members`; -1: too many."""
        instance = self.instance
        self._number += 1
        if last == instance.num_ops:
            after: int = _collect_after(
                instance.in_start, instance.in_edges, first, self._stamp, self._number,
                self._members,
            )  # fmt: skip
            return after
        between: int = _collect_between(
            instance.in_start, instance.in_edges, first, last, self._stamp, self._number,
            self._seen, self._members,
        )  # fmt: skip
        return between

    def _solve(self, count: int, first: int, last: int, unit_of: Ints, apart: Ints) -> float:
        instance = self.instance
        _fill_window(
            instance.in_start, instance.in_edges, unit_of, self.seconds, self.transfer, apart,
            first, last, self._members, count, *self._window,
        )  # fmt: skip
        key = b"".join(array.tobytes() for array in self._window)
        if key not in self._solved:
            self._solved[key] = least_seconds(*self._window, count, instance.num_devices)
        return self._solved[key]


def least_seconds(
    times: Floats, units: Ints, moved: Floats, is_apart: Bools, count: int, num_devices: int
) -> float:
    """The least time of a window of `count` ops between its ends.

    `moved[i, j]` is the time of the transfer from i to j between devices, negative where j does not
    read i; ops are in a topological order. A proven lower bound where the search is cut short.
    """
    small = np.zeros((5, _SIZE), np.int32)
    large = np.zeros((5, _SIZE))
    return _solve_window(times, units, moved, is_apart, count, num_devices, small, large)


def _least_transfer(instance: Instance) -> Floats:
    """For each edge into an op the fastest transfer between any two devices, rounded down."""
    size = np.maximum(instance.in_edges["bytes"], 0.0)
    off = ~np.eye(instance.num_devices, dtype=bool)
    pairs = np.unique(np.stack((instance.latency[off], instance.bandwidth[off])), axis=1)
    least = np.full(len(size), np.inf)
    for latency, bandwidth in pairs.T:
        np.minimum(least, latency + size / bandwidth, out=least)
    least[~np.isfinite(least)] = 0.0  # one device: there is nowhere to move to
    return least


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
    in_start: Any, in_edges: Any, seconds: Any, lag: Any, head: Any, finish: Any, before: Any
) -> None:
    for op in range(len(finish)):
        start = 0.0
        for e in range(in_start[op], in_start[op + 1]):
            source = in_edges[e].op
            ready = finish[source] + lag[e]
            if in_edges[e].bytes >= 0.0 and (before[op] < 0 or ready > start):
                start, before[op] = ready, source
        head[op], finish[op] = start, start + seconds[op]


@compiled
def _fill_tails(in_start: Any, in_edges: Any, seconds: Any, lag: Any, tail: Any) -> None:
    """The longest way after each op."""
    for op in range(len(tail) - 1, -1, -1):
        for e in range(in_start[op], in_start[op + 1]):
            source = in_edges[e].op
            if in_edges[e].bytes >= 0.0:
                tail[source] = max(tail[source], lag[e] + seconds[op] + tail[op])


@compiled
def _one_device(order: Any, first: Any, head: Any, seconds: Any, tail: Any) -> float:
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


@compiled
def _collect_after(
    in_start: Any, in_edges: Any, first: Any, stamp: Any, number: Any, members: Any
) -> Any:
    """All ops after one, if they are few; all of all for -1."""
    count = 0
    for op in range(first + 1, len(in_start) - 1):
        is_after = first < 0
        for e in range(in_start[op], in_start[op + 1]):
            source = in_edges[e].op
            if in_edges[e].bytes >= 0.0 and (source == first or stamp[source] == number):
                is_after = True
        if is_after:
            if count == len(members):
                return -1
            stamp[op] = number
            members[count] = op
            count += 1
    return count


@compiled
def _collect_between(
    in_start: Any, in_edges: Any, first: Any, last: Any, stamp: Any, number: Any, seen: Any,
    members: Any,
) -> Any:  # fmt: skip
    """The ops after `first` (any for -1) and before `last`, rising, if they are few."""
    size, at = 0, 0
    op = last
    while True:
        for e in range(in_start[op], in_start[op + 1]):
            source = in_edges[e].op
            if in_edges[e].bytes >= 0.0 and source > first and stamp[source] != number:
                if size == len(seen):
                    return -1
                stamp[source] = number
                seen[size] = source
                size += 1
        if at == size:
            break
        op = seen[at]
        at += 1
    for k in range(1, size):  # few: sort by insertion
        value, at = seen[k], k
        while at > 0 and seen[at - 1] > value:
            seen[at] = seen[at - 1]
            at -= 1
        seen[at] = value
    count = 0
    for k in range(size):
        op = seen[k]
        is_after = first < 0
        for e in range(in_start[op], in_start[op + 1]):
            source = in_edges[e].op
            if in_edges[e].bytes >= 0.0 and (source == first or stamp[source] == -number):
                is_after = True
        if is_after:
            if count == len(members):
                return -1
            stamp[op] = -number
            members[count] = op
            count += 1
    return count


@compiled
def _fill_window(
    in_start: Any, in_edges: Any, unit_of: Any, seconds: Any, transfer: Any, apart: Any,
    first: Any, last: Any, members: Any, count: Any, times: Any, units: Any, moved: Any,
    is_apart: Any,
) -> None:  # fmt: skip
    """A window's times, units and transfers. Units are numbered by where they first occur."""
    for i in range(_SIZE):
        times[i], units[i] = 0.0, -1
        for j in range(_SIZE):
            moved[i, j], is_apart[i, j] = -1.0, False
    for i in range(count):
        times[i] = seconds[members[i]]
        _fill_readers(in_start, in_edges, transfer, first, members, count, members[i], i, moved)
    if last < len(in_start) - 1:
        _fill_readers(in_start, in_edges, transfer, first, members, count, last, _EXIT, moved)
    for i in range(_SIZE):
        op = first if i == _ENTRY else last if i == _EXIT else members[min(i, MOST_OPS - 1)]
        if (i >= count and i < MOST_OPS) or op < 0 or op >= len(in_start) - 1:
            continue
        units[i] = i
        for j in range(i):
            other = first if j == _ENTRY else members[min(j, MOST_OPS - 1)]
            if (j >= count and j != _ENTRY) or other < 0:
                continue
            if unit_of[other] == unit_of[op]:
                units[i] = units[j]
            for k in range(len(apart)):
                if (apart[k, 0] == unit_of[op] and apart[k, 1] == unit_of[other]) or (
                    apart[k, 1] == unit_of[op] and apart[k, 0] == unit_of[other]
                ):
                    is_apart[i, j], is_apart[j, i] = True, True


@inlined
def _fill_readers(
    in_start: Any, in_edges: Any, transfer: Any, first: Any, members: Any, count: Any, op: Any,
    place: Any, moved: Any,
) -> None:  # fmt: skip
    for e in range(in_start[op], in_start[op + 1]):
        source = in_edges[e].op
        if in_edges[e].bytes < 0.0:
            continue
        if source == first:
            moved[_ENTRY, place] = max(moved[_ENTRY, place], transfer[e])
        for k in range(count):
            if members[k] == source:
                moved[k, place] = max(moved[k, place], transfer[e])


@compiled
def _solve_window(
    times: Any, units: Any, moved: Any, is_apart: Any, count: int, num_devices: int, small: Any,
    large: Any,
) -> float:  # fmt: skip
    """Depth first over the ops in the order of their starts, each on a used or one new device.

    Starts never fall along a branch, and of two that are equal on two devices the smaller op comes
    first, so that a schedule is not met in many orders. On one device both orders count: an op of
    no time runs before or after the other. The loop is written out: kernels here do not call
    themselves.
    """
    # Rows of small: the op and device of each depth, the device of each op, used devices by depth,
    # the entry's device is 0. Rows of large: finish of each op, its way to the exit, the free time
    # of each device, the free time that a depth has replaced (-1: its op is on no device), the
    # start at each depth (an end less its time may differ in the last bits).
    op_at, device_at, device_of, used_at = small[0], small[1], small[2], small[3]
    finish, way, free, kept, begin = large[0], large[1], large[2], large[3], large[4]
    path, best = 0.0, 0.0
    for i in range(count - 1, -1, -1):
        way[i] = 0.0
        for j in range(i + 1, count):
            if moved[i, j] >= 0.0:
                way[i] = max(way[i], times[j] + way[j])
        path = max(path, times[i] + way[i])
        best += times[i]  # all on one device, one after the other
        device_of[i] = -1
    if num_devices < 2:
        return best
    if is_apart.any():
        best = np.inf
    elif best <= path:
        return best
    most = min(num_devices, count + 2)
    for d in range(most):
        free[d] = 0.0
    depth, nodes = 0, 0
    op_at[0], device_at[0], used_at[0], kept[0] = 0, -1, 1, -1.0
    while depth >= 0:
        # Take the op of this depth off its device, if it is on one.
        op = np.int64(op_at[depth])
        if kept[depth] >= 0.0:
            free[device_at[depth]] = kept[depth]
            device_of[op] = -1
            kept[depth] = -1.0
        # The next choice of this depth: another device, else another op.
        device_at[depth] += 1
        if device_at[depth] >= min(used_at[depth] + 1, most):
            device_at[depth] = 0
            op_at[depth] += 1
        op = np.int64(op_at[depth])
        if op >= count:
            depth -= 1
            continue
        device = np.int64(device_at[depth])
        start = _start_of(moved, units, is_apart, finish, device_of, free, count, op, device)
        if start < 0.0:
            continue
        if depth > 0 and (
            start < begin[depth - 1]
            or (
                start == begin[depth - 1]
                and op < op_at[depth - 1]
                and device != device_at[depth - 1]
            )
        ):
            continue
        nodes += 1
        if nodes > _MOST_NODES:
            return path
        end = start + times[op]
        if end + way[op] >= best or not _can_end(times, way, device_of, count, start, op, best):
            continue
        kept[depth], begin[depth] = free[device], start
        free[device], finish[op], device_of[op] = end, end, device
        if depth + 1 == count:
            best = min(best, _exit_time(moved, units, is_apart, finish, device_of, count, most))
            continue
        depth += 1
        op_at[depth], device_at[depth], kept[depth] = 0, -1, -1.0
        used_at[depth] = max(used_at[depth - 1], device + 1)
    if best == np.inf:  # no way to keep all decisions: nothing is said
        return path
    return max(best, path)


@inlined
def _start_of(
    moved: Any, units: Any, is_apart: Any, finish: Any, device_of: Any, free: Any, count: Any,
    op: Any, device: Any,
) -> Any:  # fmt: skip
    """When an op can start on a device after those that run; -1: not there, or not yet."""
    if device_of[op] >= 0:
        return -1.0
    start = free[device]
    if moved[_ENTRY, op] >= 0.0 and device != 0:
        start = max(start, moved[_ENTRY, op])
    if units[_ENTRY] >= 0 and units[_ENTRY] == units[op] and device != 0:
        return -1.0
    if is_apart[_ENTRY, op] and device == 0:
        return -1.0
    for i in range(count):
        if i != op and device_of[i] >= 0:
            if units[i] == units[op] and device_of[i] != device:
                return -1.0
            if is_apart[i, op] and device_of[i] == device:
                return -1.0
        if moved[i, op] >= 0.0:
            if device_of[i] < 0:
                return -1.0
            arrival = finish[i]
            if device_of[i] != device:
                arrival += moved[i, op]
            start = max(start, arrival)
    return start


@inlined
def _can_end(
    times: Any, way: Any, device_of: Any, count: Any, start: float, op: Any, best: float
) -> bool:
    """Whether what has not run yet could end before the best: it starts now at the earliest."""
    for i in range(count):
        if i != op and device_of[i] < 0 and start + times[i] + way[i] >= best:
            return False
    return True


@inlined
def _exit_time(
    moved: Any, units: Any, is_apart: Any, finish: Any, device_of: Any, count: Any, most: Any
) -> float:
    """When the exit can start, on the best device for it; without one, when all have finished."""
    has_exit = units[_EXIT] >= 0
    fixed = np.int64(-1)
    if has_exit and units[_EXIT] == units[_ENTRY]:
        fixed = np.int64(0)
    for i in range(count):
        if has_exit and units[i] == units[_EXIT]:
            fixed = np.int64(device_of[i])
    least = np.inf
    for device in range(most):
        if (fixed >= 0 and device != fixed) or (is_apart[_ENTRY, _EXIT] and device == 0):
            continue
        start = 0.0
        for i in range(count):
            if is_apart[i, _EXIT] and device_of[i] == device:
                start = np.inf
            arrival = finish[i]
            if moved[i, _EXIT] >= 0.0 and device_of[i] != device:
                arrival += moved[i, _EXIT]
            start = max(start, arrival)
        if moved[_ENTRY, _EXIT] >= 0.0 and device != 0:
            start = max(start, moved[_ENTRY, _EXIT])
        least = min(least, start)
    return least
