"""Improves a placement by exact search in neighbourhoods of it (large-neighbourhood search).

A neighbourhood frees a few units that are near each other, around one on the longest path; all the
others of a device are one unit. That is a small instance of the same problem, whose best placement
and order CP-SAT looks for from the one that is known. Where everything may be free, and
nothing is asked for that plans need not keep to, the solver's bound holds for the step itself.
"""

from dataclasses import dataclass, replace

import numpy as np

from meshwright.array import Floats, Ints, marked
from meshwright.search.clock import Clock
from meshwright.search.instance import Instance
from meshwright.search.method.placement.level import merge_units
from meshwright.search.method.placement.placement_walk import Placed, PlacementWalk
from meshwright.search.method.quickp.programme.programme import solve_programme
from meshwright.search.solver import has_time_to_load

_MOST_OPS = 400
"""Steps that are larger are not improved in this way: the walk finds more in the same time."""
_WHOLE_UNITS = 48
"""Steps of no more units than these are searched with all of them free."""
_FREE_UNITS = 16
"""In larger steps so many units are free at once."""
_KEPT_OPS = 250
"""In steps of more ops than these the ops of units that are not free are merged where they run on
end."""
_SECONDS, _WHOLE_SECONDS = 0.5, 3.0
"""Seconds of the solver's own clock for one neighbourhood, and for one where everything is free."""
_PATIENCE = 4
"""The search ends after so many neighbourhoods without anything faster."""
_GAIN = 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class Improved:
    """A placement, what holds for all placements, and how many neighbourhoods were searched."""

    placed: Placed
    bound_seconds: float
    num_searched: int


def improve(
    instance: Instance, placed: Placed, limits: Floats, seed: int, clock: Clock, target: float
) -> Improved:
    """Search neighbourhoods until some in a row give nothing, `target` is met or time is over."""
    walk = PlacementWalk(instance, limits, seed)
    bound, idle, searched = 0.0, 0, 0
    random = np.random.default_rng(seed)
    while (
        instance.num_ops <= _MOST_OPS
        and idle < _PATIENCE
        and placed.seconds > target * (1 + _GAIN)
        and placed.lacking_bytes == 0
        and not clock.is_over
        and has_time_to_load(clock)
    ):
        is_whole = instance.num_units <= _WHOLE_UNITS
        free = walk.sequence if is_whole else _near_path(walk, placed, random)
        effort = _WHOLE_SECONDS if is_whole else _SECONDS
        found, proven = _search(
            instance, walk, placed, free, limits, seed + searched, clock, effort
        )
        searched += 1
        idle = 0 if found.seconds < placed.seconds * (1 - _GAIN) else idle + 1
        placed = min(placed, found, key=lambda each: each.rank)
        if is_whole:
            bound = proven if _is_relaxed(instance, limits) else 0.0
            break
    return Improved(placed=placed, bound_seconds=bound, num_searched=searched)


def _is_relaxed(instance: Instance, limits: Floats) -> bool:
    """Whether the programme asks for nothing that a plan need not keep to.

    No op is merged with others, and all fits everywhere: what ops hold may be less when backward
    begins early.
    """
    return instance.num_ops <= _KEPT_OPS and bool(instance.unit_bytes.sum() <= limits.min())


def _near_path(walk: PlacementWalk, placed: Placed, random: np.random.Generator) -> Ints:
    """Units around one on the longest path, in the order of the network."""
    path = walk.longest_path(placed)
    unit = int(walk.instance.unit_of[path[int(random.integers(len(path)))]])
    place = int(np.flatnonzero(walk.sequence == unit)[0])
    first = max(0, min(place - _FREE_UNITS // 2, len(walk.sequence) - _FREE_UNITS))
    return walk.sequence[first : first + _FREE_UNITS]


def _search(
    instance: Instance, walk: PlacementWalk, placed: Placed, free: Ints, limits: Floats, seed: int,
    clock: Clock, effort: float,
) -> tuple[Placed, float]:  # fmt: skip
    """The best that CP-SAT finds when these units are free, and its bound."""
    is_free = marked(instance.num_units, free)
    # The free units keep a number of their own, the others get that of their device.
    label = np.where(
        is_free, instance.num_devices + np.arange(instance.num_units), placed.device_of_unit
    )
    _, inverse = np.unique(label, return_inverse=True)
    unit_of = inverse.astype(np.int32)
    level = merge_units(instance, unit_of, keeps_ops=instance.num_ops <= _KEPT_OPS)
    small = level.instance
    device_of_unit = np.zeros(small.num_units, np.int32)
    device_of_unit[unit_of] = placed.device_of_unit
    start = PlacementWalk(small, limits, seed).time(device_of_unit)
    if instance.num_ops == small.num_ops:
        start = replace(start, order=placed.order)
    result = solve_programme(
        small,
        order="free",
        start=(device_of_unit[small.unit_of], start.order),
        limits=limits,
        seed=seed,
        deterministic_seconds=effort,
        clock=clock.rest(1.0, tells=False),
    )
    moved = np.zeros(small.num_units, np.int32)
    moved[small.unit_of] = result.device_of_op
    found = walk.best_order(walk.time(moved[unit_of], level.expand_order(result.order)))
    return found, result.bound_seconds
