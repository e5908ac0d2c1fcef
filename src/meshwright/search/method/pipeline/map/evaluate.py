"""The time of every slot under an assignment: the definition, in plain words. Searches nothing."""

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.search.method.pipeline.map.problem import Assignment, MappingProblem
from meshwright.search.method.pipeline.map.ring import find_ring, narrowest


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


def slowest_seconds(problem: MappingProblem, assignment: Assignment) -> float:
    """The largest time of a slot, which is what mappings minimise."""
    return float(stage_seconds(problem, assignment).max())


def can_run(problem: MappingProblem, device_of_place: Ints) -> bool:
    """Whether every device can run its place."""
    return bool(np.isfinite(problem.compute[problem.slot_of_place, device_of_place]).all())


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
    assert can_run(problem, devices), "devices can run it"
    for part, ring in zip(assignment.devices(problem), assignment.rings, strict=True):
        assert sorted(part) == sorted(ring.tolist()), "a ring holds its slot's devices"
