"""Splitting a graph over devices so that the busiest is as fast as can be: what is given.

Load of a device = the seconds of its nodes on its kind, plus its kind's share of the seconds of
every wire of which it holds some pins but not all. This is the throughput objective of
Tarnawski et al. (NeurIPS 2020, section 3: what a node makes is sent once, and received once by
every other device that reads it; CPUs pay nothing), of Parmesan's stages (compute / R plus
communication) and of PipeDream's, depending on where the numbers come from.

A *contiguous* split is a chain of downsets: stage 1, then stages 1 and 2, ... are each closed under
predecessors, so that stages can run as a pipeline. A *free* split is any assignment. Knows nothing
of searching.
"""

import itertools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.errors import InputError
from meshwright.kernel.row import sum_values


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class DeviceKind:
    """Equal devices, or one way of several to use them."""

    name: str
    count: int
    """Devices of the pool."""
    seconds: Floats
    """Of each node; infinity: cannot run it."""
    memory_bytes: float = math.inf
    wire_share: float = 1.0
    """Of the seconds of a cut wire what a device pays: none on CPUs, 1/R of R replicas."""
    width: int = 1
    """Devices of the pool that one stage takes, its replicas; free splits know width 1 only."""
    pool: str = ""
    """Kinds of one pool share its devices; empty: a pool of its own."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SplitProblem:
    """Nodes numbered in a topological order, wires between them and kinds of devices."""

    kinds: tuple[DeviceKind, ...]
    bytes: Floats
    """Of each node what a device holds for it, whatever the schedule."""
    saved_bytes: Floats
    """Of each node what a device holds for every microbatch in flight."""
    in_flight: tuple[int, ...] = ()
    """Microbatches in flight in the first, the second, ... of as many stages as devices; fewer
    stages have the last of these. None given: none counts."""
    edge_source: Ints
    edge_target: Ints
    """Node `edge_source[e]` comes before, or in the stage of, `edge_target[e]`."""
    wire_start: Ints
    wire_node: Ints
    """The pins of wire w: `wire_node[wire_start[w]:wire_start[w + 1]]`, at least two, no node
    twice."""
    wire_seconds: Floats

    @property
    def num_nodes(self) -> int:
        """How many nodes there are to place."""
        return len(self.bytes)

    @property
    def num_wires(self) -> int:
        """How many wires join them."""
        return len(self.wire_seconds)

    @property
    def num_devices(self) -> int:
        """How many devices in all pools."""
        return sum({kind.pool or kind.name: kind.count for kind in self.kinds}.values())

    def pins(self, wire: int) -> list[int]:
        """The nodes that a wire joins."""
        first, last = self.wire_start[wire], self.wire_start[wire + 1]
        found: list[int] = self.wire_node[first:last].tolist()
        return found


def make_problem(
    *,
    kinds: Sequence[DeviceKind],
    num_bytes: Sequence[float] | Floats,
    edges: Iterable[tuple[int, int]],
    wires: Iterable[tuple[Iterable[int], float]],
    saved_bytes: Sequence[float] | Floats = (),
    in_flight: Sequence[int] = (),
) -> SplitProblem:
    """A problem from edges and wires as lists: wires with equal pins add up, free ones vanish."""
    held = np.asarray(num_bytes, dtype=np.float64)
    saved = np.asarray(saved_bytes, dtype=np.float64) if len(saved_bytes) else np.zeros(len(held))
    pairs = sorted({(u, v) for u, v in edges if u != v})
    for u, v in pairs:
        if not 0 <= u < v < len(held):
            raise InputError(
                f"split: nodes must be numbered in a topological order, got edge {u} -> {v} of "
                f"{len(held):,} nodes"
            )
    for kind in kinds:
        if len(kind.seconds) != len(held) or kind.count < 0:
            raise InputError(
                f"split: kind {kind.name} must have a count of at least 0 and the seconds of "
                f"{len(held):,} nodes, got {kind.count} and {len(kind.seconds)}"
            )
    devices = sum({kind.pool or kind.name: kind.count for kind in kinds}.values())
    is_falling = all(a >= b for a, b in itertools.pairwise(in_flight))
    if len(in_flight) not in (0, devices) or not is_falling:
        raise InputError(
            f"split: in_flight must be {devices} numbers, one a device, none above the one before, "
            f"got {list(in_flight)[:20]}"
        )
    named = ((tuple(sorted(set(pins))), seconds) for pins, seconds in wires)
    costs = sum_values((key, cost) for key, cost in named if len(key) > 1 and cost > 0)
    keys = sorted(costs)
    lengths = [len(key) for key in keys]
    return SplitProblem(
        kinds=tuple(kinds),
        bytes=held,
        saved_bytes=saved,
        in_flight=tuple(in_flight),
        edge_source=np.array([u for u, _ in pairs], dtype=np.int32),
        edge_target=np.array([v for _, v in pairs], dtype=np.int32),
        wire_start=np.concatenate(([0], np.cumsum(lengths))).astype(np.int32),
        wire_node=np.array([node for key in keys for node in key], dtype=np.int32),
        wire_seconds=np.array([costs[key] for key in keys], dtype=np.float64),
    )


def without_misfits(problem: SplitProblem) -> SplitProblem:
    """The same problem, where a kind without the memory for a node alone cannot run it: as true,
    and seen by bounds that know nothing of memory."""
    held = problem.bytes + min(problem.in_flight, default=0) * problem.saved_bytes
    kinds = tuple(
        replace(kind, seconds=np.where(held <= kind.memory_bytes, kind.seconds, np.inf))
        for kind in problem.kinds
    )
    return replace(problem, kinds=kinds)


def find_stuck_node(problem: SplitProblem) -> int:
    """A node that no device can run, of a problem without misfits; -1 where there is none."""
    usable = [kind.seconds for kind in problem.kinds if kind.count >= kind.width]
    stuck = np.flatnonzero(~np.isfinite(usable).any(axis=0)) if usable else range(1)
    return int(stuck[0]) if len(stuck) else -1


def device_loads(
    problem: SplitProblem, device_of_node: Sequence[int] | Ints, kind_of_device: Sequence[int]
) -> Floats:
    """The load of every device: compute, and the wires that it holds in part."""
    device_of_node = np.asarray(device_of_node)
    loads = np.zeros(len(kind_of_device))
    for device, kind in enumerate(kind_of_device):
        loads[device] = problem.kinds[kind].seconds[device_of_node == device].sum()
    # Every device of every wire once, and of these the wires of several devices.
    wire_of_pin = np.repeat(np.arange(problem.num_wires), np.diff(problem.wire_start))
    count = len(loads)
    wire, holder = np.divmod(
        np.unique(wire_of_pin * count + device_of_node[problem.wire_node]), max(1, count)
    )
    is_cut = np.bincount(wire, minlength=problem.num_wires)[wire] > 1
    wire, holder = wire[is_cut], holder[is_cut]
    shares = np.array([problem.kinds[kind].wire_share for kind in kind_of_device])
    np.add.at(loads, holder, shares[holder] * problem.wire_seconds[wire])
    return loads


def fits_memory(
    problem: SplitProblem, device_of_node: Sequence[int] | Ints, kind_of_device: Sequence[int]
) -> bool:
    """Whether every device has the memory for its nodes; device numbers are stage numbers where
    microbatches in flight count."""
    device_of_node = np.asarray(device_of_node)
    flights = problem.in_flight[len(problem.in_flight) - len(kind_of_device) :]
    for device, kind in enumerate(kind_of_device):
        inside = device_of_node == device
        held = problem.bytes[inside].sum()
        if flights:
            held += flights[device] * problem.saved_bytes[inside].sum()
        if held > problem.kinds[kind].memory_bytes:
            return False
    return True
