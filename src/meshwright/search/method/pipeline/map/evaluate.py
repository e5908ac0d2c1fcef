"""The time of every slot under an assignment: the definition, in plain words. Searches nothing.

Rings over many devices: found by exchanging links. Proves nothing.

For few devices the exact solution of `meshwright.search.method.pipeline.map.ring`.
"""

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.compiled import Array, compiled
from meshwright.search.method.pipeline.map.problem import Assignment, MappingProblem
from meshwright.search.method.pipeline.map.ring import MOST_EXACT, exact_ring, narrowest


def place_seconds(problem: MappingProblem, device_of_place: Ints) -> Floats:
    """Of each place compute plus transfers to its partners."""
    start, partner, wire = problem.wires
    slowness = problem.seconds_per_byte
    total = problem.compute[problem.slot_of_place, device_of_place].copy()
    owner = np.repeat(np.arange(problem.num_places), np.diff(start))
    moved = wire * slowness[device_of_place[owner], device_of_place[partner]]
    np.add.at(total, owner, moved)
    return total


def stage_seconds(problem: MappingProblem, assignment: Assignment) -> Floats:
    """Of each slot the slowest replica's time plus the all-reduce along its ring."""
    places = place_seconds(problem, assignment.device_of_place)
    slowest = np.maximum.reduceat(places, problem.first_place[:-1])
    links = [narrowest(problem.seconds_per_byte, ring) for ring in assignment.rings]
    total: Floats = slowest + problem.ring_bytes * np.array(links)
    return total


def with_rings(problem: MappingProblem, device_of_place: Ints, seed: int = 0) -> Assignment:
    """The assignment with the best ring that is found for each slot."""
    parts = np.split(np.asarray(device_of_place, np.int32), problem.first_place[1:-1])
    rings = [
        find_ring(problem.seconds_per_byte, each, seed) if weight > 0 else each
        for each, weight in zip(parts, problem.ring_bytes.tolist(), strict=True)
    ]
    return Assignment(device_of_place=np.asarray(device_of_place, np.int32), rings=tuple(rings))


def check_assignment(problem: MappingProblem, assignment: Assignment) -> None:
    """Assert that every place has a device of its own that can run it, and rings hold them."""
    devices = assignment.device_of_place
    assert len(devices) == problem.num_places, "every place has a device"
    assert len(np.unique(devices)) == len(devices), "no device is taken twice"
    assert np.isfinite(problem.compute[problem.slot_of_place, devices]).all(), "devices can run it"
    for part, ring in zip(assignment.devices(problem), assignment.rings, strict=True):
        assert sorted(part) == sorted(ring.tolist()), "a ring holds its slot's devices"


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
