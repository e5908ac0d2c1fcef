"""HEFT (Topcuoglu, Hariri, Wu, IEEE TPDS 2002): list scheduling by upward rank.

Ops are taken by falling rank, the longest path to the end by mean times of ops and transfers; each
goes to the device on which it finishes first, in the earliest gap that it fits in. A co-location
group goes where its first op (by rank) finishes first: the later ones, backward ops and updates,
are not known yet. A device without room for what the group holds is passed over; when none has
room, the one with the most is taken and the simulator decides.

What a device is busy with is kept in blocks of spans, each with its largest gap, so that gaps which
are too small are passed by blocks: a start is found in the root of the number of ops.
"""

import math
from typing import Any, NamedTuple

import numpy as np

from meshwright.array import Floats, Ints, Records
from meshwright.compiled import Array, Float, Int, compiled, inlined, outlined
from meshwright.search.instance import (
    Instance,
    StepArrays,
    mean_device_seconds,
    mean_transfer,
)
from meshwright.search.order.list_schedule import move_seconds

TASK = np.dtype(
    [
        ("start", np.float64),
        ("finish", np.float64),
        ("rank", np.float64),
        ("device", np.int32),
        ("first_in", np.int32),
    ],
    align=True,
)
"""One op; arrays of it have one entry more than ops."""

HOME = np.dtype([("room", np.float64), ("type", np.int32), ("last", np.int32)], align=True)
"""One device: memory that is left, and the last of its blocks."""

SPAN = np.dtype([("start", np.float64), ("finish", np.float64)], align=True)
"""One op of a device. Spans of a device are in the order of time, in blocks."""

BLOCK = np.dtype(
    [
        ("gap", np.float64),  # the longest that is idle right before one of its spans
        ("finish", np.float64),  # of its last span
        ("before", np.int32),  # its neighbours on its device; -1: none
        ("after", np.int32),
        ("count", np.int32),
    ],
    align=True,
)
"""Spans of one device that follow on each other."""

_ROUNDING = 1e-15
"""Relative: more than what rounding can make of a gap and of a sum that just fits into it."""

_LEAST_SPANS = 32
"""The spans that a block has room for, at least; fewer are not worth the walk between blocks."""


class HeftState(NamedTuple):
    """What has been placed so far, for kernels."""

    step: StepArrays
    tasks: Array
    """A TASK for each op, and one more."""
    homes: Array
    """A HOME for each device."""
    blocks: Array
    """A BLOCK for each device, then those that are split off."""
    spans: Array
    """Room for the SPANs of each block (row)."""
    unit_device: Array
    """The device of each unit, or -1."""


def schedule_heft(
    instance: Instance,
    memory_bytes: Floats | None = None,
    transfer: tuple[float, float] | None = None,
) -> tuple[Ints, Ints, float]:
    """The device of each op, the ops by start time, and the time of the whole schedule.

    `memory_bytes` is what may be filled of each device; None: all. `transfer`: latency and seconds
    a byte that ranks count with; None: HEFT's own, the means over pairs of devices.
    """
    if memory_bytes is None:
        memory_bytes = instance.cluster.memory_bytes
    tasks = np.zeros(instance.num_ops + 1, TASK)
    tasks["first_in"] = instance.in_start
    tasks["device"] = -1
    homes = np.zeros(instance.num_devices, HOME)
    homes["room"], homes["type"] = memory_bytes, instance.type_of
    homes["last"] = np.arange(instance.num_devices)  # every device begins with an empty block
    blocks, spans = _make_blocks(instance)
    latency, per_byte = transfer or mean_transfer(instance)
    _fill_ranks(tasks, instance.in_edges, mean_device_seconds(instance), latency, per_byte)
    by_rank = np.lexsort((np.arange(instance.num_ops), -tasks["rank"][:-1])).astype(np.int32)
    unit_device = np.full(instance.num_units, -1, dtype=np.int32)
    state = HeftState(instance.arrays, tasks, homes, blocks, spans, unit_device)
    seconds = _place_all(state, by_rank)
    # An op of no time may start with the next one on its device: it finishes first.
    order = np.lexsort((np.arange(instance.num_ops), tasks["finish"][:-1], tasks["start"][:-1]))
    return tasks["device"][:-1].copy(), order.astype(np.int32), seconds


def _make_blocks(instance: Instance) -> tuple[Records, Records]:
    """Empty blocks, one a device and as many as may be split off, and room for their spans."""
    size = max(_LEAST_SPANS, math.isqrt(instance.num_ops))
    # A half takes `size // 2` ops or more until it is full: no more blocks than that are split.
    count = instance.num_devices + instance.num_ops // (size // 2)
    blocks = np.zeros(count, BLOCK)
    blocks["before"] = blocks["after"] = -1
    return blocks, np.zeros((count, size), SPAN)


@compiled
def _fill_ranks(
    tasks: Array, in_edges: Array, mean_seconds: Array, latency: Float, per_byte: Float
) -> None:
    """Upward ranks, from the last op back: own mean time plus the longest way on."""
    for op in range(len(mean_seconds) - 1, -1, -1):
        rank = tasks[op].rank + mean_seconds[op]
        tasks[op].rank = rank
        for e in range(tasks[op].first_in, tasks[op + 1].first_in):
            source = in_edges[e].op
            way = rank
            if in_edges[e].bytes >= 0:  # else SAVED, which does not move
                way += latency + in_edges[e].bytes * per_byte
            tasks[source].rank = max(tasks[source].rank, way)


@compiled
def _place_all(state: HeftState, by_rank: Array) -> float:
    """Place the ops in the order of their ranks; returns the time of the schedule."""
    step, tasks, homes, unit_device = state.step, state.tasks, state.homes, state.unit_device
    total = 0.0
    used = np.int64(len(homes))
    for k in range(len(by_rank)):
        op = np.int64(by_rank[k])
        unit = step.unit_of[op]
        first, end = np.int64(0), np.int64(len(homes))
        is_fixed = unit_device[unit] >= 0
        if is_fixed:
            first, end = np.int64(unit_device[unit]), np.int64(unit_device[unit]) + 1
        # Smallest (lack of room, finish): lack is zero wherever the unit fits.
        best: Any = np.int64(-1)
        best_lack, best_start, best_finish = np.inf, 0.0, np.inf
        for device in range(first, end):
            kind = homes[device].type
            if step.unit_seconds[unit, kind] == np.inf:
                continue
            lack = 0.0 if is_fixed else max(0.0, step.unit_bytes[unit] - homes[device].room)
            if lack > best_lack:
                continue
            needed = step.seconds[op, kind]
            start = _earliest_start(state, device, _ready_on(state, op, device), needed)
            finish = start + needed
            if lack < best_lack or finish < best_finish:
                best, best_lack, best_start, best_finish = device, lack, start, finish
        if not is_fixed:
            unit_device[unit] = best
            homes[best].room -= step.unit_bytes[unit]
        tasks[op].device, tasks[op].start, tasks[op].finish = best, best_start, best_finish
        used = _insert(state, used, best, best_start, best_finish)
        total = max(total, best_finish)
    return total


@inlined
def _ready_on(state: HeftState, op: Int, device: Int) -> Float:
    step, tasks, ready = state.step, state.tasks, 0.0
    for e in range(tasks[op].first_in, tasks[op + 1].first_in):
        source, size = step.in_edges[e].op, step.in_edges[e].bytes
        if size < 0 and tasks[source].device != device:
            continue  # SAVED elsewhere
        moved = move_seconds(step, tasks[source].device, device, size)
        ready = max(ready, tasks[source].finish + moved)
    return ready


@inlined
def _find_busy(state: HeftState, device: Int, time: Float) -> tuple[Int, Int]:
    """Where the first span of a device that ends after `time` is; else behind its last one."""
    blocks = state.blocks
    block = np.int64(state.homes[device].last)
    while blocks[block].before >= 0 and blocks[blocks[block].before].finish > time:
        block = np.int64(blocks[block].before)
    low, high = np.int64(0), np.int64(blocks[block].count)
    while low < high:
        middle = (low + high) // 2
        if state.spans[block, middle].finish > time:
            high = middle
        else:
            low = middle + 1
    return block, low


@inlined
def _earliest_start(state: HeftState, device: Int, ready: Float, needed: Float) -> Float:
    """The earliest start not before `ready` in a gap of at least `needed`."""
    blocks, spans = state.blocks, state.spans
    block, at = _find_busy(state, device, ready)
    start = ready  # what is before `at` ends by then
    while block >= 0:
        if needed > blocks[block].gap + _ROUNDING * blocks[block].finish:
            start = max(start, blocks[block].finish)
        else:
            while at < blocks[block].count:
                if start + needed <= spans[block, at].start:
                    return start
                start = max(start, spans[block, at].finish)
                at += 1
        block, at = np.int64(blocks[block].after), np.int64(0)
    return start


@inlined
def _insert(state: HeftState, used: Int, device: Int, start: Float, finish: Float) -> Int:
    """Keep a span of a device; returns how many blocks are used now."""
    blocks, spans = state.blocks, state.spans
    block, at = _find_busy(state, device, start)
    if blocks[block].count == spans.shape[1]:
        _split(state, block, used, device)
        if at >= blocks[block].count:
            at -= np.int64(blocks[block].count)
            block = used
        used += 1
    for k in range(blocks[block].count, at, -1):
        spans[block, k] = spans[block, k - 1]
    spans[block, at].start, spans[block, at].finish = start, finish
    blocks[block].count += 1
    _measure(state, block)
    return used


@outlined
def _split(state: HeftState, block: Int, fresh: Int, device: Int) -> None:
    """Move the later half of a block into a fresh one behind it."""
    blocks = state.blocks
    half = blocks[block].count // 2
    for k in range(half, blocks[block].count):
        state.spans[fresh, k - half] = state.spans[block, k]
    blocks[fresh].count = blocks[block].count - half
    blocks[block].count = half
    blocks[fresh].before, blocks[fresh].after = block, blocks[block].after
    if blocks[block].after >= 0:
        blocks[blocks[block].after].before = fresh
    else:
        state.homes[device].last = fresh
    blocks[block].after = fresh
    _measure(state, block)
    _measure(state, fresh)


@outlined
def _measure(state: HeftState, block: Int) -> None:
    """The end of a block and its largest gap, that before its first span included."""
    blocks, spans = state.blocks, state.spans
    ended, gap = 0.0, 0.0
    if blocks[block].before >= 0:
        ended = blocks[blocks[block].before].finish
    for k in range(blocks[block].count):
        gap = max(gap, spans[block, k].start - ended)
        ended = spans[block, k].finish
    blocks[block].gap, blocks[block].finish = gap, ended
