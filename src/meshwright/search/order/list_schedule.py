"""Times placements of ops under list scheduling, without link sharing, and changes of them.

What the simulator gives for a plan with `Discipline.FIFO` or `Discipline.ORDER` and sharing "none",
without building a program: each transfer takes its latency plus bytes over bandwidth, whatever else
moves. Under FIFO ops leave one heap in the order of (ready time, op): an op that is made ready by
another leaves after it, so this is the order on each device, too.

A schedule is kept so that moving a unit costs only what comes after the move, as in FlexFlow's
delta simulation (Jia et al., MLSys 2019, section 5.2): every op that became ready before any of the
moved ops does, on the old devices or on the new ones, keeps its times.
"""

from typing import NamedTuple

import numpy as np

from meshwright.array import Ints
from meshwright.compiled import Array, Float, Int, compiled, inlined
from meshwright.kernel.heap import ENTRY, pop, push
from meshwright.search.instance import Instance, StepArrays

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


class ScheduleState(NamedTuple):
    """One kept schedule and the one that is tried, for kernels."""

    step: StepArrays
    ops: Array
    """An OP for each op, and one more."""
    slots: Array
    """A SLOT for each place in the order of the schedule that is kept."""
    new_slots: Array
    """The same of the one that is tried."""
    devices: Array
    """A DEVICE for each device."""
    kept: Array
    """The `free_at` and `busy` of each device at every place that is a multiple of SPACING."""
    new_kept: Array
    """The same of the one that is tried."""
    heap: Array
    """The ops that are ready, by when they became so."""


class ListSchedule:
    """A schedule that is kept, and from which placements near its own are tried."""

    def __init__(self, instance: Instance, device_of_op: Ints) -> None:
        num_ops, num_devices = instance.num_ops, instance.num_devices
        ops, devices = np.zeros(num_ops + 1, OP), np.zeros(num_devices, DEVICE)
        ops["first_in"], ops["first_out"] = instance.in_start, instance.out_start
        ops["unit"][:-1], ops["device"][:-1] = instance.unit_of, device_of_op
        ops["position"], ops["stamp"] = num_ops, -1
        devices["type"] = instance.type_of
        own = instance.seconds[np.arange(num_ops), instance.type_of[device_of_op]]
        devices["load"] = np.bincount(device_of_op, weights=own, minlength=num_devices)
        shape = (num_ops // SPACING + 1, num_devices, 2)
        slots, new_slots = np.zeros(num_ops, SLOT), np.zeros(num_ops, SLOT)
        # The first schedule is a try from the first place on, where only sources are ready.
        slots["op"] = np.arange(num_ops)
        slots["woken_at"] = np.where(np.diff(instance.in_start) == 0, -1, num_ops)
        self.state = ScheduleState(
            instance.arrays, ops, slots, new_slots, devices, np.zeros(shape), np.zeros(shape),
            np.zeros(num_ops, ENTRY),
        )  # fmt: skip
        _fill_tails(ops, instance.out_edges, instance.seconds.min(axis=1))
        self.seconds: float = try_schedule(self.state, 0, 0, -1, np.inf) if num_ops else 0.0
        """The time of the first schedule."""
        keep_schedule(self.state, 0)


def order_seconds(instance: Instance, device_of_op: Ints, order: Ints) -> float:
    """The time of a placement whose devices run their ops in this (topological) order."""
    finish, free_at = np.zeros(instance.num_ops), np.zeros(instance.num_devices)
    order, device_of = np.asarray(order, np.int32), np.asarray(device_of_op, np.int32)
    return _run_order(instance.arrays, order, device_of, finish, free_at)


@compiled
def _run_order(
    step: StepArrays, order: Array, device_of: Array, finish: Array, free_at: Array
) -> float:
    last = 0.0
    for op in order:
        device = device_of[op]
        start = free_at[device]
        for e in range(step.in_start[op], step.in_start[op + 1]):
            source = step.in_edges[e].op
            if step.in_edges[e].bytes < 0.0 and device_of[source] != device:
                continue  # SAVED elsewhere
            moved = move_seconds(step, device_of[source], device, step.in_edges[e].bytes)
            start = max(start, finish[source] + moved)
        finish[op] = start + step.seconds[op, step.type_of[device]]
        free_at[device] = finish[op]
        last = max(last, finish[op])
    return last


@compiled
def _fill_tails(ops: Array, out_edges: Array, fastest: Array) -> None:
    for op in range(len(ops) - 2, -1, -1):
        tail = 0.0
        for e in range(ops[op].first_out, ops[op + 1].first_out):
            reader = out_edges[e].op
            tail = max(tail, fastest[reader] + ops[reader].tail)
        ops[op].tail = tail


@inlined
def move_seconds(step: StepArrays, source: Int, target: Int, size: Float) -> Float:
    """Time of one transfer alone; zero on one device."""
    if source == target:
        return 0.0
    return step.latency[source, target] + size / step.bandwidth[source, target]


@inlined
def first_changed(state: ScheduleState, first: Int, end: Int) -> Int:
    """Where to begin after a unit's ops (`unit_ops[first:end]`) have got a new device.

    Nothing changes before the first moment at which one of them was ready, or would now be.
    """
    moment = np.inf
    for u in range(first, end):
        op = np.int64(state.step.unit_ops[u])
        moment = min(moment, state.slots[state.ops[op].position].ready)
        moment = min(moment, _ready_by_kept(state, op))
    low, high = 0, len(state.slots)
    while low < high:
        middle = (low + high) >> 1
        if state.slots[middle].ready < moment:
            low = middle + 1
        else:
            high = middle
    return low // SPACING * SPACING


@inlined
def _arrival(state: ScheduleState, e: Int, op: Int) -> Float:
    """When the tensor of an edge into an op is there, if its source keeps its time."""
    ops, edge = state.ops, state.step.in_edges[e]
    moved = move_seconds(state.step, ops[edge.op].device, ops[op].device, edge.bytes)
    return ops[edge.op].finish + moved


@inlined
def _ready_by_kept(state: ScheduleState, op: Int) -> Float:
    """When an op is ready on its device if all before it keep their times."""
    ready = 0.0
    for e in range(state.ops[op].first_in, state.ops[op + 1].first_in):
        ready = max(ready, _arrival(state, e, op))
    return ready


@compiled
def try_schedule(state: ScheduleState, begin: Int, stamp: Int, moved: Int, limit: Float) -> float:
    """Schedule again from a place on, with unit `moved` on its new device.

    Returns the time, or infinity as soon as it must exceed `limit`: what an op's path after it, or
    its device's ops after it, still take is counted without waiting.
    """
    ops, devices, heap, step = state.ops, state.devices, state.heap, state.step
    last = 0.0
    for d in range(len(devices)):
        devices[d].free_at = state.kept[begin // SPACING, d, 0]
        devices[d].busy = state.kept[begin // SPACING, d, 1]
        last = max(last, devices[d].free_at)
    count = _wake_ready(state, begin, stamp, moved)
    limit = limit * _SLACK
    for k in range(begin, len(state.slots)):
        if k % SPACING == 0:
            for d in range(len(devices)):
                state.new_kept[k // SPACING, d, 0] = devices[d].free_at
                state.new_kept[k // SPACING, d, 1] = devices[d].busy
        ready = heap[0].key
        op = pop(heap, 0, count)
        count -= 1
        device = ops[op].device
        own = step.seconds[op, devices[device].type]
        finish = max(ready, devices[device].free_at) + own
        devices[device].free_at = finish
        devices[device].busy += own
        left = max(ops[op].tail, devices[device].load - devices[device].busy)
        if finish + left > limit:
            return np.inf
        last = max(last, finish)
        ops[op].new_finish = finish
        slot = state.new_slots[k]
        slot.op, slot.ready, slot.woken_at = op, ready, ops[op].woken_at
        for e in range(ops[op].first_out, ops[op + 1].first_out):
            reader = np.int64(step.out_edges[e].op)
            if ops[reader].stamp != stamp:
                _start_waiting(state, reader, begin, stamp)
            size = step.out_edges[e].bytes
            arrival = finish + move_seconds(step, device, ops[reader].device, size)
            ops[reader].ready = max(ops[reader].ready, arrival)
            ops[reader].waits_for -= 1
            if ops[reader].waits_for == 0:
                ops[reader].woken_at = k
                push(heap, 0, count, ops[reader].ready, reader)
                count += 1
    return last


@inlined
def _wake_ready(state: ScheduleState, begin: Int, stamp: Int, moved: Int) -> Int:
    """Put what was ready before `begin` and had not run into the heap; returns how many."""
    count = 0
    for k in range(begin, len(state.slots)):
        if state.slots[k].woken_at < begin:
            op = np.int64(state.slots[k].op)
            ready = state.slots[k].ready
            if state.ops[op].unit == moved:
                ready = _ready_by_kept(state, op)
            state.ops[op].stamp = stamp
            state.ops[op].woken_at = state.slots[k].woken_at
            push(state.heap, 0, count, ready, op)
            count += 1
    return count


@inlined
def _start_waiting(state: ScheduleState, op: Int, begin: Int, stamp: Int) -> None:
    """Count what an op waits for among ops that run again, and when the others' tensors arrive."""
    ops = state.ops
    ops[op].stamp = stamp
    waits_for, ready = 0, 0.0
    for e in range(ops[op].first_in, ops[op + 1].first_in):
        if ops[state.step.in_edges[e].op].position >= begin:
            waits_for += 1
        else:
            ready = max(ready, _arrival(state, e, op))
    ops[op].waits_for = waits_for
    ops[op].ready = ready


@compiled
def keep_schedule(state: ScheduleState, begin: Int) -> None:
    """Make the schedule that was tried from a place on the one that is kept."""
    for k in range(begin, len(state.slots)):
        op = state.new_slots[k].op
        state.slots[k] = state.new_slots[k]
        state.ops[op].position = k
        state.ops[op].finish = state.ops[op].new_finish
    for row in range(begin // SPACING, len(state.kept)):
        for d in range(state.kept.shape[1]):
            state.kept[row, d, 0] = state.new_kept[row, d, 0]
            state.kept[row, d, 1] = state.new_kept[row, d, 1]
