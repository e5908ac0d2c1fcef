"""Depth-first search for an assignment below a target, with forward checking. Knows no clock.

Every place has a domain of devices. A device leaves it when compute, the transfers to partners
that have a device, the least that all others can take, and the ring's slowest link so far go
beyond the target. The place with the smallest domain is next. A refuted choice takes its images
under symmetry with it.
"""

import numpy as np

from meshwright.compiled import Bool, Float, Int, compiled, inlined, outlined
from meshwright.search.method.pipeline.map.domain import ProbeState, refute, remove, restore
from meshwright.search.method.pipeline.map.ring import MOST_EXACT, ring_exists

FOUND, NONE, GOES_ON = range(3)
"""A stretch of the search ends with an assignment, without any that is left, or unfinished."""


@compiled
def probe(state: ProbeState, nodes: Int) -> int:
    """Go on with the search for an assignment within the target, some nodes long."""
    places, now = state.places, state.now
    if not now.is_begun:
        now.is_begun = True
        if not _narrow(state, np.int64(-1)):
            return NONE
        _open(state)
    last = now.nodes + nodes
    while now.nodes < last:
        depth = now.depth
        p = np.int64(places[depth].next)
        if places[p].device >= 0:  # back from below: the present choice is refuted
            d = np.int64(places[p].device)
            restore(state, places[depth].mark)
            _release(state, p, d)
            refute(state, p, d)
        d = _choose(state, p)
        if d < 0:
            restore(state, places[depth].node_mark)
            if depth == 0:
                return NONE
            now.depth -= 1
            continue
        now.nodes += 1
        places[depth].mark = now.num_removed
        _take(state, p, d)
        if not _narrow(state, p):
            continue
        now.depth += 1
        if now.depth == len(places) - 1:
            now.depth -= 1
            return FOUND
        _open(state)
    return GOES_ON


@outlined
def _open(state: ProbeState) -> None:
    """Decide which place is next: the smallest domain, then most neighbours that are decided."""
    places = state.places
    best, best_size, best_ties = -1, np.int64(0), np.int64(-1)
    for p in range(len(places) - 1):
        if places[p].device >= 0:
            continue
        size = np.int64(places[p].size)
        if best >= 0 and size > best_size:
            continue
        ties = np.int64(state.slots[places[p].slot].filled)
        for e in range(places[p].first, places[p + 1].first):
            ties += 2 * (places[state.partner[e]].device >= 0)
        if best < 0 or size < best_size or ties > best_ties:
            best, best_size, best_ties = p, size, ties
    depth = state.now.depth
    places[depth].next = best
    places[depth].node_mark = state.now.num_removed


@inlined
def _choose(state: ProbeState, p: Int) -> Int:
    """The device of a place's domain that takes least, -1 for none."""
    best, best_seconds = np.int64(-1), np.inf
    for d in range(len(state.devices)):
        if state.alive[p, d]:
            seconds = max(_least_load(state, p, d), state.least[state.places[p].slot, d])
            if best < 0 or seconds < best_seconds:
                best, best_seconds = np.int64(d), seconds
    return best


@inlined
def _least_load(state: ProbeState, p: Int, d: Int) -> Float:
    """Compute and transfers of a place on a device: partners without one get the nearest free."""
    places, near = state.places, state.near
    total = state.compute[places[p].slot, d]
    at = 0
    for e in range(places[p].first, places[p + 1].first):
        other = places[state.partner[e]].device
        if other < 0:
            while at < near.shape[1] and (state.devices[near[d, at]].place >= 0):
                at += 1
            if at == near.shape[1]:
                return np.inf
            other = near[d, at]
            at += 1
        total += state.wire[e] * state.slowness[d, other]
    return total


@inlined
def _ring_need(state: ProbeState, s: Int, d: Int) -> Float:
    """The least slowness of the slower of a device's two links on its slot's ring."""
    slots = state.slots
    first, end = slots[s].first, slots[s + 1].first
    if end - first < 2 or slots[s].ring_bytes == 0.0:
        return 0.0
    if end - first == 2:
        return _pair_need(state, first, d)
    wanted = 2
    for at in range(state.near_ring.shape[1]):
        other = state.near_ring[d, at]
        owner = state.devices[other].place
        if owner < 0 or (owner >= first and owner < end):
            wanted -= 1
            if wanted == 0:
                return min(state.slowness[d, other], state.slowness[other, d])
    return np.inf


@inlined
def _pair_need(state: ProbeState, first: Int, d: Int) -> Float:
    """A ring of two uses one link both ways."""
    best = np.inf
    for at in range(state.near_ring.shape[1]):
        other = state.near_ring[d, at]
        owner = state.devices[other].place
        value = max(state.slowness[d, other], state.slowness[other, d])
        if owner == first or owner == first + 1:
            return value
        if owner < 0:
            best = min(best, value)
    return best


@outlined
def _narrow(state: ProbeState, new: Int) -> Bool:
    """Check what is decided and take out of the domains what cannot stay below the target.

    Only around the place that is new: others have lost one device and are not looked at again.
    Without a new one (-1), everywhere.
    """
    places, slots = state.places, state.slots
    for s in range(len(slots) - 1):
        top, need = 0.0, 0.0
        for p in range(slots[s].first, slots[s + 1].first):
            at = np.int64(places[p].device)
            if at >= 0:
                load = _least_load(state, np.int64(p), at)
                top = max(top, load)
                need = max(need, _ring_need(state, s, at))
        slots[s].top, slots[s].need = top, need
        if top + slots[s].ring_bytes * need > state.now.target:
            return False
    if new >= 0:
        own = np.int64(places[new].slot)
        if not _closes(state, own):
            return False
        for e in range(places[new].first, places[new + 1].first):
            other = np.int64(places[state.partner[e]].slot)
            if not _closes(state, other):
                return False
    for p in range(len(places) - 1):
        if places[p].device >= 0:
            continue
        if new >= 0 and not _is_near(state, p, new):
            gone = np.int64(places[new].device)
            if state.alive[p, gone]:
                remove(state, p, gone)
        else:
            for d in range(len(state.devices)):
                if state.alive[p, d] and not _can_be(state, p, d):
                    remove(state, p, d)
        if places[p].size == 0:
            return False
    return True


@inlined
def _is_near(state: ProbeState, p: Int, new: Int) -> Bool:
    """Whether a place is of the same slot as another, or has a partner there."""
    places = state.places
    slot = places[new].slot
    is_near = places[p].slot == slot
    for e in range(places[p].first, places[p + 1].first):
        is_near = is_near or places[state.partner[e]].slot == slot
    return is_near


@inlined
def _closes(state: ProbeState, s: Int) -> Bool:
    """Whether the devices of a slot that has all of them make a ring that is fast enough."""
    slots = state.slots
    count = slots[s + 1].first - slots[s].first
    if count > slots[s].filled or count > MOST_EXACT or slots[s].ring_bytes == 0.0:
        return True
    for k in range(count):
        state.members[k] = state.places[slots[s].first + k].device
    limit = (state.now.target - slots[s].top) / slots[s].ring_bytes
    return ring_exists(state.slowness, state.members, count, limit, state.table)


@inlined
def _can_be(state: ProbeState, p: Int, d: Int) -> Bool:
    """Whether a place may get a device, for itself, its slot and its partners."""
    places, slots, partner = state.places, state.slots, state.partner
    if state.devices[d].place >= 0:
        return False
    s = np.int64(places[p].slot)
    load = _least_load(state, p, d)
    need = _ring_need(state, s, d)
    if max(load, slots[s].top) + slots[s].ring_bytes * max(need, slots[s].need) > state.now.target:
        return False
    for e in range(places[p].first, places[p + 1].first):
        q = np.int64(partner[e])
        at = np.int64(places[q].device)
        if at < 0:
            continue
        total = places[q].load
        for f in range(places[q].first, places[q + 1].first):
            if partner[f] == p:
                total += state.wire[f] * state.slowness[at, d]
            elif places[partner[f]].device < 0:
                total += state.wire[f] * _nearest_free(state, at)
        other = np.int64(places[q].slot)
        if (
            max(total, slots[other].top) + slots[other].ring_bytes * slots[other].need
            > state.now.target
        ):
            return False
    return True


@inlined
def _nearest_free(state: ProbeState, d: Int) -> Float:
    near = state.near
    for at in range(near.shape[1]):
        if state.devices[near[d, at]].place < 0:
            return state.slowness[d, near[d, at]]
    return np.inf


@inlined
def _take(state: ProbeState, p: Int, d: Int) -> None:
    places = state.places
    places[p].device = d
    state.devices[d].place = p
    state.slots[places[p].slot].filled += 1
    _add_up(state, p)
    for e in range(places[p].first, places[p + 1].first):
        _add_up(state, np.int64(state.partner[e]))


@inlined
def _release(state: ProbeState, p: Int, d: Int) -> None:
    places = state.places
    places[p].device = -1
    state.devices[d].place = -1
    state.slots[places[p].slot].filled -= 1
    for e in range(places[p].first, places[p + 1].first):
        _add_up(state, np.int64(state.partner[e]))


@inlined
def _add_up(state: ProbeState, p: Int) -> None:
    """A place's decided load, summed afresh: differences would gather rounding."""
    places = state.places
    d = np.int64(places[p].device)
    if d < 0:
        return
    total = state.compute[places[p].slot, d]
    for e in range(places[p].first, places[p + 1].first):
        other = places[state.partner[e]].device
        if other >= 0:
            total += state.wire[e] * state.slowness[d, other]
    places[p].load = total
