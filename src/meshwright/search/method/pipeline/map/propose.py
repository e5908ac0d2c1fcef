"""The moves of the local search: which places get which devices. For kernels; judges nothing."""

import numpy as np

from meshwright.compiled import Array, Bool, Int, inlined, outlined
from meshwright.kernel.draw import below, geometric, uniform
from meshwright.search.method.pipeline.map.assignment_state import AssignmentState

_NEAR = 4.0
"""The mean rank of the neighbour whose device is tried."""
_MOST_GATHERED = 32
"""How many places are brought together at once, at most."""


@inlined
def propose(state: AssignmentState, s: Int, replicas: Int) -> None:
    """Write places and their new devices into `changed`."""
    places, slots = state.places, state.slots
    first, size = slots[s].first, slots[s + 1].first - slots[s].first
    p = first + below(state.random, size)
    if uniform(state.random) < 0.5:
        for other in range(first, first + size):
            if places[other].load > places[p].load:
                p = np.int64(other)
    kind = uniform(state.random)
    if kind < 0.1 and replicas > 0:
        _propose_lines(state, p, replicas)
        return
    if kind > 0.96:
        _gather(state, p)
        return
    target = below(state.random, len(state.place_of))
    if kind < 0.85:  # near a partner, or a partner near it
        q = _neighbour(state, p)
        if q >= 0 and kind < 0.6:
            rank = min(state.near.shape[1] - 1, geometric(state.random, _NEAR) - 1)
            target = np.int64(state.near[places[q].device, rank])
        elif q >= 0:
            rank = min(state.near.shape[1] - 1, geometric(state.random, _NEAR) - 1)
            target = np.int64(state.near[places[p].device, rank])
            p = q
    source = np.int64(places[p].device)
    if target == source:
        return
    there = np.int64(state.place_of[target])
    _change(state, p, target)
    if there < 0:
        return
    if uniform(state.random) < 0.2:  # in a circle of three: what is there goes near its own partner
        q = _neighbour(state, there)
        if q >= 0 and q != p:
            rank = min(state.near.shape[1] - 1, geometric(state.random, _NEAR) - 1)
            third = np.int64(state.near[places[q].device, rank])
            if third != source and third != target:
                _change(state, there, third)
                last = np.int64(state.place_of[third])
                if last >= 0:
                    _change(state, last, source)
                return
    _change(state, there, source)


@outlined
def _gather(state: AssignmentState, p: Int) -> None:
    """Bring a place and its partners, or all of its slot along the ring, around one device.

    What is there takes the devices that become free.
    """
    places, slots = state.places, state.slots
    s = np.int64(places[p].slot)
    first, size = np.int64(slots[s].first), np.int64(slots[s + 1].first - slots[s].first)
    wires = np.int64(places[p + 1].first - places[p].first)
    is_ring = slots[s].ring_bytes > 0.0 and size > 1 and (wires == 0 or uniform(state.random) < 0.6)
    count = min(size if is_ring else wires + 1, _MOST_GATHERED, state.near.shape[1])
    centre = below(state.random, len(state.place_of))
    if uniform(state.random) < 0.7:
        centre = np.int64(places[p].device)
    rank = np.int64(-1)
    for k in range(count):
        q = p
        if k > 0:
            q = np.int64(
                state.ring[first + (places[p].seat + k) % size] if is_ring
                else state.partner[places[p].first + k - 1]
            )  # fmt: skip
        target = centre if rank < 0 else np.int64(state.near[centre, rank])
        rank += 1 if uniform(state.random) < 0.7 or rank < 0 else 2
        _change(state, q, target)
        if rank + 2 >= state.near.shape[1]:
            break
    _hand_over(state)


@outlined
def _hand_over(state: AssignmentState) -> None:
    """Give the devices that become free to those who lose theirs."""
    places, changed = state.places, state.changed
    count = state.now.num_changed
    free = 0
    for k in range(count):
        loser = np.int64(state.place_of[changed[k, 1]])
        if loser < 0 or _holds(changed, count, 0, loser):
            continue
        while _holds(changed, count, 1, np.int64(places[changed[free, 0]].device)):
            free += 1
        _change(state, loser, np.int64(places[changed[free, 0]].device))
        free += 1


@inlined
def _holds(changed: Array, count: Int, column: Int, value: Int) -> Bool:
    holds = False
    for k in range(count):
        holds = holds or changed[k, column] == value
    return holds


@inlined
def _change(state: AssignmentState, p: Int, device: Int) -> None:
    state.changed[state.now.num_changed, 0] = p
    state.changed[state.now.num_changed, 1] = device
    state.now.num_changed += 1


@inlined
def _neighbour(state: AssignmentState, p: Int) -> Int:
    """A random partner of a place, or the next on its ring; -1 for none."""
    places, slots = state.places, state.slots
    wires = places[p + 1].first - places[p].first
    s = places[p].slot
    first, size = slots[s].first, slots[s + 1].first - slots[s].first
    links = 2 if slots[s].ring_bytes > 0.0 and size > 1 else 0
    if wires + links == 0:
        return np.int64(-1)
    at = below(state.random, wires + links)
    if at < wires:
        return np.int64(state.partner[places[p].first + at])
    seat = (places[p].seat + (1 if at == wires else size - 1)) % size
    return np.int64(state.ring[first + seat])


@outlined
def _propose_lines(state: AssignmentState, p: Int, replicas: Int) -> None:
    """Exchange or shift whole slots, turn a stretch of a line round, exchange those of two."""
    places, slots = state.places, state.slots
    num_slots = len(slots) - 1
    s = np.int64(places[p].slot)
    line = p - slots[s].first
    kind = uniform(state.random)
    if kind < 0.3:  # two slots change places
        other = below(state.random, num_slots)
        for r in range(replicas if other != s else 0):
            one, two = np.int64(slots[s].first) + r, np.int64(slots[other].first) + r
            _change(state, one, places[two].device)
            _change(state, two, places[one].device)
        return
    length = min(num_slots, 1 + geometric(state.random, 8.0))
    low = max(0, s - length + 1) if uniform(state.random) < 0.5 else s
    high = min(num_slots, low + length)
    if kind < 0.4:  # all slots of a stretch move on by one
        shift = 1 if uniform(state.random) < 0.5 else high - low - 1
        for t in range(low, high if shift > 0 else low):
            following = low + (t - low + shift) % (high - low)
            for r in range(replicas):
                two = np.int64(slots[following].first) + r
                if following != t:
                    _change(state, np.int64(slots[t].first) + r, places[two].device)
        return
    other = below(state.random, replicas)
    if uniform(state.random) < 0.2:
        low, high = (s, num_slots) if uniform(state.random) < 0.5 else (0, s + 1)
    for t in range(low, high):
        one = np.int64(slots[t].first) + line
        if other == line:
            two = np.int64(slots[low + high - 1 - t].first) + line
            if one != two:
                _change(state, one, places[two].device)
        else:
            two = np.int64(slots[t].first) + other
            _change(state, one, places[two].device)
            _change(state, two, places[one].device)
