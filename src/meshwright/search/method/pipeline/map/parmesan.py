"""Parmesan's mapping as published: transfers alone, or all-reduce alone, and the better of both.

Each is a bisection of targets with a depth-first search and forward checking for every target. What
the other term costs is not seen by the search; the ensemble chooses by all three together.
"""

from dataclasses import dataclass, replace

import numpy as np

from meshwright.array import Ints
from meshwright.search.method.pipeline.map.exact import TOLERANCE, Meter, Probe, dive
from meshwright.search.method.pipeline.map.match import as_places, least_limit, match_slots
from meshwright.search.method.pipeline.map.pack import place_floors
from meshwright.search.method.pipeline.map.problem import (
    Assignment,
    MappingProblem,
    find_reason,
    slowest_seconds,
    with_rings,
)
from meshwright.search.method.pipeline.map.start import consecutive_mapping, p2p_first_mapping
from meshwright.search.method.pipeline.map.symmetry import find_symmetry

_SLACK = 4.0
"""Its time is the clock's: work as it is estimated may be this much more."""
_SHARE = 0.2
"""The share of the time that is left which one target may take. It doubles each time that no target
is left to try."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """The mapping of one instantiation, or of both."""

    assignment: Assignment
    seconds: float
    """The largest time of a slot, counting compute, transfers and all-reduce."""
    is_proved: bool
    """Whether its own objective is proved to be least."""


def parmesan_mapping(
    problem: MappingProblem, *, budget_seconds: float = 30.0
) -> tuple[Published, Published, Published]:
    """Transfers only, all-reduce only, and the better of the two; each has half of the budget."""
    assert not find_reason(problem), "there is a mapping"
    alone = [
        _solve_alone(problem, replace(problem, **{name: np.zeros_like(getattr(problem, name))}),
                     Meter(budget_seconds / 2, slack=_SLACK))
        for name in ("sync_bytes", "wire_bytes")
    ]  # fmt: skip
    return alone[0], alone[1], min(alone, key=lambda each: each.seconds)


def _solve_alone(problem: MappingProblem, part: MappingProblem, meter: Meter) -> Published:
    """The best mapping of a problem that lacks a term, judged by the whole."""
    first = _first(part)
    floors = place_floors(part)
    low = least_limit(floors, part.replicas_of_slot) * (1 - TOLERANCE)
    search = Probe(part, find_symmetry(part), floors)

    def evaluate(devices: Ints) -> float:
        return slowest_seconds(part, with_rings(part, devices))

    devices, value, share, is_proved = None, slowest_seconds(part, first), _SHARE / _SLACK, False
    while not is_proved and not meter.is_over():  # again, with more patience
        found, value, is_proved = dive(search, low, value, evaluate, meter, share)
        devices = devices if found is None else found
        share = min(1.0, 2 * share)
    best = with_rings(problem, first.device_of_place if devices is None else devices)
    return Published(assignment=best, seconds=slowest_seconds(problem, best), is_proved=is_proved)


def _first(problem: MappingProblem) -> Assignment:
    starts = [consecutive_mapping(problem), p2p_first_mapping(problem)]
    known = [each for each in starts if each is not None]
    if not known:
        slot_of, _ = match_slots(np.isfinite(problem.compute), problem.replicas_of_slot)
        known = [with_rings(problem, as_places(slot_of, problem.first_place))]
    return min(known, key=lambda each: slowest_seconds(problem, each))
