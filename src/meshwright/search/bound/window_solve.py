"""Collects the ops of one window and finds the least time that they need. For kernels.

A window is what lies between two ops of a path, its entry and its exit: see `window`. Knows times,
units and transfers of a dozen ops, nothing of the step around them.
"""

from typing import Any, NamedTuple

import numpy as np

from meshwright.compiled import Array, Bool, Float, Int, compiled, inlined

MOST_OPS = 10
"""A window has no more ops than these, its ends not counted."""
SIZE = MOST_OPS + 2
ENTRY, EXIT = MOST_OPS, MOST_OPS + 1
"""Places of a window's ends among its ops."""
_MOST_NODES = 50_000
"""The search for a window's optimum ends after so many nodes; its longest path counts then."""

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


class WindowShape(NamedTuple):
    """All that the least time of a window depends on, besides how many ops and devices there are.

    Ops are in a topological order; ENTRY and EXIT are the places of the ends.
    """

    times: Array
    """The seconds of each op."""
    units: Array
    """The unit of each op and end, numbered by where it first occurs; -1: there is no such."""
    moved: Array
    """`moved[i, j]` is the time of the transfer from i to j between devices; -1: j does not read i.
    """
    is_apart: Array
    """Whether two of them must not share a device."""


class WindowScan(NamedTuple):
    """A step and the window that is collected from it, for kernels."""

    in_start: Array
    in_edges: Array
    """The edges into each op, as in `Instance`."""
    seconds: Array
    """The seconds of each op on the fastest device."""
    transfer: Array
    """The seconds of each edge into an op between the nearest two devices."""
    stamp: Array
    """The number of the window that has seen an op last, negative once it is a member."""
    seen: Array
    """Ops before the exit."""
    members: Array
    """The ops of the window."""


class WindowSearch(NamedTuple):
    """A search for the least time of a window, for kernels."""

    tasks: Array
    """A TASK for each op."""
    choices: Array
    """A CHOICE for each depth."""
    free: Array
    """When each device is free."""


def least_seconds(window: WindowShape, count: int, num_devices: int) -> float:
    """The least time of a window of `count` ops between its ends.

    A proven lower bound where the search is cut short.
    """
    search = WindowSearch(np.zeros(SIZE, TASK), np.zeros(SIZE, CHOICE), np.zeros(SIZE))
    return float(_solve_window(window, count, num_devices, search))


@inlined
def _is_after(scan: WindowScan, op: Int, first: Int, mark: Int) -> Bool:
    """Whether an op reads `first` or an op with this mark; all do for -1."""
    if first < 0:
        return True
    for e in range(scan.in_start[op], scan.in_start[op + 1]):
        source = scan.in_edges[e].op
        if scan.in_edges[e].bytes >= 0.0 and (source == first or scan.stamp[source] == mark):
            return True
    return False


@compiled
def collect_after(scan: WindowScan, first: Int, number: Int) -> int:
    """Make all ops after one (-1: all of all) the members; returns how many, -1 for too many."""
    count = 0
    for op in range(first + 1, len(scan.in_start) - 1):
        if _is_after(scan, op, first, number):
            if count == len(scan.members):
                return -1
            scan.stamp[op] = number
            scan.members[count] = op
            count += 1
    return count


@compiled
def collect_between(scan: WindowScan, first: Int, last: Int, number: Int) -> int:
    """Make the ops after `first` (any for -1) and before `last` the members, in rising order.

    Returns how many, or -1 for too many.
    """
    seen, stamp = scan.seen, scan.stamp
    size, at = 0, 0
    op = last
    while True:
        for e in range(scan.in_start[op], scan.in_start[op + 1]):
            source = scan.in_edges[e].op
            if scan.in_edges[e].bytes >= 0.0 and source > first and stamp[source] != number:
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
        if _is_after(scan, op, first, -number):
            if count == len(scan.members):
                return -1
            stamp[op] = -number
            scan.members[count] = op
            count += 1
    return count


@compiled
def fill_window(
    scan: WindowScan, unit_of: Array, apart: Array, first: Int, last: Int, count: Int,
    window: WindowShape,
) -> None:  # fmt: skip
    """Fill in the window of the members, of which there are `count`, between `first` and `last`."""
    num_ops, members = len(scan.in_start) - 1, scan.members
    for i in range(SIZE):
        window.times[i], window.units[i] = 0.0, -1
        for j in range(SIZE):
            window.moved[i, j], window.is_apart[i, j] = -1.0, False
    for i in range(count):
        window.times[i] = scan.seconds[members[i]]
        _fill_transfers(scan, first, count, np.int64(members[i]), i, window.moved)
    if last < num_ops:
        _fill_transfers(scan, first, count, np.int64(last), np.int64(EXIT), window.moved)
    for i in range(SIZE):
        op = first if i == ENTRY else last if i == EXIT else members[min(i, MOST_OPS - 1)]
        if (i >= count and i < MOST_OPS) or op < 0 or op >= num_ops:
            continue
        window.units[i] = i
        for j in range(i):
            other = first if j == ENTRY else members[min(j, MOST_OPS - 1)]
            if (j >= count and j != ENTRY) or other < 0:
                continue
            if unit_of[other] == unit_of[op]:
                window.units[i] = window.units[j]
            for k in range(len(apart)):
                if (apart[k, 0] == unit_of[op] and apart[k, 1] == unit_of[other]) or (
                    apart[k, 1] == unit_of[op] and apart[k, 0] == unit_of[other]
                ):
                    window.is_apart[i, j], window.is_apart[j, i] = True, True


@inlined
def _fill_transfers(
    scan: WindowScan, first: Int, count: Int, op: Int, place: Int, moved: Array
) -> None:
    """Fill in the transfers from the entry and the members to an op, which has this place."""
    for e in range(scan.in_start[op], scan.in_start[op + 1]):
        source = scan.in_edges[e].op
        if scan.in_edges[e].bytes < 0.0:
            continue
        if source == first:
            moved[ENTRY, place] = max(moved[ENTRY, place], scan.transfer[e])
        for k in range(count):
            if scan.members[k] == source:
                moved[k, place] = max(moved[k, place], scan.transfer[e])


@compiled
def _solve_window(window: WindowShape, count: Int, num_devices: Int, search: WindowSearch) -> Any:
    """Depth first over the ops in the order of their starts, each on a used or one new device.

    Starts never fall along a branch, and of two that are equal on two devices the smaller op comes
    first, so that a schedule is not met in many orders. On one device both orders count: an op of
    no time runs before or after the other. The loop is written out: kernels here do not call
    themselves.
    """
    times, (tasks, choices, free) = window.times, search
    path, best = _fill_ways(window, count, tasks)
    if num_devices < 2:
        return best
    if window.is_apart.any():
        best = np.inf
    elif best <= path:
        return best
    most = min(num_devices, count + 2)
    depth, nodes = np.int64(0), np.int64(0)
    choices[0].op, choices[0].device, choices[0].used, choices[0].free = 0, -1, 1, -1.0
    while depth >= 0:
        _choose_next(search, depth, most)
        op, device = np.int64(choices[depth].op), np.int64(choices[depth].device)
        if op >= count:
            depth -= 1
            continue
        start = _start_of(window, search, count, op, device)
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
            best = min(best, _exit_time(window, tasks, count, most))
            continue
        depth += 1
        choices[depth].op, choices[depth].device, choices[depth].free = 0, -1, -1.0
        choices[depth].used = max(choices[depth - 1].used, device + 1)
    if best == np.inf:  # no way to keep all decisions: nothing is said
        return path
    return max(best, path)


@inlined
def _fill_ways(window: WindowShape, count: Int, tasks: Array) -> tuple[Float, Float]:
    """Each op's way to the exit; returns the longest path, and the time of all on one device."""
    times, path, total = window.times, 0.0, 0.0
    for i in range(count - 1, -1, -1):
        way = 0.0
        for j in range(i + 1, count):
            if window.moved[i, j] >= 0.0:
                way = max(way, times[j] + tasks[j].way)
        path = max(path, times[i] + way)
        total += times[i]
        tasks[i].way, tasks[i].device = way, -1
    return path, total


@inlined
def _choose_next(search: WindowSearch, depth: Int, most: Int) -> None:
    """Take the op of this depth off its device, if it is on one; then another device, or op."""
    tasks, choices, free = search
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
def _start_of(window: WindowShape, search: WindowSearch, count: Int, op: Int, device: Int) -> Float:
    """When an op can start on a device after those that run; -1: not there, or not yet."""
    units, moved, is_apart, tasks = window.units, window.moved, window.is_apart, search.tasks
    if tasks[op].device >= 0:
        return -1.0
    start = search.free[device]
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
def _can_end(times: Array, tasks: Array, count: Int, start: Float, op: Int, best: Float) -> Bool:
    """Whether what has not run yet could end before the best: it starts now at the earliest."""
    for i in range(count):
        if i != op and tasks[i].device < 0 and start + times[i] + tasks[i].way >= best:
            return False
    return True


@inlined
def _exit_time(window: WindowShape, tasks: Array, count: Int, most: Int) -> Float:
    """When the exit can start, on the best device for it; without one, when all have finished."""
    units, moved, is_apart = window.units, window.moved, window.is_apart
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
