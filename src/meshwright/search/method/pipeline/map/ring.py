"""The best ring over some devices: the one whose narrowest link is widest. Knows only links.

Up to `MOST_EXACT` devices exactly, by dynamic programming over subsets on the links within a
threshold; for more by exchanging links, which proves nothing.
"""

from bisect import bisect_left

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.compiled import Array, Bool, Float, Int, compiled, outlined

_STARTS = 4
"""Rings that are improved: the devices' own order, and nearest neighbours from some of them."""
_ROUNDS = 200
"""How many links are taken out of one ring, at most."""

MOST_EXACT = 12
"""Devices of a ring that is solved exactly: 2^12 subsets."""


def narrowest(slowness: Floats, ring: Ints) -> float:
    """Seconds a byte of the slowest link along a ring, zero for one device."""
    if len(ring) < 2:
        return 0.0
    return float(slowness[ring, np.roll(ring, -1)].max())


def exact_ring(slowness: Floats, devices: Ints) -> Ints:
    """The best ring over a few devices, beginning at the first."""
    count = len(devices)
    assert count <= MOST_EXACT, "a longer ring is not solved exactly"
    if count < 3:
        return np.array(devices, np.int32)
    among = np.ascontiguousarray(slowness[np.ix_(devices, devices)])
    levels = np.unique(among[~np.eye(count, dtype=bool)])
    table = np.zeros(1 << count, np.int32)
    everyone = np.arange(count, dtype=np.int32)

    def suffices(level: float) -> bool:
        return bool(has_ring(among, everyone, count, level, table))

    most = float(levels[bisect_left(levels[:-1], True, key=suffices)])
    assert suffices(most), "all links make a ring"
    order = np.zeros(count, np.int32)
    _walk_back(among, count, most, table, order)
    return np.array(devices, np.int32)[order]


@compiled
def has_ring(slowness: Array, devices: Array, count: int, most: float, table: Array) -> Bool:
    """Whether a ring over the first `count` devices has no link slower than `most`.

    Fills `table[mask]`: the set of devices at which a path from the first over `mask` can end.
    """
    return ring_exists(slowness, devices, count, most, table)


@outlined
def ring_exists(slowness: Array, devices: Array, count: Int, most: Float, table: Array) -> Bool:
    """Whether a ring over the first devices is fast enough: `has_ring` for kernels."""
    if count < 2:
        return True
    full = np.int64(1) << np.int64(count)
    for mask in range(full):
        table[mask] = 0
    table[1] = 1
    for mask in range(1, full, 2):
        ends = np.int64(table[mask])
        if ends == 0:
            continue
        for new in range(1, count):
            bit = np.int64(1) << np.int64(new)
            if mask & bit or table[mask | bit] & bit:
                continue
            for end in range(count):
                if ends >> end & 1 and slowness[devices[end], devices[new]] <= most:
                    table[mask | bit] |= np.int32(bit)
                    break
    for end in range(1, count):
        if table[full - 1] >> end & 1 and slowness[devices[end], devices[0]] <= most:
            return True
    return False


@compiled
def _walk_back(slowness: Array, count: int, most: float, table: Array, order: Array) -> None:
    """The ring, from the table that `has_ring` has filled."""
    mask = (np.int64(1) << np.int64(count)) - 1
    following = np.int64(0)
    for at in range(count - 1, 0, -1):
        for end in range(1, count):
            if table[mask] >> end & 1 and slowness[end, following] <= most:
                order[at] = end
                following = np.int64(end)
                mask ^= np.int64(1) << np.int64(end)
                break
    order[0] = 0


def find_ring(slowness: Floats, devices: Ints, seed: int = 0) -> Ints:
    """The best ring found over the devices; the optimum up to `MOST_EXACT`."""
    if len(devices) <= MOST_EXACT:
        return exact_ring(slowness, devices)
    scratch = np.zeros(len(devices), np.int32)
    best, best_link = np.array(devices, np.int32), np.inf
    first = np.random.default_rng(seed % 2**32).integers(0, len(devices), _STARTS - 1)
    for start in (-1, *first.tolist()):
        ring = best.copy() if start < 0 else _nearest_first(slowness, devices, start)
        _exchange(slowness, ring, scratch, _ROUNDS)
        link = narrowest(slowness, ring)
        if link < best_link:
            best, best_link = ring, link
    return best


def _nearest_first(slowness: Floats, devices: Ints, start: int) -> Ints:
    """From device to device over the fastest link that is left."""
    ring = [int(devices[start])]
    left = np.delete(np.asarray(devices), start)
    while len(left):
        at = int(np.argmin(slowness[ring[-1], left]))
        ring.append(int(left[at]))
        left = np.delete(left, at)
    return np.array(ring, np.int32)


@compiled
def _exchange(slowness: Array, ring: Array, kept: Array, rounds: int) -> None:
    """Take out the slowest link by reversing a stretch, as long as that makes a faster ring."""
    count = len(ring)
    for _ in range(rounds):
        worst, at = -1.0, 0
        for i in range(count):
            link = slowness[ring[i], ring[(i + 1) % count]]
            if link > worst:
                worst, at = link, i
        # Turn the ring so that the slowest link is from the last to the first.
        for i in range(count):
            kept[i] = ring[(at + 1 + i) % count]
        best, best_end = worst, -1
        for end in range(1, count - 1):
            # Reversed up to `end`: links last -> kept[end] and kept[0] -> kept[end + 1] are new.
            value = max(slowness[kept[count - 1], kept[end]], slowness[kept[0], kept[end + 1]])
            if value >= best:
                continue
            for i in range(end):
                value = max(value, slowness[kept[i + 1], kept[i]])
                if value >= best:
                    break
            if value < best:
                best, best_end = value, end
        if best_end < 0:
            return
        for i in range(count):
            ring[i] = kept[best_end - i] if i <= best_end else kept[i]
