"""Bounds from a few slots alone: no mapping is better than the best of any part of its slots.

The part keeps what its places need on every device of all of the problem (`place_floors`), so
little is lost but that partners outside may share devices.
"""

from collections.abc import Iterator

import numpy as np

from meshwright.array import Floats
from meshwright.search.method.pipeline.map.problem import MappingProblem


def part_of(problem: MappingProblem, slots: list[int]) -> MappingProblem:
    """The problem of some slots; what they exchange with others is left out."""
    return MappingProblem(
        seconds=problem.seconds[slots],
        replicas_of_slot=problem.replicas_of_slot[slots],
        wire_bytes=problem.wire_bytes[np.ix_(slots, slots)],
        sync_bytes=problem.sync_bytes[slots],
        memory_bytes=problem.memory_bytes[slots],
        type_of_device=problem.type_of_device,
        device_memory_bytes=problem.device_memory_bytes,
        bandwidth=problem.bandwidth,
    )


def critical_parts(
    problem: MappingProblem, stage_seconds: Floats, most: int
) -> Iterator[list[int]]:
    """For each of the slowest slots: it alone, it with its partners, and theirs."""
    for slot in np.argsort(-stage_seconds, kind="stable")[:most].tolist():
        part = {slot}
        yield [slot]
        for _ in range(2):
            wider = part | set(np.flatnonzero(problem.wire_bytes[sorted(part)].any(axis=0)))
            if len(wider) == len(part) or len(wider) == problem.num_slots:
                break
            part = {int(each) for each in wider}
            yield sorted(part)
