"""Searches the placements of an instance on several levels, from coarse to fine.

The coarsest level has some dozens of units: first placements are compared and walked from there.
Each level below begins at the best of the level above it and walks on, cooler. Rounds after the
first begin at the best placement so far, with levels that unite only what is on one device in it.

First placements are one device, the network in stripes, and list scheduling by several ranks.
"""

from collections.abc import Callable, Iterator

import numpy as np

from meshwright.array import Bools, Floats, Ints
from meshwright.search.instance import Instance, mean_transfer
from meshwright.search.method.placement.level import CoarseLevel, make_levels
from meshwright.search.method.placement.pattern import find_kinds, sweep_kinds
from meshwright.search.method.placement.placement_walk import Placed, PlacementWalk
from meshwright.search.order.heft import schedule_heft

_COARSEST_UNITS = 40
_HOT, _COLD = 5e-3, 1e-4
"""Temperatures at the coarsest level, as parts of the step's time."""
_COOLING = 0.4
"""The first temperature of a level is this part of that of the level above it."""
_WORK = 4_000_000
"""Ops decoded a level at most: what keeps the time of a round linear in the ops."""
_MOST_MOVES, _LEAST_MOVES = 8_000, 64
_SLICES, _SLICE_MOVES = 8, 32
"""Times that a level's walk returns, to rank ops again and to hear the clock and Ctrl-C, at most;
and moves between two of them, at least."""
_STARTS = 3
"""First placements that are walked from."""


def search_rounds(
    instance: Instance, limits: Floats, seed: int, is_over: Callable[[], bool],
    device_of_unit: Ints | None = None,
) -> Iterator[Placed]:  # fmt: skip
    """The best placement after each round, for ever; cut short where `is_over` says so.

    Begins at a placement if one is given.
    """
    if device_of_unit is None:
        best = _first_round(instance, limits, seed, is_over)
        yield best
    else:
        best = PlacementWalk(instance, limits, seed).time(device_of_unit)
    number = 1
    while True:
        best = _next_round(instance, limits, seed + number, best, is_over)
        yield best
        number += 1


def _first_round(
    instance: Instance, limits: Floats, seed: int, is_over: Callable[[], bool]
) -> Placed:
    levels = make_levels(instance, _COARSEST_UNITS, seed)
    walk = PlacementWalk(levels[-1].instance if levels else instance, limits, seed)
    starts = [walk.time(each) for each in first_placements(walk.instance, walk.sequence, limits)]
    starts.sort(key=lambda each: each.rank)
    walked = [starts[0]]
    moves = _num_moves(walk.instance)
    for start in _distinct(starts)[:_STARTS]:
        walk.begin(start, moves, _HOT, _COLD)
        walked.append(_run(walk, moves, is_over))
    best = min(walked, key=lambda each: each.rank)
    return _refine(instance, levels, best, limits, seed, _HOT * _COOLING, is_over)


def _next_round(
    instance: Instance, limits: Floats, seed: int, best: Placed, is_over: Callable[[], bool]
) -> Placed:
    """Up the levels with a placement and down again."""
    levels = make_levels(instance, _COARSEST_UNITS, seed, best.device_of_unit)
    device_of_unit = best.device_of_unit
    for level in levels:
        united = np.zeros(level.instance.num_units, np.int32)
        united[level.unit_of] = device_of_unit
        device_of_unit = united
    walk = PlacementWalk(levels[-1].instance if levels else instance, limits, seed)
    moves = _num_moves(walk.instance)
    walk.begin(walk.time(device_of_unit) if levels else best, moves, _HOT, _COLD)
    found = _run(walk, moves, is_over)
    found = _refine(instance, levels, found, limits, seed, _HOT * _COOLING, is_over)
    return min(best, found, key=lambda each: each.rank)


def _refine(
    instance: Instance, levels: list[CoarseLevel], placed: Placed, limits: Floats, seed: int,
    hot: float, is_over: Callable[[], bool],
) -> Placed:  # fmt: skip
    """Carry a placement of the uppermost level down to the instance, and walk on each level."""
    for number in range(len(levels) - 1, -1, -1):
        level = levels[number]
        below = levels[number - 1].instance if number else instance
        walk = PlacementWalk(below, limits, seed + number)
        device_of_unit = placed.device_of_unit[level.unit_of]
        placed = walk.best_order(walk.time(device_of_unit, level.expand_order(placed.order)))
        if number == 0:
            placed = sweep_kinds(walk, placed, find_kinds(below), is_over)
        hot = max(hot, 2 * _COLD)
        moves = _num_moves(below)
        walk.begin(placed, moves, hot, _COLD)
        placed = _run(walk, moves, is_over)
        hot *= _COOLING
    return placed


def _run(walk: PlacementWalk, moves: int, is_over: Callable[[], bool]) -> Placed:
    found = walk.run(0)
    slices = int(np.clip(moves // _SLICE_MOVES, 1, _SLICES))
    for _ in range(slices):
        if is_over():
            break
        found = walk.run(-(-moves // slices))
    return found


def _num_moves(instance: Instance) -> int:
    return int(np.clip(_WORK / max(1, instance.num_ops), _LEAST_MOVES, _MOST_MOVES))


def _distinct(placements: list[Placed]) -> list[Placed]:
    """The placements without those that take exactly as long as the one before."""
    return [
        each
        for number, each in enumerate(placements)
        if number == 0 or each.seconds != placements[number - 1].seconds
    ]


_STRIPES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)
_WEIGHTS = (1.0, 0.0, 2.0)
"""Weights of transfers in the ranks of list scheduling: their mean time, none, twice the mean."""


def first_placements(instance: Instance, sequence: Ints, limits: Floats) -> Iterator[Ints]:
    """Devices of units, the plainest first. `sequence`: the units in the order of the network."""
    can_run = np.isfinite(instance.unit_seconds)[:, instance.type_of]
    devices = _near_devices(instance)
    for count in _counts(instance.num_devices):
        for stripes in _STRIPES:
            if stripes <= max(1, instance.num_units) and (stripes >= count or stripes == 1):
                used = devices[: min(count, stripes)]
                yield _runnable(_stripe(instance, sequence, used, stripes), can_run)
    latency, per_byte = mean_transfer(instance)
    for weight in _WEIGHTS:
        placed, _, _ = schedule_heft(instance, limits, (weight * latency, weight * per_byte))
        device_of_unit = np.zeros(instance.num_units, np.int32)
        device_of_unit[instance.unit_of] = placed
        yield device_of_unit


def _counts(num_devices: int) -> list[int]:
    """Numbers of devices to deal out to: powers of two, and all."""
    counts = [1 << k for k in range(1, num_devices.bit_length()) if 1 << k < num_devices]
    return [*counts, num_devices]


def _near_devices(instance: Instance) -> Ints:
    """The devices, the fastest first, then always the one that is nearest to the one before it."""
    speed = -_known_seconds(instance).sum(axis=0)[instance.type_of]
    near = np.minimum(instance.bandwidth, instance.bandwidth.T).astype(np.float64)
    chosen = [int(np.argmax(speed))]
    left = [each for each in range(instance.num_devices) if each != chosen[0]]
    while left:
        # The nearest to the last one counts, then speed.
        best = max(left, key=lambda each: (near[each, chosen[-1]], speed[each], -each))
        chosen.append(best)
        left.remove(best)
    return np.array(chosen, np.int32)


def _stripe(instance: Instance, sequence: Ints, devices: Ints, stripes: int) -> Ints:
    """The sequence cut into stripes of equal time on the devices that they go to, in turn."""
    seconds = _known_seconds(instance)
    work = seconds.mean(axis=1)[sequence]
    share = 1.0 / np.maximum(seconds.sum(axis=0)[instance.type_of[devices]], 1e-300)
    ends = np.cumsum(np.resize(share, stripes))
    middle = np.cumsum(work) - work / 2
    stripe = np.searchsorted(ends / ends[-1] * max(float(work.sum()), 1e-300), middle)
    placed = np.zeros(instance.num_units, np.int32)
    placed[sequence] = devices[np.minimum(stripe, stripes - 1) % len(devices)]
    return placed


def _known_seconds(instance: Instance) -> Floats:
    """Seconds of units by device type; where a type cannot run one, the most that another type
    takes."""
    is_known = np.isfinite(instance.unit_seconds)
    most = np.where(is_known, instance.unit_seconds, 0.0).max(axis=1, keepdims=True)
    return np.where(is_known, instance.unit_seconds, most)


def _runnable(placed: Ints, can_run: Bools) -> Ints:
    """Units that cannot run where they are on the first device that can run them."""
    wrong = ~can_run[np.arange(len(placed)), placed]
    if wrong.any():
        placed[wrong] = can_run[wrong].argmax(axis=1)
    return placed
