"""Makes instructions of the ops of an expansion that are collectives: who takes part, and where
they queue.

A device has a lane for each sort of them, so that gradients on their way hold up nobody who waits
for a team's word. Within a lane they run one after the other, in one order on all devices.
"""

from enum import IntEnum

import numpy as np
import numpy.typing as npt

from meshwright.graph.graph import Split
from meshwright.program.expand.expansion import Axis
from meshwright.program.program import Kind
from meshwright.program.work import Work

Records = npt.NDArray[np.void]
Floats = npt.NDArray[np.float64]
Group = tuple["Lane", tuple[int, ...]]
"""A lane and devices: what is on two lanes at once must not share a connection."""


class Lane(IntEnum):
    """A device's streams: lane times the number of devices, plus the device."""

    COMPUTE = 0
    SYNC = 1
    """Gradients are added up, or scattered."""
    GATHER = 2
    """Weights are gathered."""
    TEAM = 3
    """Members of a team talk to each other."""


def num_lanes(work: Work) -> int:
    """How many lanes a program needs."""
    if not work.expansion.is_collective.any():
        return Lane.SYNC + 1
    return len(Lane)


class Groups:
    """The devices of collectives, numbered when first asked for; the first are given."""

    def __init__(self, first: tuple[tuple[int, ...], ...]) -> None:
        self.devices = list(first)
        self._number: dict[Group, int] = {}

    def number(self, lane: Lane, devices: tuple[int, ...]) -> int:
        """The number of a group."""
        if (lane, devices) not in self._number:
            self._number[lane, devices] = len(self.devices)
            self.devices.append(devices)
        return self._number[lane, devices]


def teams_of(work: Work, part: int, axis: Axis) -> npt.NDArray[np.int64]:
    """The groups of an axis, one a row: places among the slots of a part."""
    here = work.plan.parts[part]
    slots = np.arange(len(here.devices)).reshape(-1, here.context, here.tensor)
    if axis == Axis.TENSOR:
        return slots.reshape(-1, here.tensor)
    if axis == Axis.CONTEXT:
        return slots.transpose(0, 2, 1).reshape(-1, here.context)
    return slots.transpose(2, 0, 1).reshape(here.tensor, -1)


def show_collectives(
    work: Work,
    groups: Groups,
    rows: Records,
    instance: npt.NDArray[np.int64],
    turn: Floats,
    place: Floats,
    num_devices: int,
) -> None:
    """Turn the instructions of ops that are collectives into such."""
    expansion, placement = work.expansion, work.placement
    sizes = _message_bytes(work)
    for op in np.flatnonzero(expansion.is_collective).tolist():
        part = int(placement.part_of_op[op])
        first, num_slots = int(placement.replica_start[part]), len(work.plan.parts[part].devices)
        axis, kind = Axis(int(expansion.axis[op])), Kind(int(expansion.collective[op]))
        members = teams_of(work, part, axis)
        lane = _lane(axis, kind)
        devices = placement.replica_device[placement.replicas(part)]
        numbers = [groups.number(lane, tuple(devices[each].tolist())) for each in members]
        of_slot = np.empty(num_slots, dtype=np.int64)
        of_slot[members] = np.arange(len(members))[:, None]
        leader = members[:, 0][of_slot]
        shares = (placement.replica_to - placement.replica_from)[placement.replicas(part)]
        fixed, growing = sizes[op]
        mine = rows[instance[op] : instance[op + 1]].reshape(-1, num_slots)
        mine["kind"] = kind
        mine["tensor"] = -1
        mine["group"] = np.array(numbers)[of_slot]
        mine["task"] = (instance[op] + np.arange(len(mine)) * num_slots)[:, None] + leader
        mine["stream"] = lane * num_devices + devices
        mine["bytes"] = fixed + growing * shares
        # One key for all members, so that all devices take collectives in one order.
        when = place[first, work.action[op], : len(mine)]
        mine["priority"] = -(when * (len(turn) + 1.0) + turn[op])[:, None]


def _lane(axis: Axis, kind: Kind) -> Lane:
    if axis != Axis.HOLDERS:
        return Lane.TEAM
    return Lane.GATHER if kind == Kind.ALL_GATHER else Lane.SYNC


def _message_bytes(work: Work) -> dict[int, tuple[float, float]]:
    """By collective op: the bytes of its message that do not grow with the rows, and those that
    do, for all rows of a microbatch: of what it reads or of what it makes, whatever is more; of an
    all-reduce what it makes, since it may find its terms from more than them."""
    graph = work.graph
    size = graph.scaled("tensor_bytes", graph.batch / work.microbatches)
    fixed = graph.fixed_tensor_bytes
    has_rows = (graph.split[graph.tensor_source] == Split.BATCH) & ~graph.tensor_partial
    growing = np.where(has_rows, size - fixed, 0.0)
    whole = np.where(has_rows, fixed, size)
    found = {}
    for op in np.flatnonzero(work.expansion.is_collective).tolist():
        sides = graph.inputs[op], graph.outputs[op]
        most = max(sides, key=lambda side: float(size[side].sum()))
        if work.expansion.collective[op] == Kind.ALL_REDUCE:
            most = sides[1]
        found[op] = float(whole[most].sum()), float(growing[most].sum())
    return found
