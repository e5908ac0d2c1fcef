"""The compiled Metropolis walk over placements; see `meshwright.search.method.mcmc.mcmc`."""

from typing import Any

import numpy as np

from meshwright.compiled import compiled, inlined
from meshwright.kernel.draw import exponential, uniform
from meshwright.search.order.list_schedule import (
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

NOW, BEST, SCALE = range(3)
"""Places in the array of times: of the kept schedule, the best so far, one unit of temperature."""
STEPS, ACCEPTED, IMPROVED = range(3)
"""Places in the array of counts."""


@compiled
def walk(
    ops: Any, slots: Any, new_slots: Any, devices: Any, kept: Any, new_kept: Any, heap: Any,
    in_edges: Any, out_edges: Any, seconds: Any, latency: Any, bandwidth: Any, times: Any,
    units: Any, unit_ops: Any, unit_seconds: Any, rooms: Any, random: Any, counts: Any, steps: int,
) -> None:  # fmt: skip
    """Propose `steps` times to move a random unit to a random other device."""
    num_units, num_devices = len(units) - 1, len(devices)
    for _ in range(steps):
        counts[STEPS] += 1
        unit = np.int64(uniform(random) * num_units)
        target = np.int64(uniform(random) * (num_devices - 1))
        source = np.int64(units[unit].device)
        if target >= source:
            target += 1
        # Metropolis: accept with probability min(1, exp(-(new - now) / scale)), drawn first so
        # that a schedule can be given up as soon as it must be too long.
        limit = times[NOW] + exponential(random, times[SCALE])
        before = _overflow(rooms, source, 0.0) + _overflow(rooms, target, 0.0)
        size = units[unit].bytes
        after = _overflow(rooms, source, -size) + _overflow(rooms, target, size)
        if after > before or unit_seconds[unit, devices[target].type] == np.inf:
            continue
        if after < before:
            limit = np.inf  # what fits better is taken whatever it costs
        _move(ops, units, unit_ops, unit_seconds, devices, unit, source, target)
        begin = first_changed(
            ops, slots, in_edges, latency, bandwidth, unit_ops, units[unit].first,
            units[unit + 1].first,
        )  # fmt: skip
        total = try_schedule(
            ops, slots, new_slots, devices, kept, new_kept, heap, in_edges, out_edges, seconds,
            latency, bandwidth, begin, counts[STEPS], unit, limit,
        )  # fmt: skip
        if total > limit or total == np.inf:
            _move(ops, units, unit_ops, unit_seconds, devices, unit, target, source)
            continue
        keep_schedule(ops, slots, new_slots, kept, new_kept, begin)
        rooms[source].used -= size
        rooms[target].used += size
        times[NOW] = total
        counts[ACCEPTED] += 1
        if total < times[BEST] or after < before:
            times[BEST] = total
            counts[IMPROVED] += 1
            for u in range(num_units):
                units[u].best_device = units[u].device


@inlined
def _overflow(rooms: Any, device: Any, change: float) -> Any:
    return max(0.0, rooms[device].used + change - rooms[device].limit)


@inlined
def _move(
    ops: Any, units: Any, unit_ops: Any, unit_seconds: Any, devices: Any, unit: Any, source: Any,
    target: Any,
) -> None:  # fmt: skip
    units[unit].device = target
    devices[source].load -= unit_seconds[unit, devices[source].type]
    devices[target].load += unit_seconds[unit, devices[target].type]
    for u in range(units[unit].first, units[unit + 1].first):
        ops[unit_ops[u]].device = target
