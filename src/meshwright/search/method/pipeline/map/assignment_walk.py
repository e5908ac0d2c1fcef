"""The compiled local search over assignments: exchanges devices until every slot meets a target.

What is summed is by how much replicas, and links of rings, go beyond the target; so many slots that
are a little late count like one that is very late, and plateaus of the largest time are left. Moves
begin at a slot that is late. Starts and targets are
`meshwright.search.method.pipeline.map.improve`'s.
"""

from typing import Any

import numpy as np

from meshwright.compiled import compiled, inlined, outlined
from meshwright.kernel.draw import below, exponential, uniform
from meshwright.search.method.pipeline.map.propose import NUM_CHANGED, propose

PLACE = np.dtype(
    [
        ("load", np.float64),
        ("old_load", np.float64),
        ("slot", np.int32),
        ("device", np.int32),
        ("best_device", np.int32),
        ("first", np.int32),  # its partners: from here to the next place's
        ("seat", np.int32),  # where it is on its slot's ring
        ("stamp", np.int32),  # the move that has touched it last
    ],
    align=True,
)
"""One place; arrays of it have one entry more than places."""

SLOT = np.dtype(
    [
        ("ring_bytes", np.float64),
        ("seconds", np.float64),
        ("late", np.float64),
        ("old_seconds", np.float64),
        ("old_late", np.float64),
        ("first", np.int32),  # its places: from here to the next slot's
        ("hot", np.int32),  # where it is among the late ones, -1 if it is not
        ("stamp", np.int32),
    ],
    align=True,
)
"""One slot; arrays of it have one entry more than slots."""

DEVICE = np.dtype([("place", np.int32)], align=True)

TARGET, LATE, HEAT, COOLING, BEST, STEP_DOWN = range(6)
"""Places in the array of times: the target, the sum of what is late (in targets), temperature and
its factor a step, the best value so far, by what share of it the next target is lower."""
NUM_HOT, STAMP, NUM_PLACES, NUM_SLOTS, STEPS, ACCEPTED, FOUND = range(7)
"""Places in the array of counts, before `NUM_CHANGED`."""


@compiled
def walk(
    places: Any, slots: Any, devices: Any, ring: Any, best_ring: Any, hot: Any, partner: Any,
    wire: Any, compute: Any, slowness: Any, near: Any, changed: Any, touched: Any,
    times: Any, counts: Any, random: Any, steps: int, replicas: int,
) -> None:  # fmt: skip
    """Some steps: change, add up, keep or undo. `replicas` is 0 where slots differ in theirs."""
    _add_up_all(places, slots, ring, hot, partner, wire, compute, slowness, times, counts)
    for _ in range(steps):
        counts[STEPS] += 1
        times[HEAT] *= times[COOLING]
        if counts[NUM_HOT] == 0:
            _keep(places, slots, ring, best_ring, times, counts)
            times[TARGET] = times[BEST] * (1.0 - times[STEP_DOWN])
            _add_up_all(places, slots, ring, hot, partner, wire, compute, slowness, times, counts)
            if counts[NUM_HOT] == 0:
                return
        s = np.int64(hot[below(random, counts[NUM_HOT])])
        counts[NUM_CHANGED], counts[NUM_PLACES], counts[NUM_SLOTS] = 0, 0, 0
        counts[STAMP] += 1
        low, high = np.int64(-1), np.int64(-1)
        size = slots[s + 1].first - slots[s].first
        if slots[s].ring_bytes > 0.0 and size > 3 and uniform(random) < 0.25:
            low, high = _turn_ring(slots, ring, places, random, s, size)
            _touch_slot(slots, touched, counts, s)
        else:
            propose(
                places, slots, devices, ring, partner, near, changed, counts, random, s,
                replicas,
            )  # fmt: skip
            if not _apply(
                places, slots, devices, partner, wire, compute, slowness, changed, touched, counts
            ):
                continue
        before = times[LATE]
        for k in range(counts[NUM_SLOTS]):
            t = np.int64(touched[1, k])
            slots[t].old_seconds, slots[t].old_late = slots[t].seconds, slots[t].late
            _time_slot(places, slots, ring, slowness, t, times[TARGET])
            times[LATE] += slots[t].late - slots[t].old_late
        if times[LATE] - before <= exponential(random, times[HEAT]):
            counts[ACCEPTED] += 1
            for k in range(counts[NUM_SLOTS]):
                _update_hot(slots, hot, counts, np.int64(touched[1, k]))
            if counts[NUM_HOT] <= 8:
                _keep(places, slots, ring, best_ring, times, counts)
            continue
        times[LATE] = before
        for k in range(counts[NUM_SLOTS]):
            t = np.int64(touched[1, k])
            slots[t].seconds, slots[t].late = slots[t].old_seconds, slots[t].old_late
        if low >= 0:
            _reverse(places, slots, ring, s, low, high)
        _undo(places, devices, changed, touched, counts)


@outlined
def _keep(places: Any, slots: Any, ring: Any, best_ring: Any, times: Any, counts: Any) -> None:
    """Remember the assignment if it is the best."""
    value = 0.0
    for s in range(len(slots) - 1):
        value = max(value, slots[s].seconds)
        if value >= times[BEST]:
            return
    times[BEST] = value
    counts[FOUND] += 1
    for p in range(len(places) - 1):
        places[p].best_device = places[p].device
        best_ring[p] = ring[p]


@outlined
def _add_up_all(
    places: Any, slots: Any, ring: Any, hot: Any, partner: Any, wire: Any, compute: Any,
    slowness: Any, times: Any, counts: Any,
) -> None:  # fmt: skip
    """All loads, times and what is late, afresh."""
    counts[NUM_HOT] = 0
    times[LATE] = 0.0
    for p in range(len(places) - 1):
        _add_up(places, partner, wire, compute, slowness, p)
    for s in range(len(slots) - 1):
        _time_slot(places, slots, ring, slowness, s, times[TARGET])
        times[LATE] += slots[s].late
        slots[s].hot = -1
        _update_hot(slots, hot, counts, s)


@inlined
def _add_up(places: Any, partner: Any, wire: Any, compute: Any, slowness: Any, p: Any) -> None:
    d = np.int64(places[p].device)
    total = compute[places[p].slot, d]
    for e in range(places[p].first, places[p + 1].first):
        total += wire[e] * slowness[d, places[partner[e]].device]
    places[p].load = total


@outlined
def _time_slot(places: Any, slots: Any, ring: Any, slowness: Any, s: Any, target: float) -> None:
    """A slot's time, and the sum over its replicas and links of what goes beyond the target."""
    first, end = slots[s].first, slots[s + 1].first
    top = 0.0
    for p in range(first, end):
        top = max(top, places[p].load)
    weight = slots[s].ring_bytes
    slowest = 0.0
    if weight > 0.0:
        before = np.int64(places[ring[end - 1]].device)
        for at in range(first, end):
            device = np.int64(places[ring[at]].device)
            slowest = max(slowest, slowness[before, device])
            before = device
    slots[s].seconds = top + weight * slowest
    late = 0.0
    if slots[s].seconds > target:
        for p in range(first, end):
            late += max(0.0, places[p].load + weight * slowest - target)
        if weight > 0.0:
            before = np.int64(places[ring[end - 1]].device)
            for at in range(first, end):
                device = np.int64(places[ring[at]].device)
                late += max(0.0, top + weight * slowness[before, device] - target)
                before = device
    slots[s].late = late / target


@inlined
def _update_hot(slots: Any, hot: Any, counts: Any, s: Any) -> None:
    if slots[s].late > 0.0:
        if slots[s].hot < 0:
            slots[s].hot = counts[NUM_HOT]
            hot[counts[NUM_HOT]] = s
            counts[NUM_HOT] += 1
    elif slots[s].hot >= 0:
        counts[NUM_HOT] -= 1
        last = hot[counts[NUM_HOT]]
        hot[slots[s].hot] = last
        slots[last].hot = slots[s].hot
        slots[s].hot = -1


@inlined
def _touch_slot(slots: Any, touched: Any, counts: Any, s: Any) -> None:
    if slots[s].stamp != counts[STAMP]:
        slots[s].stamp = counts[STAMP]
        touched[1, counts[NUM_SLOTS]] = s
        counts[NUM_SLOTS] += 1


@inlined
def _reverse(places: Any, slots: Any, ring: Any, s: Any, low: Any, high: Any) -> None:
    """Turn a stretch of a ring round."""
    first = slots[s].first
    while low < high:
        one, other = ring[first + low], ring[first + high]
        ring[first + low], ring[first + high] = other, one
        places[other].seat, places[one].seat = low, high
        low += 1
        high -= 1


@outlined
def _turn_ring(slots: Any, ring: Any, places: Any, random: Any, s: Any, size: Any) -> Any:
    """Reverse a random stretch of a slot's ring; returns it."""
    low = below(random, size)
    high = below(random, size)
    if low > high:
        low, high = high, low
    _reverse(places, slots, ring, s, low, high)
    return low, high


@outlined
def _apply(
    places: Any, slots: Any, devices: Any, partner: Any, wire: Any, compute: Any, slowness: Any,
    changed: Any, touched: Any, counts: Any,
) -> bool:  # fmt: skip
    """Make the changes; column 1 of `changed` then holds the old devices."""
    for k in range(counts[NUM_CHANGED]):
        if compute[places[changed[k, 0]].slot, changed[k, 1]] == np.inf:
            return False
    if counts[NUM_CHANGED] == 0:
        return False
    for k in range(counts[NUM_CHANGED]):
        devices[places[changed[k, 0]].device].place = -1
    for k in range(counts[NUM_CHANGED]):
        p, target = np.int64(changed[k, 0]), changed[k, 1]
        changed[k, 1] = places[p].device
        places[p].device = target
        devices[target].place = p
    for k in range(counts[NUM_CHANGED]):
        p = np.int64(changed[k, 0])
        _touch(places, slots, partner, wire, compute, slowness, touched, counts, p)
        for e in range(places[p].first, places[p + 1].first):
            q = np.int64(partner[e])
            _touch(places, slots, partner, wire, compute, slowness, touched, counts, q)
    return True


@inlined
def _touch(
    places: Any, slots: Any, partner: Any, wire: Any, compute: Any, slowness: Any, touched: Any,
    counts: Any, p: Any,
) -> None:  # fmt: skip
    if places[p].stamp != counts[STAMP]:
        places[p].stamp = counts[STAMP]
        places[p].old_load = places[p].load
        touched[0, counts[NUM_PLACES]] = p
        counts[NUM_PLACES] += 1
        _add_up(places, partner, wire, compute, slowness, p)
        _touch_slot(slots, touched, counts, np.int64(places[p].slot))


@inlined
def _undo(places: Any, devices: Any, changed: Any, touched: Any, counts: Any) -> None:
    for k in range(counts[NUM_CHANGED]):
        devices[places[changed[k, 0]].device].place = -1
    for k in range(counts[NUM_CHANGED]):
        places[changed[k, 0]].device = changed[k, 1]
        devices[changed[k, 1]].place = changed[k, 0]
    for k in range(counts[NUM_PLACES]):
        places[touched[0, k]].load = places[touched[0, k]].old_load
