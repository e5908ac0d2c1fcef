"""Times a placement: ops are taken in a given order, each into the earliest gap that it fits in.

The order is topological, most urgent first: by the longest way to the end of the step, transfers
between devices included. So an op that much waits for is never delayed by one that little waits
for, and the latter (the gradients of weights, in a training step) fill the gaps that waiting for
transfers leaves. HEFT takes ops in the same way (Topcuoglu, Hariri, Wu, IEEE TPDS 2002), but
decides devices as it goes. The schedules are active, and among the active schedules of a placement
there is an optimal one (for one of the orders); transfers take their time alone, as in the papers.
"""

from typing import NamedTuple

import numpy as np

from meshwright.array import Ints, Longs, places_in
from meshwright.compiled import Array, Float, Int, compiled, inlined
from meshwright.search.instance import Instance, StepArrays
from meshwright.search.order.list_schedule import move_seconds

OP = np.dtype(
    [
        ("start", np.float64),
        ("finish", np.float64),
        ("way", np.float64),  # the longest way after it on the fastest devices, no transfers
        ("tail", np.float64),  # the longest way from its start, transfers included
        ("device", np.int32),
        ("cause", np.int32),  # the op that it starts after, on its device or elsewhere; -1: none
        ("first_in", np.int32),
        ("first_out", np.int32),
    ],
    align=True,
)
"""One op; arrays of it have one entry more than ops, to end the last one's edges."""

BUSY = np.dtype(
    [
        ("start", np.float64),
        ("end", np.float64),
        ("before", np.int32),  # its neighbours on its device; -1: none
        ("after", np.int32),
        ("last_op", np.int32),
    ],
    align=True,
)
"""A time in which a device runs without a gap. The first of each device is empty, at time zero."""


class DecodeState(NamedTuple):
    """What a placement is timed with, for kernels."""

    step: StepArrays
    ops: Array
    """An OP for each op, and one more."""
    order: Array
    """The ops in the order in which they are taken."""
    busy: Array
    """A BUSY for each device, then those that are made on the way."""
    last: Array
    """The last entry of `busy` of each device."""


class OrderDecoder:
    """Times placements of one instance; the arrays of `state` hold what was decoded last."""

    def __init__(self, instance: Instance) -> None:
        num_ops, num_devices = instance.num_ops, instance.num_devices
        self.instance = instance
        self.ops = np.zeros(num_ops + 1, OP)
        self.ops["first_in"], self.ops["first_out"] = instance.in_start, instance.out_start
        self.order = np.zeros(num_ops, np.int32)
        self.state = DecodeState(
            instance.arrays, self.ops, self.order, np.zeros(num_ops + num_devices, BUSY),
            np.zeros(num_devices, np.int32),
        )  # fmt: skip
        _fill_ways(self.ops, instance.out_edges, instance.seconds.min(axis=1))

    def rank(self, device_of_op: Ints) -> Ints:
        """The most urgent ops first, under a placement; it becomes the decoder's."""
        self.ops["device"][:-1] = device_of_op
        _fill_tails(self.state)
        # An op of no time is as urgent as the one after it: the sort is stable, so that the order
        # stays topological.
        return np.argsort(-self.ops["tail"][:-1], kind="stable").astype(np.int32)

    def seconds(self, device_of_op: Ints, order: Ints, limit: float = np.inf) -> float:
        """The time of a placement under an order; leaves the starts in `ops`.

        Infinity as soon as it must exceed `limit`.
        """
        self.ops["device"][:-1] = device_of_op
        self.order[:] = order
        return decode(self.state, limit)

    def start_order(self) -> Ints:
        """The ops by start in what was decoded last: what devices run, in a topological order."""
        ops = self.ops[:-1]
        place = places_in(self.order, len(ops), np.int32)
        # An op of no time may start with the next one on its device: it finishes first.
        sorted_ops: Longs = np.lexsort((place, ops["finish"], ops["start"]))
        return sorted_ops.astype(np.int32)


@compiled
def _fill_ways(ops: Array, out_edges: Array, fastest: Array) -> None:
    """The longest way after each op when nothing has to be moved."""
    for op in range(len(ops) - 2, -1, -1):
        way = 0.0
        for e in range(ops[op].first_out, ops[op + 1].first_out):
            reader = out_edges[e].op
            if out_edges[e].bytes >= 0.0:
                way = max(way, fastest[reader] + ops[reader].way)
        ops[op].way = way


@compiled
def _fill_tails(state: DecodeState) -> None:
    """The longest way from each op's start to the end, by the devices where ops are."""
    ops, step = state.ops, state.step
    for op in range(len(ops) - 2, -1, -1):
        device = ops[op].device
        way = 0.0
        for e in range(ops[op].first_out, ops[op + 1].first_out):
            reader = step.out_edges[e].op
            moved = move_seconds(step, device, ops[reader].device, step.out_edges[e].bytes)
            way = max(way, max(0.0, moved) + ops[reader].tail)
        ops[op].tail = way + step.seconds[op, step.type_of[device]]


@compiled
def decode(state: DecodeState, limit: Float) -> float:
    """The time of the placement, or infinity as soon as it must exceed `limit`."""
    step, ops, busy = state.step, state.ops, state.busy
    num_devices = len(step.type_of)
    for device in range(num_devices):
        state.last[device] = device
        busy[device].start, busy[device].end = 0.0, 0.0
        busy[device].before, busy[device].after, busy[device].last_op = -1, -1, -1
    count, total = np.int64(num_devices), 0.0
    for k in range(len(state.order)):
        op = np.int64(state.order[k])
        device = ops[op].device
        ready, cause = 0.0, np.int64(-1)
        for e in range(ops[op].first_in, ops[op + 1].first_in):
            source = np.int64(step.in_edges[e].op)
            size = step.in_edges[e].bytes
            if size < 0.0 and ops[source].device != device:
                continue  # SAVED elsewhere
            moved = move_seconds(step, ops[source].device, device, size)
            arrival = ops[source].finish + moved
            if arrival > ready or cause < 0:
                ready, cause = max(ready, arrival), source
        needed = step.seconds[op, step.type_of[device]]
        # Back to the last busy time that ends by `ready`, then on to a gap that is long enough.
        at, after = np.int64(state.last[device]), np.int64(-1)
        while busy[at].end > ready:
            after = at
            at = np.int64(busy[at].before)
        start = ready
        while after >= 0 and start + needed > busy[after].start:
            start, at = busy[after].end, after
            cause = np.int64(busy[after].last_op)
            after = np.int64(busy[after].after)
        finish = start + needed
        if not finish + ops[op].way <= limit:
            return np.inf
        ops[op].start, ops[op].finish, ops[op].cause = start, finish, cause
        total = max(total, finish)
        count = _occupy(state, op, at, after, count)
    return total


@inlined
def _occupy(state: DecodeState, op: Int, at: Int, after: Int, count: Int) -> Int:
    """Make an op's device busy between two of its busy times; returns how many are in use."""
    busy, last, device = state.busy, state.last, state.ops[op].device
    start, finish = state.ops[op].start, state.ops[op].finish
    joins_before = at >= len(last) and busy[at].end == start
    joins_after = after >= 0 and busy[after].start == finish
    if joins_before and joins_after:
        busy[at].end, busy[at].last_op = busy[after].end, busy[after].last_op
        further = np.int64(busy[after].after)
        busy[at].after = further
        if further >= 0:
            busy[further].before = at
        else:
            last[device] = at
    elif joins_before:
        busy[at].end, busy[at].last_op = finish, op
    elif joins_after:
        busy[after].start = start
    else:
        busy[count].start, busy[count].end, busy[count].last_op = start, finish, op
        busy[count].before, busy[count].after = at, after
        busy[at].after = count
        if after >= 0:
            busy[after].before = count
        else:
            last[device] = count
        count += 1
    return count
