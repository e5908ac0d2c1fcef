"""Proven lower bounds of mappings: what every place needs on every device, and who can have it."""

import numpy as np

from meshwright.array import Floats
from meshwright.search.method.pipeline.map.problem import MappingProblem


def place_floors(problem: MappingProblem) -> Floats:
    """Slot x device: no replica of the slot on that device makes the slot faster than this.

    The device's fastest links serve the slot's largest wires and its two links of the ring,
    whatever the other devices get.
    """
    floors = problem.compute.copy()
    fastest = fastest_links(problem)
    start, _, wire = problem.wires
    for slot in range(problem.num_slots):
        ring = float(problem.ring_bytes[slot])
        replicas = int(problem.replicas_of_slot[slot])
        used = 0 if ring == 0 or replicas < 2 else min(2, replicas - 1)
        least = np.full(problem.num_devices, np.inf)
        for place in range(int(problem.first_place[slot]), int(problem.first_place[slot + 1])):
            wires = wire[start[place] : start[place + 1]]
            least = np.minimum(least, _least_links(fastest, wires, used, ring))
        floors[slot] += least
    return floors


def fastest_links(problem: MappingProblem) -> Floats:
    """Of each device the slowness of its links, the fastest first; the last is infinite."""
    slowness = np.minimum(problem.seconds_per_byte, problem.seconds_per_byte.T)
    return np.sort(slowness + np.diag(np.full(len(slowness), np.inf)), axis=1)


def _least_links(fastest: Floats, wires: Floats, used: int, ring_bytes: float) -> Floats:
    """Of each device: wires on the fastest links that the ring leaves, plus the ring.

    The ring's slower link is some rank j; its other one, if any, may as well be rank j - 1.
    """
    count = len(wires)
    if count + used > fastest.shape[1] - 1:
        return np.full(len(fastest), np.inf)
    if not used:
        return fastest[:, :count] @ wires
    best = np.full(len(fastest), np.inf)
    for rank in range(used - 1, count + used):
        kept = [j for j in range(count + used) if not rank - used < j <= rank]
        total = ring_bytes * fastest[:, rank] + fastest[:, kept] @ wires
        best = np.minimum(best, total)
    return best
