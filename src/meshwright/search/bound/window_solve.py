"""Collects the ops of one window and finds the least time that they need. For kernels.

A window is what lies between two ops of a path, its entry and its exit: see `window`. Knows times,
units and transfers of a dozen ops, nothing of the step around them.
"""

from typing import Any

import numpy as np

from meshwright.array import Bools, Floats, Ints
from meshwright.compiled import compiled, inlined

MOST_OPS = 10
"""In a window, its ends not counted."""
SIZE = MOST_OPS + 2
ENTRY, EXIT = MOST_OPS, MOST_OPS + 1
"""Places of a window's ends among its ops."""
_MOST_NODES = 50_000
"""Of the search for a window's optimum; beyond, its longest path counts."""

TASK = np.dtype([("finish", np.float64), ("way", np.float64), ("device", np.int32)], align=True)
"""One op: its way to the exit, and when and where it has run (device -1: it has not)."""

CHOICE = np.dtype(
    [
        ("start", np.float64),  # kept, as an end less its time may differ in the last bits
        ("free", np.float64),  # when the device was free before; -1: the op is on no device
        ("op", np.int32),
        ("device", np.int32),
        ("used", np.int32),  # devices that are used before it; the entry's is 0
    ],
    align=True,
)
"""What is chosen at one depth of the search."""


def least_seconds(
    times: Floats, units: Ints, moved: Floats, is_apart: Bools, count: int, num_devices: int
) -> float:
    """The least time of a window of `count` ops between its ends.

    `moved[i, j]` is the time of the transfer from i to j between devices, negative where j does not
    read i; ops are in a topological order. A proven lower bound where the search is cut short.
    """
    tasks, choices, free = np.zeros(SIZE, TASK), np.zeros(SIZE, CHOICE), np.zeros(SIZE)
    return _solve_window(
        times, units, moved, is_apart, count, num_devices, tasks, choices, free
    )  # fmt: skip


@compiled
def collect_after(
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
def collect_between(
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
def fill_window(
    in_start: Any, in_edges: Any, unit_of: Any, seconds: Any, transfer: Any, apart: Any,
    first: Any, last: Any, members: Any, count: Any, times: Any, units: Any, moved: Any,
    is_apart: Any,
) -> None:  # fmt: skip
    """A window's times, units and transfers. Units are numbered by where they first occur."""
    for i in range(SIZE):
        times[i], units[i] = 0.0, -1
        for j in range(SIZE):
            moved[i, j], is_apart[i, j] = -1.0, False
    for i in range(count):
        times[i] = seconds[members[i]]
        _fill_readers(
            in_start, in_edges, transfer, first, members, count, np.int64(members[i]), i, moved
        )
    if last < len(in_start) - 1:
        _fill_readers(
            in_start,
            in_edges,
            transfer,
            first,
            members,
            count,
            np.int64(last),
            np.int64(EXIT),
            moved,
        )
    for i in range(SIZE):
        op = first if i == ENTRY else last if i == EXIT else members[min(i, MOST_OPS - 1)]
        if (i >= count and i < MOST_OPS) or op < 0 or op >= len(in_start) - 1:
            continue
        units[i] = i
        for j in range(i):
            other = first if j == ENTRY else members[min(j, MOST_OPS - 1)]
            if (j >= count and j != ENTRY) or other < 0:
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
            moved[ENTRY, place] = max(moved[ENTRY, place], transfer[e])
        for k in range(count):
            if members[k] == source:
                moved[k, place] = max(moved[k, place], transfer[e])


@compiled
def _solve_window(
    times: Any, units: Any, moved: Any, is_apart: Any, count: int, num_devices: int, tasks: Any,
    choices: Any, free: Any,
) -> float:  # fmt: skip
    """Depth first over the ops in the order of their starts, each on a used or one new device.

    Starts never fall along a branch, and of two that are equal on two devices the smaller op comes
    first, so that a schedule is not met in many orders. On one device both orders count: an op of
    no time runs before or after the other. The loop is written out: kernels here do not call
    themselves. `free` is when each device is.
    """
    path, best = _fill_ways(times, moved, count, tasks)
    if num_devices < 2:
        return best
    if is_apart.any():
        best = np.inf
    elif best <= path:
        return best
    most = min(num_devices, count + 2)
    depth, nodes = np.int64(0), np.int64(0)
    choices[0].op, choices[0].device, choices[0].used, choices[0].free = 0, -1, 1, -1.0
    while depth >= 0:
        _choose_next(tasks, choices, free, depth, most)
        op, device = np.int64(choices[depth].op), np.int64(choices[depth].device)
        if op >= count:
            depth -= 1
            continue
        start = _start_of(moved, units, is_apart, tasks, free, count, op, device)
        if start < 0.0:
            continue
        if depth > 0 and (
            start < choices[depth - 1].start
            or (
                start == choices[depth - 1].start
                and op < choices[depth - 1].op
                and device != choices[depth - 1].device
            )
        ):
            continue
        nodes += 1
        if nodes > _MOST_NODES:
            return path
        end = start + times[op]
        if end + tasks[op].way >= best or not _can_end(times, tasks, count, start, op, best):
            continue
        choices[depth].start, choices[depth].free = start, free[device]
        free[device], tasks[op].finish, tasks[op].device = end, end, device
        if depth + 1 == count:
            best = min(best, _exit_time(moved, units, is_apart, tasks, count, most))
            continue
        depth += 1
        choices[depth].op, choices[depth].device, choices[depth].free = 0, -1, -1.0
        choices[depth].used = max(choices[depth - 1].used, device + 1)
    if best == np.inf:  # no way to keep all decisions: nothing is said
        return path
    return max(best, path)


@inlined
def _fill_ways(times: Any, moved: Any, count: Any, tasks: Any) -> tuple[float, float]:
    """Each op's way to the exit; returns the longest path, and the time of all on one device."""
    path, total = 0.0, 0.0
    for i in range(count - 1, -1, -1):
        way = 0.0
        for j in range(i + 1, count):
            if moved[i, j] >= 0.0:
                way = max(way, times[j] + tasks[j].way)
        path = max(path, times[i] + way)
        total += times[i]
        tasks[i].way, tasks[i].device = way, -1
    return path, total


@inlined
def _choose_next(tasks: Any, choices: Any, free: Any, depth: Any, most: Any) -> None:
    """Take the op of this depth off its device, if it is on one; then another device, or op."""
    op, device = choices[depth].op, choices[depth].device
    if choices[depth].free >= 0.0:
        free[device] = choices[depth].free
        tasks[op].device = -1
        choices[depth].free = -1.0
    if device + 1 < min(choices[depth].used + 1, most):
        choices[depth].device = device + 1
    else:
        choices[depth].op, choices[depth].device = op + 1, 0


@inlined
def _start_of(
    moved: Any, units: Any, is_apart: Any, tasks: Any, free: Any, count: Any, op: Any, device: Any
) -> Any:  # fmt: skip
    """When an op can start on a device after those that run; -1: not there, or not yet."""
    if tasks[op].device >= 0:
        return -1.0
    start = free[device]
    if moved[ENTRY, op] >= 0.0 and device != 0:
        start = max(start, moved[ENTRY, op])
    if units[ENTRY] >= 0 and units[ENTRY] == units[op] and device != 0:
        return -1.0
    if is_apart[ENTRY, op] and device == 0:
        return -1.0
    for i in range(count):
        if i != op and tasks[i].device >= 0:
            if units[i] == units[op] and tasks[i].device != device:
                return -1.0
            if is_apart[i, op] and tasks[i].device == device:
                return -1.0
        if moved[i, op] >= 0.0:
            if tasks[i].device < 0:
                return -1.0
            arrival = tasks[i].finish
            if tasks[i].device != device:
                arrival += moved[i, op]
            start = max(start, arrival)
    return start


@inlined
def _can_end(times: Any, tasks: Any, count: Any, start: float, op: Any, best: float) -> bool:
    """Whether what has not run yet could end before the best: it starts now at the earliest."""
    for i in range(count):
        if i != op and tasks[i].device < 0 and start + times[i] + tasks[i].way >= best:
            return False
    return True


@inlined
def _exit_time(moved: Any, units: Any, is_apart: Any, tasks: Any, count: Any, most: Any) -> float:
    """When the exit can start, on the best device for it; without one, when all have finished."""
    has_exit = units[EXIT] >= 0
    fixed = np.int64(-1)
    if has_exit and units[EXIT] == units[ENTRY]:
        fixed = np.int64(0)
    for i in range(count):
        if has_exit and units[i] == units[EXIT]:
            fixed = np.int64(tasks[i].device)
    least = np.inf
    for device in range(most):
        if (fixed >= 0 and device != fixed) or (is_apart[ENTRY, EXIT] and device == 0):
            continue
        start = 0.0
        for i in range(count):
            if is_apart[i, EXIT] and tasks[i].device == device:
                start = np.inf
            arrival = tasks[i].finish
            if moved[i, EXIT] >= 0.0 and tasks[i].device != device:
                arrival += moved[i, EXIT]
            start = max(start, arrival)
        if moved[ENTRY, EXIT] >= 0.0 and device != 0:
            start = max(start, moved[ENTRY, EXIT])
        least = min(least, start)
    return least
