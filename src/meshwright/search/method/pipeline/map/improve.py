"""Local search on one assignment after the other: starts, targets, temperatures.

Work is counted in steps, not timed, so the same seed and budget give the same assignment.
"""

from collections.abc import Callable

import numpy as np

from meshwright.search.method.pipeline.map.assignment_walk import (
    ACCEPTED,
    BEST,
    COOLING,
    DEVICE,
    FOUND,
    HEAT,
    PLACE,
    SLOT,
    STEP_DOWN,
    STEPS,
    TARGET,
    walk,
)
from meshwright.search.method.pipeline.map.exact import sorted_neighbours
from meshwright.search.method.pipeline.map.problem import Assignment, MappingProblem

_STEP_SECONDS = 2.5e-7
"""Of one step, for each partner and replica that it touches (one core of a server, 2026-11-15)."""
_SLICE = 50_000
"""Steps between two looks at the clock."""


class Walk:
    """The local search, on arrays that are kept between calls."""

    def __init__(self, problem: MappingProblem, seed: int) -> None:
        self.problem = problem
        count, slots = problem.num_places, problem.num_slots
        start, self._partner, self._wire = problem.wires
        self._places = np.zeros(count + 1, PLACE)
        self._places["slot"][:count] = problem.slot_of_place
        self._places["first"] = start
        self._slots = np.zeros(slots + 1, SLOT)
        self._slots["first"] = problem.first_place
        self._slots["ring_bytes"][:-1] = problem.ring_bytes
        self._devices = np.zeros(problem.num_devices, DEVICE)
        self._ring = np.zeros(count, np.int32)
        self._best_ring = np.zeros(count, np.int32)
        self._hot = np.zeros(slots, np.int32)
        self._near = sorted_neighbours(problem.seconds_per_byte)
        self._changed = np.zeros((2 * count + 8, 2), np.int32)
        self._touched = np.zeros((2, count + 8), np.int32)
        self.times = np.zeros(6)
        self.counts = np.zeros(8, np.int64)
        self._random = np.array([seed % 2**64], np.uint64)
        replicas = problem.replicas_of_slot
        self._replicas = int(replicas[0]) if (replicas == replicas[0]).all() else 0
        self.step_seconds = _estimate_step(problem)

    def begin(self, assignment: Assignment, value: float) -> None:
        """Start at an assignment with its value."""
        places = self._places
        places["device"][:-1] = assignment.device_of_place
        places["best_device"] = places["device"]
        self._devices["place"] = -1
        self._devices["place"][assignment.device_of_place] = np.arange(self.problem.num_places)
        at_place = self._devices["place"]
        self._ring[:] = np.concatenate([at_place[each] for each in assignment.rings])
        self._best_ring[:] = self._ring
        slot = self.problem.slot_of_place
        places["seat"][self._ring] = np.arange(len(slot)) - self.problem.first_place[slot]
        places["stamp"] = -1
        self._slots["stamp"] = -1
        self.counts[:] = 0
        self.times[BEST] = value

    def run(
        self, steps: int, target: float, hot: float, cold: float, is_over: Callable[[], bool]
    ) -> None:
        """Search for a target; where it is met, for one that is lower by the same share."""
        if target <= 0:  # nothing is lower
            return
        times = self.times
        times[TARGET] = target
        times[STEP_DOWN] = max(1e-6, 1.0 - target / times[BEST])
        times[HEAT] = hot
        times[COOLING] = (cold / hot) ** (1.0 / max(1, steps))
        problem, left = self.problem, steps
        while left > 0 and not is_over():
            walk(
                self._places, self._slots, self._devices, self._ring, self._best_ring, self._hot,
                self._partner, self._wire, problem.compute, problem.seconds_per_byte, self._near,
                self._changed, self._touched, times, self.counts, self._random,
                min(left, _SLICE), self._replicas,
            )  # fmt: skip
            left -= _SLICE

    @property
    def value(self) -> float:
        """Of the best assignment."""
        return float(self.times[BEST])

    @property
    def best(self) -> Assignment:
        """The best assignment so far."""
        devices = self._places["best_device"][:-1].copy()
        rings = np.split(devices[self._best_ring], self.problem.first_place[1:-1])
        return Assignment(device_of_place=devices, rings=tuple(rings))

    @property
    def statistics(self) -> dict[str, float]:
        """Counts since the last beginning."""
        names = {"steps": STEPS, "accepted": ACCEPTED, "found": FOUND}
        return {name: float(self.counts[place]) for name, place in names.items()}


def _estimate_step(problem: MappingProblem) -> float:
    """About what a step takes: more where much is joined, and beyond the processor's caches."""
    partners = len(problem.wires[1]) / problem.num_places
    replicas = float(problem.replicas_of_slot.mean()) if problem.ring_bytes.any() else 1.0
    far = 1.0 + min(1.0, problem.num_devices / 512)
    return _STEP_SECONDS * far * (1.0 + 0.3 * partners + 0.15 * replicas)
