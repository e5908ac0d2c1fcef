"""Makes smaller instances of an instance: units united, and their ops merged where they run on end.

Units that exchange much for the little that they compute are united first, as in multilevel graph
partitioning (Karypis and Kumar, 1998). The ops of a united unit run on one device anyway; those
that stand side by side in a topological order, and are about equally urgent, become one op. What
stands side by side in a topological order can always be merged without making a cycle. The time of
a placement on the smaller instance is an upper bound of its time on the larger one in the order of
the starts: a merged op waits for all that its ops read and hands on when all of them are done.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from meshwright.array import Floats, Ints, places_in, sum_by, sum_rows
from meshwright.compiled import Array, Float, Int, compiled, inlined
from meshwright.kernel.heap import ENTRY, pop, push
from meshwright.kernel.root import find_root
from meshwright.kernel.row import gather_rows
from meshwright.search.instance import (
    Instance,
    StepArrays,
    edges_by,
    mean_transfer,
    mean_type_seconds,
)

_SHRINK = 0.4
"""Units of a level for each of the level below it."""
_URGENT = 0.005
"""Ops that can wait no longer than this part of the longest path are equally urgent; beyond, those
whose time to wait is alike within a factor of two."""
_MOST_CLASSES = 1100
"""More classes of urgency than a unit can have: more than there are powers of two."""


class MatchState(NamedTuple):
    """Units that are being united in pairs, for kernels."""

    start: Array
    """Where each unit's neighbours begin in `other`; one entry more than units."""
    other: Array
    """The neighbours of units, unit after unit."""
    weight: Array
    """The seconds that a unit and its neighbour exchange tensors for."""
    turn: Array
    """The units in the order in which they look for a neighbour."""
    label: Array
    """The unit that each has become part of, directly or by others."""
    size: Array
    """Mean seconds of each united unit."""
    held: Array
    """Bytes of each united unit."""
    times: Array
    """Seconds of each united unit (row) on each device type."""
    is_taken: Array
    """Whether a unit has been united with another."""


class OrderState(NamedTuple):
    """Ops that are being ordered by class, for kernels.

    Ready ops wait in a list of their class and in a heap by the earliest start.
    """

    head: Array
    """The earliest start of each op."""
    code: Array
    """The class of each op."""
    waits_for: Array
    """How many ops each op waits for still."""
    first: Array
    """The first ready op of each class, or -1."""
    last: Array
    """The last ready op of each class."""
    after: Array
    """The ready op after each op in the list of its class, or -1."""
    heap: Array
    """The ready ops by their earliest start."""
    place: Array
    """The place of each op in the order, -1 before it has one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CoarseLevel:
    """An instance, and what its ops and units are of the level below it."""

    instance: Instance
    op_of: Ints
    """The op here of each op below."""
    unit_of: Ints
    """The unit here of each unit below."""
    place: Ints
    """The place of each op below in the topological order that ops were merged along."""

    def expand_order(self, order: Ints) -> Ints:
        """An order of the ops below, with merged ops in the place of the op that they became."""
        rank = places_in(order, len(order), np.int64)
        return np.lexsort((self.place, rank[self.op_of])).astype(np.int32)


def make_levels(
    instance: Instance, num_units: int, seed: int, device_of_unit: Ints | None = None
) -> list[CoarseLevel]:
    """Levels above an instance, each smaller, down to about `num_units` units.

    With a placement given, only units on one device are united, so that it is one of every level.
    """
    levels: list[CoarseLevel] = []
    below = instance
    cap = 2.0 / num_units
    random = np.random.default_rng(seed)
    while below.num_units > num_units:
        unit_of = _unite(below, cap, random, device_of_unit)
        if unit_of.max(initial=-1) + 1 > 0.97 * below.num_units:
            break
        levels.append(merge_units(below, unit_of))
        if device_of_unit is not None:
            united = np.zeros(levels[-1].instance.num_units, np.int32)
            united[unit_of] = device_of_unit
            device_of_unit = united
        below = levels[-1].instance
    return levels


def _unite(
    instance: Instance, cap: float, random: np.random.Generator, device_of_unit: Ints | None
) -> Ints:
    """The united unit of each unit, numbered by their first op."""
    num_units = instance.num_units
    latency, per_byte = mean_transfer(instance)
    source = np.repeat(np.arange(instance.num_ops), np.diff(instance.out_start))
    ends = instance.unit_of[source].astype(np.int64)
    other = instance.unit_of[instance.out_edges["op"]].astype(np.int64)
    is_cut = ends != other
    if device_of_unit is not None:
        is_cut &= device_of_unit[ends] == device_of_unit[other]
    ends, other = ends[is_cut], other[is_cut]
    moved = latency + per_byte * instance.out_edges["bytes"][is_cut]
    key = np.concatenate((ends * num_units + other, other * num_units + ends))
    pairs, inverse = np.unique(key, return_inverse=True)
    weight = np.bincount(inverse, weights=np.concatenate((moved, moved)), minlength=len(pairs))
    start = np.searchsorted(pairs, np.arange(num_units + 1) * num_units).astype(np.int64)
    size = mean_type_seconds(instance.unit_seconds)
    # The smallest first, with some luck, so that another seed unites others.
    turn = np.argsort(size * random.uniform(0.7, 1.3, num_units), kind="stable")
    label = np.arange(num_units)
    room = 0.5 * float(instance.cluster.memory_bytes.max())
    state = MatchState(
        start, pairs % max(1, num_units), weight, turn, label, size.copy(),
        instance.unit_bytes.copy(), instance.unit_seconds.copy(), np.zeros(num_units, np.bool_),
    )  # fmt: skip
    _match(state, cap * float(size.sum()), room, int(np.ceil((1 - _SHRINK) * num_units)))
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    return places_in(np.argsort(first), len(first), np.int32)[inverse]


@compiled
def _match(state: MatchState, cap: Float, room: Float, wanted: Int) -> None:
    """Unite each unit with the neighbour that it exchanges most with for what both compute."""
    label, size, held = state.label, state.size, state.held
    for k in range(len(state.turn)):
        unit = state.turn[k]
        if wanted <= 0:
            break
        if state.is_taken[unit]:
            continue
        best, best_value = np.int64(-1), -1.0
        for e in range(state.start[unit], state.start[unit + 1]):
            near = find_root(label, state.other[e])
            if near == unit or size[near] + size[unit] > cap or held[near] + held[unit] > room:
                continue
            value = state.weight[e] / (size[near] + size[unit] + 1e-300)
            if value > best_value and _can_run(state.times, unit, near):
                best, best_value = near, value
        if best >= 0:
            label[unit] = best
            size[best] += size[unit]
            held[best] += held[unit]
            for kind in range(state.times.shape[1]):
                state.times[best, kind] += state.times[unit, kind]
            state.is_taken[unit], state.is_taken[best] = True, True
            wanted -= 1
    for unit in range(len(label)):
        label[unit] = find_root(label, unit)


@inlined
def _can_run(times: Array, unit: Int, near: Int) -> bool:
    """Whether some device type can run both."""
    least = np.inf
    for kind in range(times.shape[1]):
        least = min(least, times[unit, kind] + times[near, kind])
    return least < np.inf


def merge_units(instance: Instance, unit_of_unit: Ints, *, keeps_ops: bool = False) -> CoarseLevel:
    """The instance with units united (each one's new number is given) and their ops merged.

    `keeps_ops`: ops stay as they are.
    """
    unit_of = unit_of_unit[instance.unit_of]
    num_units = int(unit_of_unit.max(initial=-1)) + 1
    if keeps_ops:
        op_of = place = np.arange(instance.num_ops, dtype=np.int32)
    else:
        op_of, place = _merge_ops(instance, unit_of)
    return CoarseLevel(
        instance=_contracted(instance, op_of, unit_of_unit, unit_of, num_units),
        op_of=op_of,
        unit_of=unit_of_unit,
        place=place,
    )


def _merge_ops(instance: Instance, unit_of: Ints) -> tuple[Ints, Ints]:
    """The merged op of each op, and its place in the order that they were merged along."""
    num_ops = instance.num_ops
    head, slack = np.zeros(num_ops), np.zeros(num_ops)
    seconds = mean_type_seconds(instance.seconds)
    _fill_slack(instance.in_start, instance.in_edges, seconds, head, slack)
    path = float((head + slack).max(initial=0.0))
    # Classes of urgency: 0, then one for each factor of two.
    late = np.maximum(slack / max(_URGENT * path, 1e-300), 1.0)
    urgency = np.ceil(np.log2(late)).astype(np.int64)
    classes, code = np.unique(
        unit_of.astype(np.int64) * _MOST_CLASSES + urgency, return_inverse=True
    )
    place = np.full(num_ops, -1, np.int32)
    state = OrderState(
        head, code.astype(np.int32), np.diff(instance.in_start),
        np.full(len(classes), -1, np.int32), np.full(len(classes), -1, np.int32),
        np.full(num_ops, -1, np.int32), np.zeros(num_ops, ENTRY), place,
    )  # fmt: skip
    _order_by_class(instance.arrays, state)
    by_place = np.argsort(place)
    begins = np.ones(num_ops, np.bool_)
    begins[1:] = np.diff(code[by_place]) != 0
    op_of = np.empty(num_ops, np.int32)
    op_of[by_place] = np.cumsum(begins) - 1
    return op_of, place


def _contracted(
    instance: Instance, op_of: Ints, unit_of_unit: Ints, unit_of: Ints, num_units: int
) -> Instance:
    """The instance of merged ops and united units."""
    num_ops = int(op_of.max(initial=-1)) + 1
    unit_of_op = np.zeros(num_ops, np.int32)
    unit_of_op[op_of] = unit_of
    seconds = sum_rows(op_of, instance.seconds, num_ops)
    source = op_of[np.repeat(np.arange(instance.num_ops), np.diff(instance.out_start))]
    target = op_of[instance.out_edges["op"]]
    edges = _longest_edges(source, target, instance.out_edges["bytes"], num_ops)
    out_edges, out_start = edges_by(edges[0], edges[1], edges[2], num_ops)
    in_edges, in_start = edges_by(edges[1], edges[0], edges[2], num_ops)
    order, start = gather_rows(unit_of_op, num_units)
    return replace(
        instance,
        seconds=seconds,
        out_edges=out_edges,
        out_start=out_start,
        in_edges=in_edges,
        in_start=in_start,
        unit_of=unit_of_op,
        unit_start=start,
        unit_ops=order.astype(np.int32),
        unit_seconds=sum_rows(unit_of_unit, instance.unit_seconds, num_units),
        unit_bytes=sum_by(unit_of_unit, instance.unit_bytes, num_units),
    )


def _longest_edges(
    source: Ints, target: Ints, size: Floats, num_ops: int
) -> tuple[Ints, Ints, Floats]:
    """One edge for all between two ops, as long as the longest: they move at the same time."""
    is_cut = source != target
    key = source[is_cut].astype(np.int64) * num_ops + target[is_cut]
    order = np.argsort(key, kind="stable")
    pairs, first = np.unique(key[order], return_index=True)
    longest = (
        np.maximum.reduceat(size[is_cut][order], first) if len(first) else np.zeros(0, np.float64)
    )
    return (pairs // num_ops).astype(np.int32), (pairs % num_ops).astype(np.int32), longest


@compiled
def _fill_slack(
    in_start: Array, in_edges: Array, seconds: Array, head: Array, slack: Array
) -> None:
    """The earliest start of each op without transfers, and how much later it could start."""
    last = 0.0
    for op in range(len(head)):
        for e in range(in_start[op], in_start[op + 1]):
            source = in_edges[e].op
            head[op] = max(head[op], head[source] + seconds[source])
        last = max(last, head[op] + seconds[op])
    for op in range(len(head)):
        slack[op] = last
    for op in range(len(head) - 1, -1, -1):  # first the latest finish, then the time to wait
        slack[op] = slack[op] - seconds[op]
        for e in range(in_start[op], in_start[op + 1]):
            source = in_edges[e].op
            slack[source] = min(slack[source], slack[op])
        slack[op] = max(0.0, slack[op] - head[op])


@compiled
def _order_by_class(step: StepArrays, state: OrderState) -> None:
    """A topological order that stays in one class as long as it can, else takes the earliest op."""
    place, first = state.place, state.first
    count: Any = np.int64(0)
    done = 0
    for each in range(len(place)):
        if state.waits_for[each] == 0:
            count = _make_ready(state, each, count)
    now: Any = np.int64(-1)
    while done < len(place):
        op: Any = np.int64(-1)
        if now >= 0:
            while first[now] >= 0 and op < 0:
                if place[first[now]] < 0:
                    op = np.int64(first[now])
                first[now] = state.after[first[now]]
        if op < 0:
            op = np.int64(pop(state.heap, 0, count))
            count -= 1
            if place[op] >= 0:
                continue
        now = np.int64(state.code[op])
        place[op] = done
        done += 1
        for e in range(step.out_start[op], step.out_start[op + 1]):
            reader = np.int64(step.out_edges[e].op)
            state.waits_for[reader] -= 1
            if state.waits_for[reader] == 0:
                count = _make_ready(state, reader, count)


@inlined
def _make_ready(state: OrderState, op: Int, count: Int) -> Int:
    """Let a ready op wait; returns how many are in the heap."""
    own = state.code[op]
    state.after[op] = -1
    if state.first[own] < 0:
        state.first[own] = op
    else:
        state.after[state.last[own]] = op
    state.last[own] = op
    push(state.heap, 0, count, state.head[op], op)
    return count + 1
