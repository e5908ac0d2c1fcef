"""Devices, and groups of devices, whose exchange changes nothing. Verified, never guessed.

Twins: two devices of one type and memory with the same links to all others. Groups: what is
joined by fast links (a host), exchanged device by device in their order.
"""

from dataclasses import dataclass

import numpy as np

from meshwright.array import Bools, Ints
from meshwright.kernel.root import join_pairs
from meshwright.search.method.pipeline.map.problem import MappingProblem

_MOST_DEVICES = 1024
"""On more devices than this no symmetry is looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symmetry:
    """Which devices, and groups of them, may be exchanged: numbers for every device."""

    twin: Ints
    """Any two devices of one number may be exchanged."""
    group: Ints
    kind: Ints
    """Any two groups of one kind may be exchanged; -1: this group may not."""
    seat: Ints
    """Which devices of two groups take each other's place: those of one seat."""


def find_symmetry(problem: MappingProblem) -> Symmetry:
    """The twins, and the division into groups that leaves most of them alike."""
    count = problem.num_devices
    none = Symmetry(
        twin=np.arange(count, dtype=np.int32),
        group=np.arange(count, dtype=np.int32),
        kind=np.full(count, -1, np.int32),
        seat=np.zeros(count, np.int32),
    )
    if count > _MOST_DEVICES:
        return none
    twin = _find_twins(problem)
    best, best_alike = none, 0
    for labels in _divisions(problem):
        found, alike = _kinds_of(problem, labels)
        if alike > best_alike:
            best, best_alike = found, alike
    return Symmetry(twin=twin, group=best.group, kind=best.kind, seat=best.seat)


def _find_twins(problem: MappingProblem) -> Ints:
    slowness = problem.seconds_per_byte
    # Devices of one colour compute alike and have the same memory.
    table = np.concatenate((problem.compute.T, np.sort(slowness, axis=1)), axis=1)
    colour = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
    twin = np.arange(problem.num_devices, dtype=np.int32)
    for number in range(int(colour.max()) + 1):
        members = np.flatnonzero(colour == number)
        for at, one in enumerate(members.tolist()):
            rest = members[at + 1 :]
            rest = rest[twin[rest] == rest]
            if twin[one] != one or not len(rest):
                continue
            # Rows of twins differ at the two devices themselves, if anywhere.
            same = (slowness[rest] == slowness[one]).sum(axis=1)
            for other in rest[same >= problem.num_devices - 2].tolist():
                if _may_exchange(problem, [one], [other]):
                    twin[other] = one
    return twin


def _may_exchange(problem: MappingProblem, one: list[int], other: list[int]) -> bool:
    """Whether exchanging two groups, device by device, leaves compute and links as they are."""
    order = np.arange(problem.num_devices)
    order[one], order[other] = other, one
    rows = [*one, *other]
    slowness = problem.seconds_per_byte
    return bool(
        (problem.compute[:, rows] == problem.compute[:, order[rows]]).all()
        and (slowness[np.ix_(order[rows], order)] == slowness[rows]).all()
        and (slowness[np.ix_(order, order[rows])] == slowness[:, rows]).all()
    )


def _divisions(problem: MappingProblem) -> list[Ints]:
    """Devices joined by links of at least some bandwidth, for each of a few bandwidths."""
    slowness = np.maximum(problem.seconds_per_byte, problem.seconds_per_byte.T)
    levels = np.unique(slowness)[1:]
    if len(levels) > 16:  # every link differs: nothing is alike
        return []
    found = []
    for level in levels.tolist():
        labels = components(slowness <= level)
        if 1 < labels.max() + 1 < problem.num_devices:
            found.append(labels)
    return found


def components(is_joined: Bools) -> Ints:
    """The number of each device's component."""
    labels = np.arange(len(is_joined), dtype=np.int32)
    one, other = np.nonzero(is_joined)
    join_pairs(labels, one.astype(np.int32), other.astype(np.int32))
    return np.unique(labels, return_inverse=True)[1].astype(np.int32)


def _kinds_of(problem: MappingProblem, labels: Ints) -> tuple[Symmetry, int]:
    """Which groups may be exchanged, and how many may be with some other."""
    groups = [np.flatnonzero(labels == each).tolist() for each in range(int(labels.max()) + 1)]
    kind = np.full(problem.num_devices, -1, np.int32)
    seat = np.zeros(problem.num_devices, np.int32)
    alike = 0
    for number, group in enumerate(groups):
        seat[group] = np.arange(len(group))
        if kind[group[0]] >= 0:
            continue
        kind[group] = number
        for other in groups[number + 1 :]:
            if (
                len(other) == len(group)
                and kind[other[0]] < 0
                and _may_exchange(problem, group, other)
            ):
                kind[other] = number
                alike += 1
    found = Symmetry(twin=labels, group=labels, kind=kind, seat=seat)
    return found, alike
