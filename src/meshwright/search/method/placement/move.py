"""The compiled walk over placements: proposes moves of units, times them, keeps some.

Simulated annealing (Kirkpatrick, Gelatt, Vecchi, Science 1983) with moves made for training steps.
A unit is what moves as one; units stand in a sequence, by how early their first op is urgent, in
which neighbours are neighbours in the network, too. Good placements of a deep network give runs of
that sequence to one device, so most moves change runs, not single units.
"""

from typing import NamedTuple

import numpy as np

from meshwright.compiled import Array, Float, Int, compiled, inlined, outlined
from meshwright.kernel.draw import below, exponential, geometric, uniform
from meshwright.search.order.decode import DecodeState, decode

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

PROGRESS = np.dtype(
    [
        ("now", np.float64),  # time of the present placement
        ("best", np.float64),
        ("hot", np.float64),  # first temperature: seconds that a step may get longer by and be
        ("cold", np.float64),  # accepted once in e times; and the last one
        ("tried", np.int64),
        ("accepted", np.int64),
        ("improved", np.int64),
        ("planned", np.int64),  # how many moves the cooling is for
        ("path_length", np.int64),  # ops on the longest path of the present placement
    ],
    align=True,
)
"""Where a walk stands."""

_RUN = 3.0
"""Mean length of the runs of units that are moved, beyond the first."""
_DRIFT = 1e-3
"""Bytes. Sums drift by less than this as units come and go."""
_PULLS = 0.15
"""Part of the moves that change the order instead of devices."""
_ON_PATH = 0.5
"""Part of the moves that begin at an op on the longest path: others rarely shorten the step."""


class AnnealState(NamedTuple):
    """A walk over placements, for kernels."""

    decoding: DecodeState
    units: Array
    """A UNIT for each unit, and one more."""
    sequence: Array
    """The units by how early their first op is urgent."""
    moved: Array
    """The units that the move which is tried gives another device."""
    path: Array
    """The ops of the longest path of the present placement, from the last back."""
    turns: Array
    """A TURN for each op."""
    rooms: Array
    """A ROOM for each device."""
    progress: Array
    """One entry that says where the walk stands."""
    random: Array
    """The state of the random numbers, one word."""


@compiled
def anneal(state: AnnealState, steps: Int) -> None:
    """Try `steps` moves, from the present placement and temperature on."""
    order, units, turns, progress = state.decoding.order, state.units, state.turns, state.progress
    for k in range(len(order)):
        turns[order[k]].place = k
    for _ in range(steps):
        cooled = progress[0].tried / max(1, progress[0].planned)
        heat = progress[0].hot * (progress[0].cold / progress[0].hot) ** cooled
        progress[0].tried += 1
        # Metropolis' rule, drawn first, so that decoding can stop as soon as it must be too long.
        limit = progress[0].now + exponential(state.random, heat)
        count, lack, low, high = np.int64(0), 0.0, np.int64(0), np.int64(0)
        if uniform(state.random) < _PULLS:
            low, high = _pull(state)
        else:
            count = _propose(state)
            lack = _apply(state, count)
        total = np.inf
        if count + high > 0 and not lack > _DRIFT:
            if lack < -_DRIFT:
                limit = np.inf  # what fits better is taken whatever it costs
            total = decode(state.decoding, limit)
        if not total <= limit or total == np.inf:
            _undo(state, count)
            for k in range(low, high):
                order[k] = turns[k].kept
                turns[order[k]].place = k
            continue
        progress[0].accepted += 1
        progress[0].now = total
        trace_path(state)
        if total < progress[0].best or lack < -_DRIFT:
            progress[0].best = total
            progress[0].improved += 1
            for u in range(len(units) - 1):
                units[u].best_device = units[u].device
            for k in range(len(order)):
                turns[k].best = order[k]


@outlined
def _pull(state: AnnealState) -> tuple[Int, Int]:
    """Let an op of the longest path that waits for its device run before the op it waits for.

    With it what it reads comes forward. Returns the part of the order that has changed, from where
    to where it ends; (0, 0) if none has.
    """
    step, ops, order = state.decoding.step, state.decoding.ops, state.decoding.order
    turns, length = state.turns, state.progress[0].path_length
    if length < 2:
        return np.int64(0), np.int64(0)
    k = below(state.random, length - 1)
    op, cause = np.int64(state.path[k]), np.int64(state.path[k + 1])
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
                turns[step.in_edges[e].op].is_pulled = True
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
def _propose(state: AnnealState) -> Int:
    """Give some units other devices; returns how many, their numbers in `moved`."""
    sequence, random, length = state.sequence, state.random, state.progress[0].path_length
    num_units, num_devices = len(sequence), len(state.rooms)
    unit = np.int64(sequence[below(random, num_units)])
    if length > 0 and uniform(random) < _ON_PATH:
        unit = np.int64(state.decoding.step.unit_of[state.path[below(random, length)]])
    place, device = np.int64(state.units[unit].place), np.int64(state.units[unit].device)
    target = below(random, num_devices - 1)
    if target >= device:
        target += 1
    kind = uniform(random)
    if kind < 0.2:
        return _move_run(state, place, place + 1, target)
    if kind < 0.45:
        return _move_run(state, place, place + geometric(random, _RUN), target)
    if kind < 0.75:
        return _shift_border(state, place)
    if kind < 0.85:
        return _exchange(state, place, device, target)
    return _swap(state, unit, np.int64(sequence[below(random, num_units)]))


@inlined
def _set_device(state: AnnealState, unit: Int, device: Int, count: Int) -> Int:
    """Give a unit a device; returns how many units have got another one so far."""
    if state.units[unit].device == device:
        return count
    state.units[unit].old_device = state.units[unit].device
    state.units[unit].device = device
    state.moved[count] = unit
    return count + 1


@inlined
def _move_run(state: AnnealState, first: Int, end: Int, device: Int) -> Int:
    """Units of the sequence from one place to another go to a device."""
    count = np.int64(0)
    for k in range(max(first, 0), min(end, len(state.sequence))):
        count = _set_device(state, np.int64(state.sequence[k]), device, count)
    return count


@inlined
def _shift_border(state: AnnealState, place: Int) -> Int:
    """The next border between two devices in the sequence moves, either way."""
    units, sequence, random = state.units, state.sequence, state.random
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
        return _move_run(state, border, border + length, left)
    return _move_run(state, border - length, border, right)


@inlined
def _exchange(state: AnnealState, place: Int, device: Int, other: Int) -> Int:
    """Two devices change places from here to another place of the sequence, or to its end."""
    end = np.int64(len(state.sequence)) - 1
    if uniform(state.random) < 0.7:
        end = below(state.random, len(state.sequence))
    count = np.int64(0)
    for k in range(min(place, end), max(place, end) + 1):
        unit = np.int64(state.sequence[k])
        if state.units[unit].device == device:
            count = _set_device(state, unit, other, count)
        elif state.units[unit].device == other:
            count = _set_device(state, unit, device, count)
    return count


@inlined
def _swap(state: AnnealState, unit: Int, other: Int) -> Int:
    """Two units change their devices."""
    device = np.int64(state.units[unit].device)
    count = _set_device(state, unit, np.int64(state.units[other].device), np.int64(0))
    if count > 0:
        count = _set_device(state, other, device, count)
    return count


@outlined
def _apply(state: AnnealState, count: Int) -> Float:
    """Move the ops and the bytes of the moved units; by how much more is lacking now."""
    units, rooms, step = state.units, state.rooms, state.decoding.step
    before = _lacking(rooms)
    cannot_run = False
    for k in range(count):
        unit = np.int64(state.moved[k])
        device = units[unit].device
        cannot_run |= step.unit_seconds[unit, step.type_of[device]] == np.inf
        rooms[units[unit].old_device].used -= units[unit].bytes
        rooms[device].used += units[unit].bytes
        _move_ops(state, unit)
    if cannot_run:
        return np.inf
    return _lacking(rooms) - before


@inlined
def _move_ops(state: AnnealState, unit: Int) -> None:
    """Let the ops of a unit run on its device."""
    for u in range(state.units[unit].first, state.units[unit + 1].first):
        state.decoding.ops[state.decoding.step.unit_ops[u]].device = state.units[unit].device


@inlined
def _lacking(rooms: Array) -> Float:
    lack = 0.0
    for device in range(len(rooms)):
        lack += max(0.0, rooms[device].used - rooms[device].limit)
    return lack


@outlined
def _undo(state: AnnealState, count: Int) -> None:
    """Give the moved units back to the devices they came from."""
    units, rooms = state.units, state.rooms
    for k in range(count):
        unit = np.int64(state.moved[k])
        rooms[units[unit].device].used -= units[unit].bytes
        units[unit].device = units[unit].old_device
        rooms[units[unit].device].used += units[unit].bytes
        _move_ops(state, unit)


@compiled
def trace_path(state: AnnealState) -> None:
    """Find the ops of the longest path, from the last back."""
    ops, path = state.decoding.ops, state.path
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
    state.progress[0].path_length = count
