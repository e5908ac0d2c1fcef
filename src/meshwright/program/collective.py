"""Makes instructions of the ops of an expansion that are collectives: who takes part, and where
they queue.

A device has a lane for each sort of them, so that gradients on their way hold up nobody who waits
for a team's word. Within a lane they run one after the other, in one order on all devices.
"""

from collections.abc import Iterator, Sequence
from enum import IntEnum
from itertools import product
from typing import NamedTuple

import numpy as np

from meshwright.array import Floats, Ints, Longs, Records
from meshwright.graph.graph import Phase, Split
from meshwright.kernel.row import group_values
from meshwright.plan.part import Part
from meshwright.program.expand.expansion import HOLDING, Axis
from meshwright.program.program import PAIR, Kind, Program
from meshwright.program.work import Work

Group = tuple["Lane", tuple[int, ...]]
"""A lane and devices: what is on two lanes at once must not share a connection."""


class Lane(IntEnum):
    """A device's streams: lane times the number of devices, plus the device."""

    COMPUTE = 0
    SYNC = 1
    """Collectives that add up gradients, or scatter them."""
    GATHER = 2
    """Collectives that gather the weights which ZeRO 3 divides."""
    TEAM = 3
    """Collectives among the members of a team."""


def find_lanes(program: Program) -> Ints:
    """The lane of each instruction; -1: a transfer. What ZeRO moves beside the layers of teams is
    in no stream, and counts as on the lane of its kind."""
    rows = program.instructions
    lane = rows["stream"] // max(program.num_devices, 1)
    own = np.where(rows["kind"] == Kind.ALL_GATHER, Lane.GATHER, Lane.SYNC)
    is_beside = (rows["stream"] < 0) & (rows["group"] >= 0)
    return np.where(is_beside, own, lane).astype(np.int32)


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


def teams_of(work: Work, part: int, axis: Axis) -> Longs:
    """The groups of an axis, one a row: places among the slots of a part."""
    here = work.plan.parts[part]
    slots = np.arange(len(here.devices)).reshape(-1, here.context, here.tensor)
    if axis in (Axis.EXPERT, Axis.EXPERT_HOLDERS):
        return _expert_teams(here, axis)
    if axis == Axis.TENSOR:
        return slots.reshape(-1, here.tensor)
    if axis == Axis.CONTEXT:
        return slots.transpose(0, 2, 1).reshape(-1, here.context)
    return slots.transpose(2, 0, 1).reshape(here.tensor, -1)


def _expert_teams(part: Part, axis: Axis) -> Longs:
    """Replicas in a row that hold different experts, or all that hold the same ones."""
    slots = np.arange(len(part.devices)).reshape(-1, part.expert, part.context, part.tensor)
    if axis == Axis.EXPERT:
        return slots.transpose(0, 2, 3, 1).reshape(-1, part.expert)
    return slots.transpose(1, 3, 0, 2).reshape(part.expert * part.tensor, -1)


def show_collectives(
    work: Work,
    groups: Groups,
    rows: Records,
    instance: Longs,
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
        lane = _lane(axis, kind, Phase(int(work.graph.phase[op])))
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


def _lane(axis: Axis, kind: Kind, phase: Phase) -> Lane:
    """Sums of gradients over a team, as of a norm's weights, hold up none of its activations."""
    if axis not in HOLDING and phase != Phase.UPDATE:
        return Lane.TEAM
    return Lane.GATHER if kind == Kind.ALL_GATHER else Lane.SYNC


def _message_bytes(work: Work) -> dict[int, tuple[float, float]]:
    """By collective op: the bytes of its message that do not grow with the rows, and those that
    do, for all rows of a microbatch: of what it reads or of what it makes, whatever is more; of an
    all-reduce what it makes, since it may find its terms from more than them, and of keys, which
    may lie beside queries; of an all-to-all the largest tensor that it reads, since it is told
    beside it how many tokens go where."""
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
        kind, axis = work.expansion.collective[op], work.expansion.axis[op]
        times = 1
        if kind == Kind.ALL_REDUCE or (kind == Kind.ALL_GATHER and axis == Axis.CONTEXT):
            most = sides[1]
        elif kind == Kind.ALL_TO_ALL:
            most = sides[0][np.argmax(size[sides[0]])][None]
        elif kind == Kind.ALL_GATHER and not len(sides[1]):  # into weights, which are no tensors
            times = teams_of(work, int(work.placement.part_of_op[op]), Axis(int(axis))).shape[1]
        found[op] = times * float(whole[most].sum()), times * float(growing[most].sum())
    return found


def order_gathers(work: Work, instance: Longs, turn: Floats, place: Floats) -> Records:
    """PAIRs by which weights are gathered no earlier than a schedule needs them.

    Within an action the expansion has such an order, from one action to the next it knows none.
    As there, of all that a device gathered before only one bundle may still be in use.
    """
    placement = work.placement
    found: list[tuple[int, int]] = []
    if work.plan.schedule is not None:
        found_uses = _find_uses(work, instance, turn, place)
        device = placement.replica_device
        for uses in group_values((int(device[use.slot]), use) for use in found_uses).values():
            found += _order_uses(sorted(uses))
    return np.array(found, dtype=PAIR)


class _Use(NamedTuple):
    """Weights gathered for one action: places are those of an action and of an op in it."""

    gathered: tuple[float, float]
    first: tuple[float, float]
    last: tuple[float, float]
    gather: int
    """The number of the instruction that gathers the weights."""
    last_user: int
    slot: int


def _find_uses(work: Work, instance: Longs, turn: Floats, place: Floats) -> Iterator[_Use]:
    expansion, placement = work.expansion, work.placement
    gathers = np.isin(expansion.axis, HOLDING) & (expansion.collective == Kind.ALL_GATHER)
    for op in np.flatnonzero(gathers).tolist():
        users = work.graph.successors[op].tolist()
        slots = placement.replicas(int(placement.part_of_op[op]))
        count = slots.stop - slots.start if users else 0
        for replica, m in product(range(count), range(work.microbatches)):
            slot = slots.start + replica

            def when(each: int, slot: int = slot, m: int = m) -> tuple[float, float]:
                return float(place[slot, work.action[each], m]), float(turn[each])

            last = max(users, key=when)
            number = m * count + replica
            yield _Use(
                gathered=when(op),
                first=min(map(when, users)),
                last=when(last),
                gather=int(instance[op]) + number,
                last_user=int(instance[last]) + number,
                slot=slot,
            )


def _order_uses(uses: Sequence[_Use]) -> Iterator[tuple[int, int]]:
    """What each gathering waits for: until of those before it only one is still used."""
    earlier: list[_Use] = []
    for use in uses:
        done = sorted((each for each in earlier if each.last < use.first), key=lambda e: e.last)
        is_alone = len(done) == len(earlier)
        waits = done[: len(done) - 1 if is_alone else len(done)]
        if waits:
            yield waits[-1].last_user, use.gather
        earlier = [each for each in earlier if each not in waits] + [use]
