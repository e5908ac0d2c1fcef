"""Depth-first search for an assignment below a target, with forward checking. Knows no clock.

Every place has a domain of devices. A device leaves it when compute, the transfers to partners
that have a device, the least that all others can take, and the ring's slowest link so far go
beyond the target. The place with the smallest domain is next. A refuted choice takes its images
under symmetry with it: `meshwright.search.method.pipeline.map.domain`.
"""

from typing import Any

import numpy as np

from meshwright.compiled import compiled, inlined, outlined
from meshwright.search.method.pipeline.map.domain import TRAIL, refute, remove, restore
from meshwright.search.method.pipeline.map.ring import MOST_EXACT, ring_exists

DEPTH, NODES, IS_BEGUN = range(3)
"""Places in the array of counts, before `TRAIL`."""
FOUND, NONE, GOES_ON = range(3)
"""What a stretch of the search says."""

PLACE = np.dtype(
    [
        ("load", np.float64),  # compute and transfers that are decided
        ("slot", np.int32),
        ("line", np.int32),  # replica, where lines may change places, else -1
        ("device", np.int32),
        ("size", np.int32),  # of its domain
        ("first", np.int32),  # its partners: from here to the next place's
        ("next", np.int32),  # at this depth: the place that is decided
        ("node_mark", np.int32),  # at this depth: the trail before its first choice
        ("mark", np.int32),  # at this depth: the trail before its present choice
    ],
    align=True,
)
"""One place; arrays of it have one entry more than places."""

SLOT = np.dtype(
    [
        ("ring_bytes", np.float64),
        ("top", np.float64),  # least time of the slowest replica
        ("need", np.float64),  # least slowness of the ring's slowest link
        ("first", np.int32),  # its places: from here to the next slot's
        ("filled", np.int32),
    ],
    align=True,
)
"""One slot; arrays of it have one entry more than slots."""

DEVICE = np.dtype(
    [
        ("place", np.int32),
        ("twin", np.int32),  # devices of one number can be exchanged
        ("group", np.int32),  # host, or any other group
        ("kind", np.int32),  # groups of one kind can be exchanged, -1 for none,
        ("seat", np.int32),  # device by device in this order
    ],
    align=True,
)
"""One device."""


@compiled
def probe(
    places: Any, slots: Any, devices: Any, partner: Any, wire: Any, compute: Any, slowness: Any,
    least: Any, near: Any, near_ring: Any, alive: Any, trail: Any, counts: Any, members: Any,
    table: Any, most: float, nodes: int,
) -> int:  # fmt: skip
    """Go on with the search for an assignment of at most `most` seconds, some nodes long."""
    if counts[IS_BEGUN] == 0:
        counts[IS_BEGUN] = 1
        if not _narrow(
            places, slots, devices, partner, wire, compute, slowness, near, near_ring, alive,
            trail, counts, members, table, most, np.int64(-1),
        ):  # fmt: skip
            return NONE
        _open(places, slots, partner, counts)
    last = counts[NODES] + nodes
    while counts[NODES] < last:
        depth = counts[DEPTH]
        p = np.int64(places[depth].next)
        if places[p].device >= 0:  # back from below: the present choice is refuted
            d = np.int64(places[p].device)
            restore(places, alive, trail, counts, places[depth].mark)
            _release(places, slots, devices, partner, wire, compute, slowness, p, d)
            refute(places, slots, devices, alive, trail, counts, p, d)
        d = _choose(places, devices, partner, wire, compute, slowness, least, near, alive, p)
        if d < 0:
            restore(places, alive, trail, counts, places[depth].node_mark)
            if depth == 0:
                return NONE
            counts[DEPTH] -= 1
            continue
        counts[NODES] += 1
        places[depth].mark = counts[TRAIL]
        _take(places, slots, devices, partner, wire, compute, slowness, p, d)
        if not _narrow(
            places, slots, devices, partner, wire, compute, slowness, near, near_ring, alive,
            trail, counts, members, table, most, p,
        ):  # fmt: skip
            continue
        counts[DEPTH] += 1
        if counts[DEPTH] == len(places) - 1:
            counts[DEPTH] -= 1
            return FOUND
        _open(places, slots, partner, counts)
    return GOES_ON


@outlined
def _open(places: Any, slots: Any, partner: Any, counts: Any) -> None:
    """Decide which place is next: the smallest domain, then most neighbours that are decided."""
    best, best_size, best_ties = -1, np.int64(0), np.int64(-1)
    for p in range(len(places) - 1):
        if places[p].device >= 0:
            continue
        size = np.int64(places[p].size)
        if best >= 0 and size > best_size:
            continue
        ties = np.int64(slots[places[p].slot].filled)
        for e in range(places[p].first, places[p + 1].first):
            ties += 2 * (places[partner[e]].device >= 0)
        if best < 0 or size < best_size or ties > best_ties:
            best, best_size, best_ties = p, size, ties
    depth = counts[DEPTH]
    places[depth].next = best
    places[depth].node_mark = counts[TRAIL]


@outlined
def _choose(
    places: Any, devices: Any, partner: Any, wire: Any, compute: Any, slowness: Any, least: Any,
    near: Any, alive: Any, p: Any,
) -> Any:  # fmt: skip
    """The device of a place's domain that takes least, -1 for none."""
    best, best_seconds = np.int64(-1), np.inf
    for d in range(len(devices)):
        if alive[p, d]:
            seconds = max(
                _least_load(places, devices, partner, wire, compute, slowness, near, p, d),
                least[places[p].slot, d],
            )
            if best < 0 or seconds < best_seconds:
                best, best_seconds = np.int64(d), seconds
    return best


@inlined
def _least_load(
    places: Any, devices: Any, partner: Any, wire: Any, compute: Any, slowness: Any, near: Any,
    p: Any, d: Any,
) -> Any:  # fmt: skip
    """Compute and transfers of a place on a device: partners without one get the nearest free."""
    total = compute[places[p].slot, d]
    at = 0
    for e in range(places[p].first, places[p + 1].first):
        other = places[partner[e]].device
        if other < 0:
            while at < near.shape[1] and (devices[near[d, at]].place >= 0):
                at += 1
            if at == near.shape[1]:
                return np.inf
            other = near[d, at]
            at += 1
        total += wire[e] * slowness[d, other]
    return total


@inlined
def _ring_need(slots: Any, devices: Any, slowness: Any, near_ring: Any, s: Any, d: Any) -> Any:
    """The least slowness of the slower of a device's two links on its slot's ring."""
    first, end = slots[s].first, slots[s + 1].first
    if end - first < 2 or slots[s].ring_bytes == 0.0:
        return 0.0
    if end - first == 2:
        return _pair_need(devices, slowness, near_ring, first, d)
    wanted = 2
    for at in range(near_ring.shape[1]):
        other = near_ring[d, at]
        owner = devices[other].place
        if owner < 0 or (owner >= first and owner < end):
            wanted -= 1
            if wanted == 0:
                return min(slowness[d, other], slowness[other, d])
    return np.inf


@inlined
def _pair_need(devices: Any, slowness: Any, near_ring: Any, first: Any, d: Any) -> Any:
    """A ring of two uses one link both ways."""
    best = np.inf
    for at in range(near_ring.shape[1]):
        other = near_ring[d, at]
        owner = devices[other].place
        value = max(slowness[d, other], slowness[other, d])
        if owner == first or owner == first + 1:
            return value
        if owner < 0:
            best = min(best, value)
    return best


@outlined
def _narrow(
    places: Any, slots: Any, devices: Any, partner: Any, wire: Any, compute: Any, slowness: Any,
    near: Any, near_ring: Any, alive: Any, trail: Any, counts: Any, members: Any, table: Any,
    most: float, new: Any,
) -> bool:  # fmt: skip
    """Check what is decided and take out of the domains what cannot stay below the target.

    Only around the place that is new: others have lost one device and are not looked at again.
    Without a new one (-1), everywhere.
    """
    for s in range(len(slots) - 1):
        top, need = 0.0, 0.0
        for p in range(slots[s].first, slots[s + 1].first):
            at = np.int64(places[p].device)
            if at >= 0:
                load = _least_load(
                    places, devices, partner, wire, compute, slowness, near, np.int64(p), at
                )
                top = max(top, load)
                need = max(need, _ring_need(slots, devices, slowness, near_ring, s, at))
        slots[s].top, slots[s].need = top, need
        if top + slots[s].ring_bytes * need > most:
            return False
    if new >= 0:
        own = np.int64(places[new].slot)
        if not _closes(places, slots, slowness, members, table, most, own):
            return False
        for e in range(places[new].first, places[new + 1].first):
            other = np.int64(places[partner[e]].slot)
            if not _closes(places, slots, slowness, members, table, most, other):
                return False
    for p in range(len(places) - 1):
        if places[p].device >= 0:
            continue
        if new >= 0 and not _is_near(places, partner, p, new):
            gone = np.int64(places[new].device)
            if alive[p, gone]:
                remove(places, alive, trail, counts, p, gone)
        else:
            for d in range(len(devices)):
                if alive[p, d] and not _can_be(
                    places, slots, devices, partner, wire, compute, slowness, near, near_ring, p,
                    d, most,
                ):  # fmt: skip
                    remove(places, alive, trail, counts, p, d)
        if places[p].size == 0:
            return False
    return True


@inlined
def _is_near(places: Any, partner: Any, p: Any, new: Any) -> Any:
    """Whether a place is of the same slot as another, or has a partner there."""
    slot = places[new].slot
    is_near = places[p].slot == slot
    for e in range(places[p].first, places[p + 1].first):
        is_near = is_near or places[partner[e]].slot == slot
    return is_near


@inlined
def _closes(
    places: Any, slots: Any, slowness: Any, members: Any, table: Any, most: float, s: Any
) -> bool:
    """Whether the devices of a slot that has all of them make a ring that is fast enough."""
    count = slots[s + 1].first - slots[s].first
    if count > slots[s].filled or count > MOST_EXACT or slots[s].ring_bytes == 0.0:
        return True
    for k in range(count):
        members[k] = places[slots[s].first + k].device
    limit = (most - slots[s].top) / slots[s].ring_bytes
    return ring_exists(slowness, members, count, limit, table)


@outlined
def _can_be(
    places: Any, slots: Any, devices: Any, partner: Any, wire: Any, compute: Any, slowness: Any,
    near: Any, near_ring: Any, p: Any, d: Any, most: float,
) -> bool:  # fmt: skip
    """Whether a place may get a device, for itself, its slot and its partners."""
    if devices[d].place >= 0:
        return False
    s = np.int64(places[p].slot)
    load = _least_load(places, devices, partner, wire, compute, slowness, near, p, d)
    need = _ring_need(slots, devices, slowness, near_ring, s, d)
    if max(load, slots[s].top) + slots[s].ring_bytes * max(need, slots[s].need) > most:
        return False
    for e in range(places[p].first, places[p + 1].first):
        q = np.int64(partner[e])
        at = np.int64(places[q].device)
        if at < 0:
            continue
        total = places[q].load
        for f in range(places[q].first, places[q + 1].first):
            if partner[f] == p:
                total += wire[f] * slowness[at, d]
            elif places[partner[f]].device < 0:
                total += wire[f] * _nearest_free(devices, slowness, near, at)
        other = np.int64(places[q].slot)
        if max(total, slots[other].top) + slots[other].ring_bytes * slots[other].need > most:
            return False
    return True


@inlined
def _nearest_free(devices: Any, slowness: Any, near: Any, d: Any) -> Any:
    for at in range(near.shape[1]):
        if devices[near[d, at]].place < 0:
            return slowness[d, near[d, at]]
    return np.inf


@inlined
def _take(
    places: Any, slots: Any, devices: Any, partner: Any, wire: Any, compute: Any, slowness: Any,
    p: Any, d: Any,
) -> None:  # fmt: skip
    places[p].device = d
    devices[d].place = p
    slots[places[p].slot].filled += 1
    _add_up(places, partner, wire, compute, slowness, p)
    for e in range(places[p].first, places[p + 1].first):
        _add_up(places, partner, wire, compute, slowness, np.int64(partner[e]))


@inlined
def _release(
    places: Any, slots: Any, devices: Any, partner: Any, wire: Any, compute: Any, slowness: Any,
    p: Any, d: Any,
) -> None:  # fmt: skip
    places[p].device = -1
    devices[d].place = -1
    slots[places[p].slot].filled -= 1
    for e in range(places[p].first, places[p + 1].first):
        _add_up(places, partner, wire, compute, slowness, np.int64(partner[e]))


@outlined
def _add_up(places: Any, partner: Any, wire: Any, compute: Any, slowness: Any, p: Any) -> None:
    """A place's decided load, summed afresh: differences would gather rounding."""
    d = np.int64(places[p].device)
    if d < 0:
        return
    total = compute[places[p].slot, d]
    for e in range(places[p].first, places[p + 1].first):
        other = places[partner[e]].device
        if other >= 0:
            total += wire[e] * slowness[d, other]
    places[p].load = total
