"""Searches the placements of an instance on several levels, from coarse to fine.

The coarsest level has some dozens of units: first placements are compared and walked from there.
Each level below begins at the best of the level above it and walks on, cooler. Rounds after the
first begin at the best placement so far, with levels that unite only what is on one device in it.
"""

from collections.abc import Callable, Iterator

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.search.instance import Instance
from meshwright.search.method.placement.level import CoarseLevel, make_levels
from meshwright.search.method.placement.pattern import find_kinds, sweep_kinds
from meshwright.search.method.placement.placement_walk import Placed, PlacementWalk
from meshwright.search.method.placement.start import first_placements

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
