"""The mapping problem: slots, their replicas, and devices whose links differ. Knows no search.

A *slot* is what one device runs for one replica: a stage, or several virtual stages when they are
interleaved. A *place* is one replica of one slot; every place needs a device of its own. Places of
two slots exchange the bytes of the share of the batch that they have in common: with as many
replicas on both sides replica r talks to replica r alone.

The time of a slot is the largest, over its replicas, of compute plus the bytes of every partner
over the bandwidth to it, plus a ring all-reduce of its gradients,
2 (R - 1) / R x bytes / the narrowest link along the ring; a ring is directed. Latency is left out.
What is minimised is the largest time of a slot (Parmesan's objective, all three terms together).

The time of every slot under an assignment, in plain words, what a search for a mapping says, and
why there may be none, stand here, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints
from meshwright.errors import InputError
from meshwright.plan.answer import Stop
from meshwright.search.method.pipeline.map.match import match_slots
from meshwright.search.method.pipeline.map.ring import find_ring, narrowest
from meshwright.units import format_bytes


@dataclass(frozen=True, kw_only=True, eq=False)
class MappingProblem:
    """What is mapped, and onto what."""

    seconds: Floats
    """Slot x device type: compute of one replica, infinite where the type cannot run the slot."""
    replicas_of_slot: Ints
    wire_bytes: Floats
    """Slot x slot, symmetric: what the two exchange, forwards and backwards, whole batch."""
    sync_bytes: Floats
    """The bytes of each slot's gradients, to be all-reduced over its replicas."""
    memory_bytes: Floats
    """What each slot needs on its device."""
    type_of_device: Ints
    """The column of `seconds`."""
    device_memory_bytes: Floats
    bandwidth: Floats
    """Device x device, bytes a second; the diagonal is ignored."""

    def __post_init__(self) -> None:
        for name, kind in _KINDS.items():
            array: npt.NDArray[np.generic] = np.array(getattr(self, name), dtype=kind)
            array.flags.writeable = False
            object.__setattr__(self, name, array)
        _check_shapes(self)
        _check_values(self)

    @property
    def num_slots(self) -> int:
        """How many slots the problem has."""
        return len(self.replicas_of_slot)

    @property
    def num_devices(self) -> int:
        """How many devices the problem has."""
        return len(self.type_of_device)

    @property
    def num_places(self) -> int:
        """How many devices are needed."""
        return int(self.replicas_of_slot.sum())

    @cached_property
    def first_place(self) -> Ints:
        """Places of slot s are numbered from entry s up to entry s + 1, one entry a replica."""
        return np.concatenate(([0], np.cumsum(self.replicas_of_slot))).astype(np.int32)

    @cached_property
    def slot_of_place(self) -> Ints:
        """The slot of each place."""
        return np.repeat(np.arange(self.num_slots, dtype=np.int32), self.replicas_of_slot)

    @cached_property
    def compute(self) -> Floats:
        """Slot x device: seconds, infinite where the slot cannot run or does not fit."""
        fits = self.memory_bytes[:, None] <= self.device_memory_bytes[None, :]
        # One order of rows and columns for all: kernels are compiled for each anew.
        return np.ascontiguousarray(np.where(fits, self.seconds[:, self.type_of_device], np.inf))

    @cached_property
    def seconds_per_byte(self) -> Floats:
        """Device x device: 1 / bandwidth, zero on the diagonal."""
        bandwidth = self.bandwidth.copy()
        np.fill_diagonal(bandwidth, np.inf)
        return np.ascontiguousarray(1.0 / bandwidth)

    @cached_property
    def ring_bytes(self) -> Floats:
        """Of each slot what goes over every link of its ring: 2 (R - 1) / R x gradients."""
        replicas = self.replicas_of_slot
        return 2.0 * (replicas - 1) / replicas * self.sync_bytes

    @cached_property
    def wires(self) -> tuple[Ints, Ints, Floats]:
        """Partners of place p: entries [start[p], start[p + 1]) of the places and their bytes.

        The most bytes first. Replica i of R1 and j of R2 have in common the overlap of
        [i / R1, (i + 1) / R1) and [j / R2, (j + 1) / R2).
        """
        found: list[list[tuple[float, int]]] = [[] for _ in range(self.num_places)]
        rows, columns = np.nonzero(self.wire_bytes)
        for one, other in zip(rows.tolist(), columns.tolist(), strict=True):
            first, second = (int(self.replicas_of_slot[each]) for each in (one, other))
            for i in range(first):
                place = int(self.first_place[one]) + i
                for j in range(i * second // first, -(-(i + 1) * second // first)):
                    low = max(i * second, j * first)
                    high = min((i + 1) * second, (j + 1) * first)
                    share = (high - low) / (first * second)
                    bytes_ = float(self.wire_bytes[one, other]) * share
                    found[place].append((-bytes_, int(self.first_place[other]) + j))
        flat = [each for partners in found for each in sorted(partners)]
        start = np.concatenate(([0], np.cumsum([len(each) for each in found]))).astype(np.int32)
        return (
            start,
            np.array([place for _, place in flat], np.int32),
            np.array([-negative for negative, _ in flat], np.float64),
        )


def links_differ(bandwidth: Floats) -> bool:
    """Whether it matters between which devices something goes."""
    rates = bandwidth[~np.eye(len(bandwidth), dtype=np.bool_)]
    return bool(len(rates) and rates.min() < rates.max())


_KINDS: dict[str, type] = {
    "seconds": np.float64,
    "replicas_of_slot": np.int32,
    "wire_bytes": np.float64,
    "sync_bytes": np.float64,
    "memory_bytes": np.float64,
    "type_of_device": np.int32,
    "device_memory_bytes": np.float64,
    "bandwidth": np.float64,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class Assignment:
    """A device for every place, and the order of every ring."""

    device_of_place: Ints
    rings: tuple[Ints, ...]
    """By slot its devices in the ring's order: each sends to the next, the last to the first."""

    def devices(self, problem: MappingProblem) -> tuple[tuple[int, ...], ...]:
        """Of each slot the device of each replica."""
        parts = np.split(self.device_of_place, problem.first_place[1:-1])
        return tuple(tuple(each.tolist()) for each in parts)


def _check_shapes(problem: MappingProblem) -> None:
    slots, devices = len(problem.replicas_of_slot), len(problem.type_of_device)
    if not slots or not devices:
        raise InputError(f"a mapping needs slots and devices, got {slots} and {devices}")
    if problem.seconds.ndim != 2:
        raise InputError(f"seconds must be slot x type, got shape {problem.seconds.shape}")
    wanted = {
        "seconds": (slots, problem.seconds.shape[1]),
        "wire_bytes": (slots, slots),
        "sync_bytes": (slots,),
        "memory_bytes": (slots,),
        "device_memory_bytes": (devices,),
        "bandwidth": (devices, devices),
    }
    for name, shape in wanted.items():
        if getattr(problem, name).shape != shape:
            got = getattr(problem, name).shape
            raise InputError(f"{name} must have the shape {shape}, got {got}")


def _check_values(problem: MappingProblem) -> None:
    if (problem.replicas_of_slot < 1).any():
        raise InputError(f"every slot needs a replica, got {problem.replicas_of_slot.min()}")
    kinds = problem.seconds.shape[1]
    if problem.type_of_device.min() < 0 or problem.type_of_device.max() >= kinds:
        raise InputError(f"type_of_device must be from 0 to {kinds - 1}")
    for name in ("seconds", "wire_bytes", "sync_bytes", "memory_bytes", "device_memory_bytes"):
        if not (getattr(problem, name) >= 0).all():
            raise InputError(f"{name} must not be negative")
    for name in ("wire_bytes", "sync_bytes"):
        if not np.isfinite(getattr(problem, name)).all():
            raise InputError(f"{name} must be finite")
    if (problem.wire_bytes != problem.wire_bytes.T).any() or problem.wire_bytes.trace() > 0:
        raise InputError("wire_bytes must be symmetric, and zero from a slot to itself")
    off = ~np.eye(problem.num_devices, dtype=bool)
    if not (problem.bandwidth[off] > 0).all():
        raise InputError("bandwidth must be positive between every two devices")


@dataclass(frozen=True, slots=True, kw_only=True)
class MappingAnswer:
    """The best assignment and a proven bound."""

    assignment: Assignment | None
    stage_seconds: Floats
    """The time of each slot, in seconds; empty without an assignment."""
    seconds: float
    """The largest of them, which is minimised; infinite without an assignment."""
    bound_seconds: float
    """No assignment is faster."""
    stop: Stop
    reason: str = ""
    """Why there is no assignment."""
    search_seconds: float = 0.0
    is_interrupted: bool = False
    """Whether Ctrl-C ended the search."""
    statistics: Mapping[str, float] = field(default_factory=dict)

    @property
    def gap(self) -> float:
        """How far above the bound the assignment may be: seconds / bound - 1."""
        if self.stop is Stop.PROVED or self.seconds <= self.bound_seconds:
            return 0.0
        return self.seconds / self.bound_seconds - 1 if self.bound_seconds > 0 else float("inf")


def find_reason(problem: MappingProblem) -> str:
    """Why no assignment exists; empty when one does."""
    if problem.num_places > problem.num_devices:
        return _too_few(problem)
    can_run = np.isfinite(problem.seconds[:, problem.type_of_device])
    for slot in range(problem.num_slots):
        wanted = int(problem.replicas_of_slot[slot])
        able = int(can_run[slot].sum())
        if able < wanted:
            return f"stage {slot} has {wanted:,} replicas, but only {able:,} devices can run it"
        fits = int(np.isfinite(problem.compute[slot]).sum())
        if fits < wanted:
            needed = float(problem.memory_bytes[slot])
            largest = float(problem.device_memory_bytes[can_run[slot]].max())
            return (
                f"stage {slot} needs {format_bytes(needed)} on each of {wanted:,} devices, but it "
                f"fits on {fits} (the largest that can run it has {format_bytes(largest)})"
            )
    missing = match_slots(np.isfinite(problem.compute), problem.replicas_of_slot)[1]
    if missing:
        return f"{missing} stage replicas get no device that runs them and holds their memory"
    return ""


def _too_few(problem: MappingProblem) -> str:
    replicas = np.unique(problem.replicas_of_slot)
    if len(replicas) == 1:
        wanted = f"{problem.num_slots:,} stages x {replicas[0]:,} replicas"
    else:
        wanted = f"{problem.num_slots:,} stages of {replicas[0]} to {replicas[-1]:,} replicas"
    return f"{wanted} = {problem.num_places} need more than the {problem.num_devices:,} devices"


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
