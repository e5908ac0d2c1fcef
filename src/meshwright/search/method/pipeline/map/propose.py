"""The moves of the local search: which places get which devices. For kernels; judges nothing."""

from typing import Any

import numpy as np

from meshwright.compiled import inlined, outlined
from meshwright.kernel.draw import below, geometric, uniform

NUM_CHANGED = 7
"""Place in the array of counts."""

_NEAR = 4.0
"""Mean rank of the neighbour whose device is tried."""
_MOST_GATHERED = 32
"""Places that are brought together at once."""


@outlined
def propose(
    places: Any, slots: Any, devices: Any, ring: Any, partner: Any, near: Any,
    changed: Any, counts: Any, random: Any, s: Any, replicas: Any,
) -> None:  # fmt: skip
    """Write places and their new devices into `changed`."""
    first, size = slots[s].first, slots[s + 1].first - slots[s].first
    p = first + below(random, size)
    if uniform(random) < 0.5:
        for other in range(first, first + size):
            if places[other].load > places[p].load:
                p = np.int64(other)
    kind = uniform(random)
    if kind < 0.1 and replicas > 0:
        _propose_lines(places, slots, changed, counts, random, p, replicas)
        return
    if kind > 0.96:
        _gather(places, slots, devices, ring, partner, near, changed, counts, random, p)
        return
    target = below(random, len(devices))
    if kind < 0.85:  # near a partner, or a partner near it
        q = _neighbour(places, slots, ring, partner, random, p)
        if q >= 0 and kind < 0.6:
            rank = min(near.shape[1] - 1, geometric(random, _NEAR) - 1)
            target = np.int64(near[places[q].device, rank])
        elif q >= 0:
            rank = min(near.shape[1] - 1, geometric(random, _NEAR) - 1)
            target = np.int64(near[places[p].device, rank])
            p = q
    source = np.int64(places[p].device)
    if target == source:
        return
    there = np.int64(devices[target].place)
    _change(changed, counts, p, target)
    if there < 0:
        return
    if uniform(random) < 0.2:  # in a circle of three: what is there goes near its own partner
        q = _neighbour(places, slots, ring, partner, random, there)
        if q >= 0 and q != p:
            rank = min(near.shape[1] - 1, geometric(random, _NEAR) - 1)
            third = np.int64(near[places[q].device, rank])
            if third != source and third != target:
                _change(changed, counts, there, third)
                last = np.int64(devices[third].place)
                if last >= 0:
                    _change(changed, counts, last, source)
                return
    _change(changed, counts, there, source)


@outlined
def _gather(
    places: Any, slots: Any, devices: Any, ring: Any, partner: Any, near: Any, changed: Any,
    counts: Any, random: Any, p: Any,
) -> None:  # fmt: skip
    """Bring a place and its partners, or all of its slot along the ring, around one device.

    What is there takes the devices that become free.
    """
    s = np.int64(places[p].slot)
    first, size = np.int64(slots[s].first), np.int64(slots[s + 1].first - slots[s].first)
    wires = np.int64(places[p + 1].first - places[p].first)
    is_ring = slots[s].ring_bytes > 0.0 and size > 1 and (wires == 0 or uniform(random) < 0.6)
    count = min(size if is_ring else wires + 1, _MOST_GATHERED, near.shape[1])
    centre = below(random, len(devices))
    if uniform(random) < 0.7:
        centre = np.int64(places[p].device)
    rank = np.int64(-1)
    for k in range(count):
        q = p
        if k > 0:
            q = np.int64(
                ring[first + (places[p].seat + k) % size] if is_ring
                else partner[places[p].first + k - 1]
            )  # fmt: skip
        target = centre if rank < 0 else np.int64(near[centre, rank])
        rank += 1 if uniform(random) < 0.7 or rank < 0 else 2
        _change(changed, counts, q, target)
        if rank + 2 >= near.shape[1]:
            break
    _hand_over(places, devices, changed, counts)


@outlined
def _hand_over(places: Any, devices: Any, changed: Any, counts: Any) -> None:
    """Give the devices that become free to those who lose theirs."""
    count = counts[NUM_CHANGED]
    free = 0
    for k in range(count):
        loser = np.int64(devices[changed[k, 1]].place)
        if loser < 0 or _holds(changed, count, 0, loser):
            continue
        while _holds(changed, count, 1, np.int64(places[changed[free, 0]].device)):
            free += 1
        _change(changed, counts, loser, np.int64(places[changed[free, 0]].device))
        free += 1


@inlined
def _holds(changed: Any, count: Any, column: Any, value: Any) -> bool:
    holds = False
    for k in range(count):
        holds = holds or changed[k, column] == value
    return holds


@inlined
def _change(changed: Any, counts: Any, p: Any, device: Any) -> None:
    changed[counts[NUM_CHANGED], 0] = p
    changed[counts[NUM_CHANGED], 1] = device
    counts[NUM_CHANGED] += 1


@outlined
def _neighbour(places: Any, slots: Any, ring: Any, partner: Any, random: Any, p: Any) -> Any:
    """A random partner of a place, or the next on its ring; -1 for none."""
    wires = places[p + 1].first - places[p].first
    s = places[p].slot
    first, size = slots[s].first, slots[s + 1].first - slots[s].first
    links = 2 if slots[s].ring_bytes > 0.0 and size > 1 else 0
    if wires + links == 0:
        return np.int64(-1)
    at = below(random, wires + links)
    if at < wires:
        return np.int64(partner[places[p].first + at])
    seat = (places[p].seat + (1 if at == wires else size - 1)) % size
    return np.int64(ring[first + seat])


@outlined
def _propose_lines(
    places: Any, slots: Any, changed: Any, counts: Any, random: Any, p: Any, replicas: Any
) -> None:
    """Exchange or shift whole slots, turn a stretch of a line round, exchange those of two."""
    num_slots = len(slots) - 1
    s = np.int64(places[p].slot)
    line = p - slots[s].first
    kind = uniform(random)
    if kind < 0.3:  # two slots change places
        other = below(random, num_slots)
        for r in range(replicas if other != s else 0):
            one, two = np.int64(slots[s].first) + r, np.int64(slots[other].first) + r
            _change(changed, counts, one, places[two].device)
            _change(changed, counts, two, places[one].device)
        return
    length = min(num_slots, 1 + geometric(random, 8.0))
    low = max(0, s - length + 1) if uniform(random) < 0.5 else s
    high = min(num_slots, low + length)
    if kind < 0.4:  # all slots of a stretch move on by one
        shift = 1 if uniform(random) < 0.5 else high - low - 1
        for t in range(low, high if shift > 0 else low):
            following = low + (t - low + shift) % (high - low)
            for r in range(replicas):
                two = np.int64(slots[following].first) + r
                if following != t:
                    _change(changed, counts, np.int64(slots[t].first) + r, places[two].device)
        return
    other = below(random, replicas)
    if uniform(random) < 0.2:
        low, high = (s, num_slots) if uniform(random) < 0.5 else (0, s + 1)
    for t in range(low, high):
        one = np.int64(slots[t].first) + line
        if other == line:
            two = np.int64(slots[low + high - 1 - t].first) + line
            if one != two:
                _change(changed, counts, one, places[two].device)
        else:
            two = np.int64(slots[t].first) + other
            _change(changed, counts, one, places[two].device)
            _change(changed, counts, two, places[one].device)
