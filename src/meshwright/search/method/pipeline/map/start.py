"""First assignments: the two orders that frameworks use, and those built along wires.

The two have replicas side by side, or stages side by side. Improves nothing.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.search.method.pipeline.map.problem import (
    Assignment,
    MappingProblem,
    can_run,
    with_rings,
)

_ITERATIONS = 300
"""How often an eigenvector is multiplied: it needs to be right only in its order."""


def greedy_mappings(problem: MappingProblem) -> Iterator[Assignment]:
    """Slot after slot, and line after line: each place on the device that makes it fastest."""
    slot = problem.slot_of_place
    replica = np.arange(problem.num_places) - problem.first_place[slot]
    for order in (np.arange(problem.num_places), np.lexsort((slot, replica))):
        devices = _fill(problem, order.tolist())
        if devices is not None:
            yield with_rings(problem, devices)


def ordered_mappings(problem: MappingProblem) -> Iterator[Assignment]:
    """Slots in an order that keeps partners near, on devices in an order that keeps links fast."""
    slot = problem.slot_of_place
    weight = 1.0 / (problem.seconds_per_byte + np.eye(problem.num_devices))
    weight = np.minimum(weight, weight.T) * (1.0 - np.eye(problem.num_devices))
    seen = set()
    for devices in (np.arange(problem.num_devices), spectral_order(weight)):
        for slots in (np.arange(problem.num_slots), spectral_order(problem.wire_bytes)):
            for places in _layouts(problem, np.argsort(slots)[slot].astype(np.int32)):
                found = np.zeros(problem.num_places, np.int32)
                found[places] = devices[: problem.num_places]
                if found.tobytes() not in seen and can_run(problem, found):
                    seen.add(found.tobytes())
                    yield with_rings(problem, found)


def _layouts(problem: MappingProblem, rank: Ints) -> Iterator[Ints]:
    """Orders of all places: lines side by side in bundles, every other bundle turned round.

    A bundle of one line is p2p-first, one bundle of all lines is all-reduce first; a bundle that
    is turned round has its ends where those of its neighbours are.
    """
    replica = np.arange(problem.num_places) - problem.first_place[problem.slot_of_place]
    most = int(problem.replicas_of_slot.max())
    size = 1
    while True:
        bundle = replica // size
        yield np.lexsort((replica, rank, bundle)).astype(np.int32)
        if size < most:
            turned = np.where(bundle % 2, -rank, rank)
            yield np.lexsort((replica, turned, bundle)).astype(np.int32)
        else:
            return
        size = min(most, 2 * size)


def spectral_order(weight: Floats) -> Ints:
    """By the second eigenvector of the normalised Laplacian: what is joined stands together.

    By iteration, roughly: all eigenvectors of 512 devices took 1.3 s (a server, 2026-11-15).
    """
    degree = weight.sum(axis=1)
    scale = 1 / np.sqrt(np.where(degree > 0, degree, 1.0))
    joined = weight * scale[:, None] * scale[None, :]
    first = np.sqrt(degree) / max(float(np.sqrt(degree.sum())), 1e-300)
    vector = np.linspace(-1.0, 1.0, len(weight))
    for _ in range(_ITERATIONS):
        vector = vector - first * (first @ vector)
        vector = vector + joined @ vector
        vector = vector / max(float(np.linalg.norm(vector)), 1e-300)
    # Rounded, so that the order of equals does not depend on the library's last bits.
    return np.argsort(np.round(vector * scale, 9), kind="stable").astype(np.int32)


def _fill(problem: MappingProblem, order: list[int]) -> Ints | None:
    """Gives each place the device where it is fastest; None where this leaves one without."""
    start, partner, wire = problem.wires
    slowness = problem.seconds_per_byte
    device_of = np.full(problem.num_places, -1, np.int32)
    is_free = np.ones(problem.num_devices, bool)
    for place in order:
        slot = int(problem.slot_of_place[place])
        total = np.where(is_free, problem.compute[slot], np.inf)
        for e in range(int(start[place]), int(start[place + 1])):
            if device_of[partner[e]] >= 0:
                total = total + wire[e] * slowness[:, device_of[partner[e]]]
        mates = device_of[problem.first_place[slot] : problem.first_place[slot + 1]]
        mates = mates[mates >= 0]
        if len(mates):
            total = total + problem.ring_bytes[slot] * slowness[:, mates[-1]]
        device = int(np.argmin(total))
        if total[device] == np.inf:
            return None
        device_of[place], is_free[device] = device, False
    return device_of


def consecutive_mapping(problem: MappingProblem) -> Assignment | None:
    """All-reduce first: the replicas of a slot on neighbouring devices, slot after slot."""
    return _fill_in_turn(problem, range(problem.num_places))


def p2p_first_mapping(problem: MappingProblem) -> Assignment | None:
    """Transfers first: the slots of replica 0 on neighbouring devices, then those of replica 1."""
    slot = problem.slot_of_place
    replica = np.arange(problem.num_places) - problem.first_place[slot]
    return _fill_in_turn(problem, np.lexsort((slot, replica)).tolist())


def _fill_in_turn(problem: MappingProblem, places: Iterable[int]) -> Assignment | None:
    """Gives each place the first device that can run it; None where this leaves one without."""
    free = list(range(problem.num_devices))
    device_of_place = np.full(problem.num_places, -1, np.int32)
    for place in places:
        runs = np.isfinite(problem.compute[problem.slot_of_place[place]])
        device = next((each for each in free if runs[each]), None)
        if device is None:
            return None
        free.remove(device)
        device_of_place[place] = device
    return with_rings(problem, device_of_place)
