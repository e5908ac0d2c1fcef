"""Rings over many devices: found by exchanging links. Proves nothing.

For few devices the exact solution of `meshwright.search.method.pipeline.map.ring`.
"""

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.compiled import Array, compiled
from meshwright.search.method.pipeline.map.ring import MOST_EXACT, exact_ring, narrowest

_STARTS = 4
"""Rings that are improved: the devices' own order, and nearest neighbours from some of them."""
_ROUNDS = 200
"""How many links are taken out of one ring, at most."""


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
