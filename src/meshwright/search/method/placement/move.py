"""The compiled walk over placements: proposes moves of units, times them, keeps some.

Simulated annealing (Kirkpatrick, Gelatt, Vecchi, Science 1983) with moves made for training steps.
A unit is what moves as one; units stand in a sequence, by how early their first op is urgent, in
which neighbours are neighbours in the network, too. Good placements of a deep network give runs of
that sequence to one device, so most moves change runs, not single units.
"""

from typing import Any

import numpy as np

from meshwright.compiled import compiled, inlined, outlined
from meshwright.kernel.draw import below, exponential, geometric, uniform
from meshwright.search.order.decode import decode

UNIT = np.dtype(
    [
        ("bytes", np.float64),
        ("device", np.int32),
        ("best_device", np.int32),
        ("old_device", np.int32),  # before the move that is tried
        ("first", np.int32),  # its ops: from here to the next unit's
        ("place", np.int32),  # in the sequence
    ],
    align=True,
)
"""One unit; arrays of it have one entry more than units."""

TURN = np.dtype(
    [
        ("place", np.int32),  # of the op with this number in the order
        ("kept", np.int32),  # the op that had this place before the move that is tried
        ("best", np.int32),  # the op that has this place in the best order
        ("is_pulled", np.bool_),  # the op with this number
    ],
    align=True,
)
"""One op's turn, and one place of the order."""

ROOM = np.dtype([("used", np.float64), ("limit", np.float64)], align=True)
"""Memory of one device."""

NOW, BEST, HOT, COLD = range(4)
"""Places in the array of times: of the present placement, of the best; first and last temperature,
as seconds that a step may get longer by and be accepted once in e times."""
TRIED, ACCEPTED, IMPROVED, PLANNED, PATH = range(5)
"""Places in the array of counts; PLANNED: how many moves the cooling is for; PATH: how many ops
are on the longest path of the present placement."""

_RUN = 3.0
"""Mean length of the runs of units that are moved, beyond the first."""
_DRIFT = 1e-3
"""Bytes. Sums drift by less than this as units come and go."""
_PULLS = 0.15
"""Part of the moves that change the order instead of devices."""
_ON_PATH = 0.5
"""Part of the moves that begin at an op on the longest path: others rarely shorten the step."""


@compiled
def walk(
    ops: Any, order: Any, busy: Any, last: Any, type_of: Any, in_edges: Any, seconds: Any,
    latency: Any, bandwidth: Any, units: Any, unit_of: Any, unit_ops: Any, unit_seconds: Any,
    sequence: Any, moved: Any, path: Any, turns: Any, rooms: Any, times: Any, counts: Any,
    random: Any, steps: int,
) -> None:  # fmt: skip
    """Try `steps` moves."""
    for k in range(len(order)):
        turns[order[k]].place = k
    for _ in range(steps):
        cooled = counts[TRIED] / max(1, counts[PLANNED])
        heat = times[HOT] * (times[COLD] / times[HOT]) ** cooled
        counts[TRIED] += 1
        # Metropolis' rule, drawn first, so that decoding can stop as soon as it must be too long.
        limit = times[NOW] + exponential(random, heat)
        count, lack, low, high = np.int64(0), 0.0, np.int64(0), np.int64(0)
        if uniform(random) < _PULLS:
            low, high = _pull(ops, order, in_edges, turns, path, counts, random)
        else:
            count = _propose(units, unit_of, sequence, moved, path, counts, type_of, random)
            lack = _apply(ops, units, unit_ops, unit_seconds, type_of, rooms, moved, count)
        total = np.inf
        if count + high > 0 and not lack > _DRIFT:
            if lack < -_DRIFT:
                limit = np.inf  # what fits better is taken whatever it costs
            total = decode(
                ops, order, busy, last, type_of, in_edges, seconds, latency, bandwidth, limit
            )
        if not total <= limit or total == np.inf:
            _undo(ops, units, unit_ops, rooms, moved, count)
            for k in range(low, high):
                order[k] = turns[k].kept
                turns[order[k]].place = k
            continue
        counts[ACCEPTED] += 1
        times[NOW] = total
        trace(ops, path, counts)
        if total < times[BEST] or lack < -_DRIFT:
            times[BEST] = total
            counts[IMPROVED] += 1
            for u in range(len(units) - 1):
                units[u].best_device = units[u].device
            for k in range(len(order)):
                turns[k].best = order[k]


@outlined
def _pull(
    ops: Any, order: Any, in_edges: Any, turns: Any, path: Any, counts: Any, random: Any
) -> tuple[Any, Any]:
    """Let an op of the longest path that waits for its device run before the op it waits for.

    With it what it reads comes forward. Returns the part of the order that has changed, from where
    to where it ends; (0, 0) if none has.
    """
    if counts[PATH] < 2:
        return np.int64(0), np.int64(0)
    k = below(random, counts[PATH] - 1)
    op, cause = np.int64(path[k]), np.int64(path[k + 1])
    low, high = np.int64(turns[cause].place), np.int64(turns[op].place) + 1
    if ops[op].device != ops[cause].device or low >= high:
        return np.int64(0), np.int64(0)
    for k in range(low, high):
        turns[k].kept = order[k]
        turns[order[k]].is_pulled = False
    turns[op].is_pulled = True
    num_pulled = np.int64(0)
    for k in range(high - 1, low - 1, -1):
        other = np.int64(order[k])
        if turns[other].is_pulled:
            num_pulled += 1
            for e in range(ops[other].first_in, ops[other + 1].first_in):
                turns[in_edges[e].op].is_pulled = True
    if turns[cause].is_pulled:  # it is read, if only by the way
        return np.int64(0), np.int64(0)
    first, second = low, low + num_pulled
    for k in range(low, high):
        other = np.int64(turns[k].kept)
        at = first if turns[other].is_pulled else second
        first += turns[other].is_pulled
        second += not turns[other].is_pulled
        order[at] = other
        turns[other].place = at
    return low, high


@outlined
def _propose(
    units: Any, unit_of: Any, sequence: Any, moved: Any, path: Any, counts: Any, type_of: Any,
    random: Any,
) -> Any:  # fmt: skip
    """Give some units other devices; returns how many, their numbers in `moved`."""
    num_units, num_devices = len(sequence), len(type_of)
    unit = np.int64(sequence[below(random, num_units)])
    if counts[PATH] > 0 and uniform(random) < _ON_PATH:
        unit = np.int64(unit_of[path[below(random, counts[PATH])]])
    place, device = np.int64(units[unit].place), np.int64(units[unit].device)
    target = below(random, num_devices - 1)
    if target >= device:
        target += 1
    kind = uniform(random)
    if kind < 0.2:
        return _move_run(units, sequence, moved, place, place + 1, target)
    if kind < 0.45:
        length = geometric(random, _RUN)
        return _move_run(units, sequence, moved, place, place + length, target)
    if kind < 0.75:
        return _shift_border(units, sequence, moved, place, random)
    if kind < 0.85:
        return _exchange(units, sequence, moved, place, device, target, random)
    other = np.int64(sequence[below(random, num_units)])
    return _swap(units, moved, unit, other)


@inlined
def _set(units: Any, moved: Any, unit: Any, device: Any, count: Any) -> Any:
    if units[unit].device == device:
        return count
    units[unit].old_device = units[unit].device
    units[unit].device = device
    moved[count] = unit
    return count + 1


@inlined
def _move_run(units: Any, sequence: Any, moved: Any, first: Any, end: Any, device: Any) -> Any:
    """Units of the sequence from one place to another go to a device."""
    count = np.int64(0)
    for k in range(max(first, 0), min(end, len(sequence))):
        count = _set(units, moved, np.int64(sequence[k]), device, count)
    return count


@inlined
def _shift_border(units: Any, sequence: Any, moved: Any, place: Any, random: Any) -> Any:
    """The next border between two devices in the sequence moves, either way."""
    border = place + 1
    while (
        border < len(sequence)
        and units[sequence[border]].device == units[sequence[border - 1]].device
    ):
        border += 1
    if border >= len(sequence):
        return np.int64(0)
    length = geometric(random, _RUN)
    left = np.int64(units[sequence[border - 1]].device)
    right = np.int64(units[sequence[border]].device)
    if uniform(random) < 0.5:
        return _move_run(units, sequence, moved, border, border + length, left)
    return _move_run(units, sequence, moved, border - length, border, right)


@inlined
def _exchange(
    units: Any, sequence: Any, moved: Any, place: Any, device: Any, other: Any, random: Any
) -> Any:
    """Two devices change places from here to another place of the sequence, or to its end."""
    end = np.int64(len(sequence)) - 1
    if uniform(random) < 0.7:
        end = below(random, len(sequence))
    count = np.int64(0)
    for k in range(min(place, end), max(place, end) + 1):
        unit = np.int64(sequence[k])
        if units[unit].device == device:
            count = _set(units, moved, unit, other, count)
        elif units[unit].device == other:
            count = _set(units, moved, unit, device, count)
    return count


@inlined
def _swap(units: Any, moved: Any, unit: Any, other: Any) -> Any:
    device = np.int64(units[unit].device)
    count = _set(units, moved, unit, np.int64(units[other].device), np.int64(0))
    if count > 0:
        count = _set(units, moved, other, device, count)
    return count


@outlined
def _apply(
    ops: Any, units: Any, unit_ops: Any, unit_seconds: Any, type_of: Any, rooms: Any, moved: Any,
    count: Any,
) -> float:  # fmt: skip
    """Move the ops and the bytes of the moved units; by how much more is lacking now."""
    before = _lacking(rooms)
    cannot_run = False
    for k in range(count):
        unit = np.int64(moved[k])
        device = units[unit].device
        cannot_run |= unit_seconds[unit, type_of[device]] == np.inf
        rooms[units[unit].old_device].used -= units[unit].bytes
        rooms[device].used += units[unit].bytes
        for u in range(units[unit].first, units[unit + 1].first):
            ops[unit_ops[u]].device = device
    if cannot_run:
        return np.inf
    return _lacking(rooms) - before


@inlined
def _lacking(rooms: Any) -> float:
    lack = 0.0
    for device in range(len(rooms)):
        lack += max(0.0, rooms[device].used - rooms[device].limit)
    return lack


@outlined
def _undo(ops: Any, units: Any, unit_ops: Any, rooms: Any, moved: Any, count: Any) -> None:
    for k in range(count):
        unit = np.int64(moved[k])
        rooms[units[unit].device].used -= units[unit].bytes
        units[unit].device = units[unit].old_device
        rooms[units[unit].device].used += units[unit].bytes
        for u in range(units[unit].first, units[unit + 1].first):
            ops[unit_ops[u]].device = units[unit].device


@compiled
def trace(ops: Any, path: Any, counts: Any) -> None:
    """The ops of the longest path, from the last back."""
    op = np.int64(0)
    for other in range(len(ops) - 1):
        if ops[other].finish > ops[op].finish:
            op = np.int64(other)
    count = np.int64(0)
    # An order from elsewhere may lead round in a circle by what is SAVED.
    while op >= 0 and count < len(path):
        path[count] = op
        count += 1
        op = np.int64(ops[op].cause)
    counts[PATH] = count
