"""Times placements of ops under list scheduling, without link sharing, and changes of them.

What the simulator gives for a plan with `Discipline.FIFO` or `Discipline.ORDER` and sharing "none",
without building a program: each transfer takes its latency plus bytes over bandwidth, whatever else
moves. Under FIFO ops leave one heap in the order of (ready time, op): an op that is made ready by
another leaves after it, so this is the order on each device, too.

A schedule is kept so that moving a unit costs only what comes after the move, as in FlexFlow's
delta simulation (Jia et al., MLSys 2019, section 5.2): every op that became ready before any of the
moved ops does, on the old devices or on the new ones, keeps its times.
"""

from typing import Any

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.compiled import compiled, inlined
from meshwright.kernel.heap import ENTRY, pop, push
from meshwright.search.instance import Instance

OP = np.dtype(
    [
        ("finish", np.float64),  # in the schedule that is kept
        ("ready", np.float64),  # from here on: in the one that is tried
        ("new_finish", np.float64),
        ("tail", np.float64),  # the longest path after it on the fastest devices
        ("device", np.int32),
        ("position", np.int32),  # in the order of the schedule that is kept
        ("first_in", np.int32),
        ("first_out", np.int32),
        ("unit", np.int32),
        ("waits_for", np.int32),
        ("woken_at", np.int32),
        ("stamp", np.int32),  # the try that `ready` and `waits_for` belong to
    ],
    align=True,
)
"""One op; arrays of it have one entry more than ops, to end the last one's edges."""

SLOT = np.dtype([("ready", np.float64), ("op", np.int32), ("woken_at", np.int32)], align=True)
"""One place in the order: the op, when it was ready, the place of the op that made it so (-1)."""

DEVICE = np.dtype(
    [
        ("free_at", np.float64),
        ("busy", np.float64),  # seconds of ops so far
        ("load", np.float64),  # seconds of all its ops
        ("type", np.int32),
    ],
    align=True,
)

SPACING = 64
"""Places between two of which devices' free times are kept; tries begin at such a place."""

_SLACK = 1.0 + 1e-9
"""Bounds that end a try early add up in another order than the schedule does."""


class Schedule:
    """The arrays of one kept schedule and of the one that is tried. For kernels."""

    def __init__(self, instance: Instance, device_of_op: Ints) -> None:
        num_ops, num_devices = instance.num_ops, instance.num_devices
        self.ops = np.zeros(num_ops + 1, OP)
        self.ops["first_in"], self.ops["first_out"] = instance.in_start, instance.out_start
        self.ops["unit"][:-1] = instance.unit_of
        self.ops["device"][:-1] = device_of_op
        self.slots, self.new_slots = np.zeros(num_ops, SLOT), np.zeros(num_ops, SLOT)
        self.devices = np.zeros(num_devices, DEVICE)
        self.devices["type"] = instance.type_of
        own = instance.seconds[np.arange(num_ops), instance.type_of[device_of_op]]
        self.devices["load"] = np.bincount(device_of_op, weights=own, minlength=num_devices)
        rows = num_ops // SPACING + 1
        self.kept = np.zeros((rows, num_devices, 2))
        self.new_kept = np.zeros((rows, num_devices, 2))
        self.heap = np.zeros(num_ops, ENTRY)
        _fill_tails(self.ops, instance.out_edges, instance.seconds.min(axis=1))
        self.costs: Any = (
            instance.in_edges, instance.out_edges, instance.seconds, instance.latency,
            instance.bandwidth,
        )  # fmt: skip
        self.seconds = self._build() if num_ops else 0.0
        """Of the first schedule."""

    def _build(self) -> float:
        """Schedule everything: a try from the first place on, where only sources are ready."""
        num_ops = len(self.slots)
        self.slots["op"] = np.arange(num_ops)
        is_source = self.ops["first_in"][:-1] == self.ops["first_in"][1:]
        self.slots["woken_at"] = np.where(is_source, -1, num_ops)
        self.ops["position"], self.ops["stamp"] = num_ops, -1
        arguments: Any = (*self.arrays, *self.costs, 0, 0, -1, np.inf)
        seconds = try_schedule(*arguments)
        keep_schedule(self.ops, self.slots, self.new_slots, self.kept, self.new_kept, 0)
        return seconds

    @property
    def arrays(self) -> Any:
        """What kernels write to, in the order in which they take it."""
        return (
            self.ops, self.slots, self.new_slots, self.devices, self.kept, self.new_kept, self.heap
        )  # fmt: skip


def order_seconds(instance: Instance, device_of_op: Ints, order: Ints) -> float:
    """The time of a placement whose devices run their ops in this (topological) order."""
    finish, free_at = np.zeros(instance.num_ops), np.zeros(instance.num_devices)
    return _run_order(
        np.asarray(order, np.int32), np.asarray(device_of_op, np.int32), instance.type_of,
        instance.in_start, instance.in_edges, instance.seconds, instance.latency,
        instance.bandwidth, finish, free_at,
    )  # fmt: skip


def longest_path(instance: Instance, seconds: Floats) -> float:
    """The longest path along tensors when ops take `seconds` and transfers nothing."""
    finish = np.zeros(instance.num_ops)
    return _run_free(instance.in_start, instance.in_edges, seconds, finish)


@compiled
def _run_free(in_start: Any, in_edges: Any, seconds: Any, finish: Any) -> float:
    last = 0.0
    for op in range(len(finish)):
        start = 0.0
        for e in range(in_start[op], in_start[op + 1]):
            if in_edges[e].bytes >= 0.0:
                start = max(start, finish[in_edges[e].op])
        finish[op] = start + seconds[op]
        last = max(last, finish[op])
    return last


@compiled
def _run_order(
    order: Any, device_of: Any, type_of: Any, in_start: Any, in_edges: Any, seconds: Any,
    latency: Any, bandwidth: Any, finish: Any, free_at: Any,
) -> float:  # fmt: skip
    last = 0.0
    for op in order:
        device = device_of[op]
        start = free_at[device]
        for e in range(in_start[op], in_start[op + 1]):
            source = in_edges[e].op
            if in_edges[e].bytes < 0.0 and device_of[source] != device:
                continue  # SAVED elsewhere
            start = max(
                start,
                finish[source]
                + move_seconds(latency, bandwidth, device_of[source], device, in_edges[e].bytes),
            )
        finish[op] = start + seconds[op, type_of[device]]
        free_at[device] = finish[op]
        last = max(last, finish[op])
    return last


@compiled
def _fill_tails(ops: Any, out_edges: Any, fastest: Any) -> None:
    for op in range(len(ops) - 2, -1, -1):
        tail = 0.0
        for e in range(ops[op].first_out, ops[op + 1].first_out):
            reader = out_edges[e].op
            tail = max(tail, fastest[reader] + ops[reader].tail)
        ops[op].tail = tail


@inlined
def move_seconds(latency: Any, bandwidth: Any, source: Any, target: Any, size: Any) -> Any:
    """Time of one transfer alone; zero on one device."""
    if source == target:
        return 0.0
    return latency[source, target] + size / bandwidth[source, target]


@inlined
def first_changed(
    ops: Any, slots: Any, in_edges: Any, latency: Any, bandwidth: Any, unit_ops: Any,
    first: int, end: int,
) -> int:  # fmt: skip
    """Where to begin after a unit's ops (`unit_ops[first:end]`) have got a new device.

    Nothing changes before the first moment at which one of them was ready, or would now be.
    """
    moment = np.inf
    for u in range(first, end):
        op = np.int64(unit_ops[u])
        moment = min(moment, slots[ops[op].position].ready)
        moment = min(moment, _ready_by_kept(ops, in_edges, latency, bandwidth, op))
    low, high = 0, len(slots)
    while low < high:
        middle = (low + high) >> 1
        if slots[middle].ready < moment:
            low = middle + 1
        else:
            high = middle
    return low // SPACING * SPACING


@inlined
def _ready_by_kept(ops: Any, in_edges: Any, latency: Any, bandwidth: Any, op: Any) -> float:
    """When an op is ready on its device if all before it keep their times."""
    ready = 0.0
    for e in range(ops[op].first_in, ops[op + 1].first_in):
        source = in_edges[e].op
        ready = max(
            ready,
            ops[source].finish
            + move_seconds(
                latency, bandwidth, ops[source].device, ops[op].device, in_edges[e].bytes
            ),
        )
    return ready


@compiled
def try_schedule(
    ops: Any, slots: Any, new_slots: Any, devices: Any, kept: Any, new_kept: Any, heap: Any,
    in_edges: Any, out_edges: Any, seconds: Any, latency: Any, bandwidth: Any,
    begin: int, stamp: int, moved: Any, limit: float,
) -> float:  # fmt: skip
    """Schedule again from a place on, with unit `moved` on its new device.

    Returns the time, or infinity as soon as it must exceed `limit`: what an op's path after it, or
    its device's ops after it, still take is counted without waiting.
    """
    last = 0.0
    for d in range(len(devices)):
        devices[d].free_at = kept[begin // SPACING, d, 0]
        devices[d].busy = kept[begin // SPACING, d, 1]
        last = max(last, devices[d].free_at)
    count = _wake_ready(ops, slots, heap, in_edges, latency, bandwidth, begin, stamp, moved)
    limit = limit * _SLACK
    for k in range(begin, len(slots)):
        if k % SPACING == 0:
            for d in range(len(devices)):
                new_kept[k // SPACING, d, 0] = devices[d].free_at
                new_kept[k // SPACING, d, 1] = devices[d].busy
        ready = heap[0].key
        op = pop(heap, 0, count)
        count -= 1
        device = ops[op].device
        own = seconds[op, devices[device].type]
        finish = max(ready, devices[device].free_at) + own
        devices[device].free_at = finish
        devices[device].busy += own
        left = max(ops[op].tail, devices[device].load - devices[device].busy)
        if finish + left > limit:
            return np.inf
        last = max(last, finish)
        ops[op].new_finish = finish
        new_slots[k].op = op
        new_slots[k].ready = ready
        new_slots[k].woken_at = ops[op].woken_at
        for e in range(ops[op].first_out, ops[op + 1].first_out):
            reader = np.int64(out_edges[e].op)
            if ops[reader].stamp != stamp:
                _start_waiting(ops, in_edges, latency, bandwidth, reader, begin, stamp)
            arrival = finish + move_seconds(
                latency, bandwidth, device, ops[reader].device, out_edges[e].bytes
            )
            ops[reader].ready = max(ops[reader].ready, arrival)
            ops[reader].waits_for -= 1
            if ops[reader].waits_for == 0:
                ops[reader].woken_at = k
                push(heap, 0, count, ops[reader].ready, reader)
                count += 1
    return last


@inlined
def _wake_ready(
    ops: Any, slots: Any, heap: Any, in_edges: Any, latency: Any, bandwidth: Any,
    begin: int, stamp: int, moved: Any,
) -> int:  # fmt: skip
    """Put what was ready before `begin` and had not run into the heap; returns how many."""
    count = 0
    for k in range(begin, len(slots)):
        if slots[k].woken_at < begin:
            op = np.int64(slots[k].op)
            ready = slots[k].ready
            if ops[op].unit == moved:
                ready = _ready_by_kept(ops, in_edges, latency, bandwidth, op)
            ops[op].stamp = stamp
            ops[op].woken_at = slots[k].woken_at
            push(heap, 0, count, ready, op)
            count += 1
    return count


@inlined
def _start_waiting(
    ops: Any, in_edges: Any, latency: Any, bandwidth: Any, op: Any, begin: int, stamp: int
) -> None:
    """Count what an op waits for among ops that run again, and when the others' tensors arrive."""
    ops[op].stamp = stamp
    waits_for, ready = 0, 0.0
    for e in range(ops[op].first_in, ops[op + 1].first_in):
        source = in_edges[e].op
        if ops[source].position >= begin:
            waits_for += 1
        else:
            ready = max(
                ready,
                ops[source].finish
                + move_seconds(
                    latency, bandwidth, ops[source].device, ops[op].device, in_edges[e].bytes
                ),
            )
    ops[op].waits_for = waits_for
    ops[op].ready = ready


@compiled
def keep_schedule(
    ops: Any, slots: Any, new_slots: Any, kept: Any, new_kept: Any, begin: int
) -> None:
    """Make the schedule that was tried from a place on the one that is kept."""
    for k in range(begin, len(slots)):
        op = new_slots[k].op
        slots[k].op = op
        slots[k].ready = new_slots[k].ready
        slots[k].woken_at = new_slots[k].woken_at
        ops[op].position = k
        ops[op].finish = ops[op].new_finish
    for row in range(begin // SPACING, len(kept)):
        for d in range(kept.shape[1]):
            kept[row, d, 0] = new_kept[row, d, 0]
            kept[row, d, 1] = new_kept[row, d, 1]
