"""Makes smaller instances of an instance: units united, and their ops merged where they run on end.

Units that exchange much for the little that they compute are united first, as in multilevel graph
partitioning (Karypis and Kumar, 1998). The ops of a united unit run on one device anyway; those
that stand side by side in a topological order, and are about equally urgent, become one op. What
stands side by side in a topological order can always be merged without making a cycle. The time of
a placement on the smaller instance is an upper bound of its time on the larger one in the order of
the starts: a merged op waits for all that its ops read and hands on when all of them are done.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.compiled import compiled
from meshwright.kernel.heap import ENTRY, pop, push
from meshwright.kernel.root import find_root
from meshwright.kernel.row import gather_rows
from meshwright.search.instance import Instance, edges_by, mean_transfer, mean_type_seconds

_SHRINK = 0.4
"""Units of a level for each of the level below it."""
_URGENT = 0.005
"""Part of the longest path. Ops that can wait no longer than this are equally urgent; beyond, those
whose time to wait is alike within a factor of two."""


_MOST_CLASSES = 1100
"""Of urgency in a unit: more than there are powers of two."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Level:
    """An instance, and what its ops and units are of the level below it."""

    instance: Instance
    op_of: Ints
    """The op here of each op below."""
    unit_of: Ints
    """The unit here of each unit below."""
    place: Ints
    """Of each op below in the topological order that ops were merged along."""

    def expand_order(self, order: Ints) -> Ints:
        """An order of the ops below, with merged ops in the place of the op that they became."""
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        expanded: Ints = np.lexsort((self.place, rank[self.op_of])).astype(np.int32)
        return expanded


def make_levels(
    instance: Instance, num_units: int, seed: int, device_of_unit: Ints | None = None
) -> list[Level]:
    """Levels above an instance, each smaller, down to about `num_units` units.

    With a placement given, only units on one device are united, so that it is one of every level.
    """
    levels: list[Level] = []
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
    held, times = instance.unit_bytes.copy(), instance.unit_seconds.copy()
    room = 0.5 * float(instance.cluster.memory_bytes.max())
    _match(
        start, pairs % max(1, num_units), weight, turn, label, size.copy(), held, times,
        cap * float(size.sum()), room, int(np.ceil((1 - _SHRINK) * num_units)),
        np.zeros(num_units, np.bool_),
    )  # fmt: skip
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    rank = np.empty(len(first), np.int32)
    rank[np.argsort(first)] = np.arange(len(first), dtype=np.int32)
    united: Ints = rank[inverse]
    return united


@compiled
def _match(
    start: Any, other: Any, weight: Any, turn: Any, label: Any, size: Any, held: Any, times: Any,
    cap: float, room: float, wanted: int, is_taken: Any,
) -> None:  # fmt: skip
    """Unite each unit with the neighbour that it exchanges most with for what both compute."""
    for k in range(len(turn)):
        unit = turn[k]
        if wanted <= 0:
            break
        if is_taken[unit]:
            continue
        best, best_value = np.int64(-1), -1.0
        for e in range(start[unit], start[unit + 1]):
            near = find_root(label, other[e])
            if near == unit or size[near] + size[unit] > cap or held[near] + held[unit] > room:
                continue
            value = weight[e] / (size[near] + size[unit] + 1e-300)
            if value > best_value and _can_run(times, unit, near):
                best, best_value = near, value
        if best >= 0:
            label[unit] = best
            size[best] += size[unit]
            held[best] += held[unit]
            for kind in range(times.shape[1]):
                times[best, kind] += times[unit, kind]
            is_taken[unit], is_taken[best] = True, True
            wanted -= 1
    for unit in range(len(label)):
        label[unit] = find_root(label, unit)


@compiled
def _can_run(times: Any, unit: Any, near: Any) -> bool:
    """Whether some device type can run both."""
    least = np.inf
    for kind in range(times.shape[1]):
        least = min(least, times[unit, kind] + times[near, kind])
    return least < np.inf


def merge_units(instance: Instance, unit_of_unit: Ints, *, keeps_ops: bool = False) -> Level:
    """The instance with units united (each one's new number is given) and their ops merged.

    `keeps_ops`: ops stay as they are.
    """
    unit_of = unit_of_unit[instance.unit_of]
    num_units = int(unit_of_unit.max(initial=-1)) + 1
    if keeps_ops:
        op_of = place = np.arange(instance.num_ops, dtype=np.int32)
    else:
        op_of, place = _merge_ops(instance, unit_of)
    return Level(
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
    place = np.zeros(num_ops, np.int32)
    _order_by_class(
        instance.out_start, instance.out_edges, head, code.astype(np.int32),
        np.diff(instance.in_start), np.full(len(classes), -1, np.int32),
        np.full(len(classes), -1, np.int32), np.full(num_ops, -1, np.int32),
        np.zeros(num_ops, ENTRY), place,
    )  # fmt: skip
    by_place = np.argsort(place)
    begins = np.ones(num_ops, np.bool_)
    begins[1:] = np.diff(code[by_place]) != 0
    op_of = np.empty(num_ops, np.int32)
    op_of[by_place] = np.cumsum(begins) - 1
    return op_of, place


def _contracted(
    instance: Instance, op_of: Ints, unit_of_unit: Ints, unit_of: Ints, num_units: int
) -> Instance:
    num_ops = int(op_of.max(initial=-1)) + 1
    unit_of_op = np.zeros(num_ops, np.int32)
    unit_of_op[op_of] = unit_of
    # An infinite time stays one: bincount adds it up like any other.
    seconds = _summed(instance.seconds, op_of, num_ops)
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
        unit_seconds=_summed(instance.unit_seconds, unit_of_unit, num_units),
        unit_bytes=np.bincount(
            unit_of_unit, weights=instance.unit_bytes, minlength=num_units
        ).astype(np.float64),
    )


def _summed(seconds: Floats, label: Ints, count: int) -> Floats:
    columns = [
        np.bincount(label, weights=seconds[:, kind], minlength=count)
        for kind in range(seconds.shape[1])
    ]
    return np.ascontiguousarray(np.stack(columns, axis=1), dtype=np.float64)


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
def _fill_slack(in_start: Any, in_edges: Any, seconds: Any, head: Any, slack: Any) -> None:
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
def _order_by_class(
    out_start: Any, out_edges: Any, head: Any, code: Any, waits_for: Any, first: Any, last: Any,
    after: Any, heap: Any, place: Any,
) -> None:  # fmt: skip
    """A topological order that stays in one class as long as it can, else takes the earliest op.

    Ready ops wait in a list of their class (`first`, `last`, `after`) and in a heap by head.
    """
    count: Any = 0
    done = 0
    for each in range(len(place)):
        place[each] = -1
        if waits_for[each] == 0:
            count = _make_ready(each, code, first, last, after, heap, head, count)
    now: Any = np.int64(-1)
    while done < len(place):
        op: Any = np.int64(-1)
        if now >= 0:
            while first[now] >= 0 and op < 0:
                if place[first[now]] < 0:
                    op = np.int64(first[now])
                first[now] = after[first[now]]
        if op < 0:
            op = np.int64(pop(heap, 0, count))
            count -= 1
            if place[op] >= 0:
                continue
        now = np.int64(code[op])
        place[op] = done
        done += 1
        for e in range(out_start[op], out_start[op + 1]):
            reader = np.int64(out_edges[e].op)
            waits_for[reader] -= 1
            if waits_for[reader] == 0:
                count = _make_ready(reader, code, first, last, after, heap, head, count)


@compiled
def _make_ready(
    op: Any, code: Any, first: Any, last: Any, after: Any, heap: Any, head: Any, count: Any
) -> Any:
    own = code[op]
    after[op] = -1
    if first[own] < 0:
        first[own] = op
    else:
        after[last[own]] = op
    last[own] = op
    push(heap, 0, count, head[op], op)
    return count + 1
