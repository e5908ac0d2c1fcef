"""The compiled Metropolis walk over placements; see `meshwright.search.method.mcmc.mcmc`."""

from typing import NamedTuple

import numpy as np

from meshwright.compiled import Array, Float, Int, compiled, inlined
from meshwright.kernel.draw import exponential, uniform
from meshwright.search.order.list_schedule import (
    ScheduleState,
    first_changed,
    keep_schedule,
    try_schedule,
)

UNIT = np.dtype(
    [
        ("bytes", np.float64),
        ("device", np.int32),
        ("best_device", np.int32),
        ("first", np.int32),  # its ops: from here to the next unit's
    ],
    align=True,
)
"""One unit; arrays of it have one entry more than units."""

ROOM = np.dtype([("used", np.float64), ("limit", np.float64)], align=True)
"""Memory of one device."""

PROGRESS = np.dtype(
    [
        ("now", np.float64),  # time of the schedule that is kept
        ("best", np.float64),
        ("scale", np.float64),  # one unit of temperature, in seconds
        ("steps", np.int64),
        ("accepted", np.int64),
        ("improved", np.int64),
    ],
    align=True,
)
"""Where a walk stands."""


class MetropolisState(NamedTuple):
    """A walk over placements, for kernels."""

    schedule: ScheduleState
    units: Array
    """A UNIT for each unit, and one more."""
    rooms: Array
    """A ROOM for each device."""
    progress: Array
    """One entry that says where the walk stands."""
    random: Array
    """The state of the random numbers, one word."""


@compiled
def propose_moves(state: MetropolisState, steps: Int) -> None:
    """Propose `steps` times to move a random unit to a random other device."""
    units, rooms, progress, step = state.units, state.rooms, state.progress, state.schedule.step
    num_units, num_devices = len(units) - 1, len(rooms)
    for _ in range(steps):
        progress[0].steps += 1
        unit = np.int64(uniform(state.random) * num_units)
        target = np.int64(uniform(state.random) * (num_devices - 1))
        source = np.int64(units[unit].device)
        if target >= source:
            target += 1
        # Metropolis: accept with probability min(1, exp(-(new - now) / scale)), drawn first so
        # that a schedule can be given up as soon as it must be too long.
        limit = progress[0].now + exponential(state.random, progress[0].scale)
        before = _overflow(rooms, source, 0.0) + _overflow(rooms, target, 0.0)
        size = units[unit].bytes
        after = _overflow(rooms, source, -size) + _overflow(rooms, target, size)
        if after > before or step.unit_seconds[unit, step.type_of[target]] == np.inf:
            continue
        if after < before:
            limit = np.inf  # what fits better is taken whatever it costs
        _move(state, unit, source, target)
        begin = first_changed(state.schedule, units[unit].first, units[unit + 1].first)
        total = try_schedule(state.schedule, begin, progress[0].steps, unit, limit)
        if total > limit or total == np.inf:
            _move(state, unit, target, source)
            continue
        keep_schedule(state.schedule, begin)
        rooms[source].used -= size
        rooms[target].used += size
        progress[0].now = total
        progress[0].accepted += 1
        if total < progress[0].best or after < before:
            progress[0].best = total
            progress[0].improved += 1
            for u in range(num_units):
                units[u].best_device = units[u].device


@inlined
def _overflow(rooms: Array, device: Int, change: Float) -> Float:
    return max(0.0, rooms[device].used + change - rooms[device].limit)


@inlined
def _move(state: MetropolisState, unit: Int, source: Int, target: Int) -> None:
    """Let the ops of a unit run on another device than before."""
    units, schedule = state.units, state.schedule
    step, devices = schedule.step, schedule.devices
    units[unit].device = target
    devices[source].load -= step.unit_seconds[unit, devices[source].type]
    devices[target].load += step.unit_seconds[unit, devices[target].type]
    for u in range(units[unit].first, units[unit + 1].first):
        schedule.ops[step.unit_ops[u]].device = target
