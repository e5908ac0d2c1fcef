"""The two orders that frameworks use: replicas side by side, or stages side by side.

Devices are taken in the cluster's order; one that cannot run what is next is left for later.
"""

from collections.abc import Iterable

import numpy as np

from meshwright.search.method.pipeline.map.evaluate import with_rings
from meshwright.search.method.pipeline.map.problem import Assignment, MappingProblem


def consecutive_mapping(problem: MappingProblem) -> Assignment | None:
    """All-reduce first: the replicas of a slot on neighbouring devices, slot after slot."""
    return _fill(problem, range(problem.num_places))


def p2p_first_mapping(problem: MappingProblem) -> Assignment | None:
    """Transfers first: the slots of replica 0 on neighbouring devices, then those of replica 1."""
    slot = problem.slot_of_place
    replica = np.arange(problem.num_places) - problem.first_place[slot]
    return _fill(problem, np.lexsort((slot, replica)).tolist())


def _fill(problem: MappingProblem, places: Iterable[int]) -> Assignment | None:
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
