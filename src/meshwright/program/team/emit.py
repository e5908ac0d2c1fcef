"""Writes the instructions, buffers, reads and orders of units and of transfers between stages.

Everything is regular, so whole blocks are written at once: a stage's units by replica, a boundary's
transfers by microbatch and pair of teams. Numbers: first all units, stage after stage; then all
sends; then their receives in the same order; then the collectives, which `synchronise` writes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Longs, Records
from meshwright.cost.stage import MAX_BUCKETS
from meshwright.program.program import BUFFER, INSTRUCTION, PAIR, Kind, blank_rows
from meshwright.program.schedule import Action
from meshwright.program.team.boundary import Boundary
from meshwright.program.team.stage import TeamStage
from meshwright.program.team.unit import StageUnits, UnitGraph


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitWork:
    """All that is written out."""

    stages: Sequence[TeamStage]
    units: Sequence[StageUnits]
    boundaries: Sequence[Boundary]
    graph: UnitGraph
    seconds: Sequence[Floats]
    """By stage, of each action and replica."""
    call_seconds: Sequence[Floats]
    place: Sequence[Floats]
    """By stage, of each unit and replica."""
    before: Longs
    """By unit's instruction, the one before it on its device; -1: there is none."""
    blocks: bool
    """Whether stages wait for their transfers."""
    unit_start: Longs
    """The first instruction of each stage's units; at the end how many there are."""
    num_sends: int
    num_devices: int
    microbatches: int
    is_inference: bool
    """Whether backward units do nothing, and wait for nobody."""

    def unit_rows(self, stage: int, unit: npt.ArrayLike, replica: npt.ArrayLike) -> Longs:
        """Instructions of units on replicas; the two broadcast."""
        count = self.stages[stage].num_replicas
        return np.asarray(self.unit_start[stage] + np.asarray(unit) * count + np.asarray(replica))

    @cached_property
    def after(self) -> Longs:
        """By unit's instruction, the one after it on its device; -1: there is none."""
        after = np.full_like(self.before, -1)
        known = np.flatnonzero(self.before >= 0)
        after[self.before[known]] = known
        return after

    @property
    def num_units(self) -> int:
        """How many instructions run units, on all replicas of all stages."""
        return int(self.unit_start[-1])


@dataclass(slots=True)
class Emitted:
    """What was written so far, block by block."""

    rows: list[Records] = field(default_factory=list)
    buffers: list[Records] = field(default_factory=list)
    reads: list[Records] = field(default_factory=list)
    orders: list[Records] = field(default_factory=list)
    num_buffers: int = 0

    @property
    def num_rows(self) -> int:
        """How many instructions there are so far."""
        return sum(map(len, self.rows))

    @property
    def num_tasks(self) -> int:
        """How many tasks there are so far."""
        return 1 + max((int(rows["task"].max()) for rows in self.rows if len(rows)), default=-1)

    def order(self, first: npt.ArrayLike, second: npt.ArrayLike) -> None:
        """Let the first instructions finish before the second start."""
        self.orders.append(_pairs(first, second))

    def read(self, reader: npt.ArrayLike, buffer: npt.ArrayLike) -> None:
        """Let instructions read buffers."""
        self.reads.append(_pairs(reader, buffer))

    def write(
        self,
        writer: Longs,
        device: npt.ArrayLike,
        size: npt.ArrayLike,
        tensor: int,
        *,
        lasts: bool = False,
    ) -> Longs:
        """Buffers that instructions write, in the shape of `writer`; their numbers."""
        made = np.empty(writer.shape, BUFFER)
        made["writer"], made["device"] = writer, device
        made["bytes"], made["tensor"], made["lasts"] = size, tensor, lasts
        self.buffers.append(made.ravel())
        numbers = self.num_buffers + np.arange(made.size).reshape(writer.shape)
        self.num_buffers += made.size
        return numbers


def _pairs(first: npt.ArrayLike, second: npt.ArrayLike) -> Records:
    left, right = np.broadcast_arrays(first, second)
    pairs = np.empty(left.size, PAIR)
    pairs["first"], pairs["second"] = left.ravel(), right.ravel()
    return pairs


def emit_units(work: UnitWork, made: Emitted) -> Floats:
    """A COMPUTE for every unit and replica, with what it saves; what calls take of each."""
    calls = []
    for number, (stage, units) in enumerate(zip(work.stages, work.units, strict=True)):
        action, microbatch, piece = units.columns
        share = _shares(stage, units)[:, None]
        rows = blank_rows((units.num_units, stage.num_replicas))
        rows["kind"] = Kind.COMPUTE
        rows["device"] = rows["stream"] = stage.leaders
        rows["op"] = work.graph.op_of_unit[number][:, None]
        rows["microbatch"] = microbatch[:, None]
        rows["replica"] = np.arange(stage.num_replicas)
        rows["task"] = work.unit_start[number] + np.arange(rows.size).reshape(rows.shape)
        rows["seconds"] = work.seconds[number][action] * share
        is_update = (action == Action.UPDATE)[:, None]
        workspace = np.array([cost.memory.workspace_bytes for cost in stage.costs])
        rows["workspace_bytes"] = np.where(is_update, 0.0, workspace)
        rows["priority"] = -(work.place[number] * (MAX_BUCKETS + 1) + piece[:, None])
        rows["rows_from"], rows["rows_to"] = stage.rows_from, stage.rows_to
        made.rows.append(rows.ravel())
        calls.append((work.call_seconds[number][action] * share).ravel())
    return np.concatenate(calls)


def _shares(stage: TeamStage, units: StageUnits) -> Floats:
    """By unit, its part of its action's seconds."""
    action, microbatch, piece = units.columns
    cut = np.array([units.pieces_of(Action(each)) for each in range(4)])
    is_cut = (microbatch == units.microbatches - 1) | (action == Action.UPDATE)
    share = np.where(is_cut, 1 / cut[action], 1.0)
    if stage.cost.shards is not None:
        back = np.array(stage.cost.shards.backward_shares)
        for each, own in zip(Action, (stage.cost.shards.forward_shares, back, back), strict=False):
            share[units.span(each)] = np.array(own)[piece[units.span(each)]]
    return share


def emit_saved(work: UnitWork, made: Emitted) -> None:
    """What forwards keep for backwards beside their received input, which is kept too, and what
    backwards keep for weight gradients; of inference what forwards return."""
    for number, (stage, units) in enumerate(zip(work.stages, work.units, strict=True)):
        saved = np.array([cost.memory.saved_bytes for cost in stage.costs])
        received = np.zeros(stage.num_replicas)
        for boundary in (each for each in work.boundaries if each.goal == number):
            here = boundary.sent
            np.add.at(received, boundary.after[here], boundary.forward_bytes[here])
        size = np.maximum(saved - stage.held_bytes(received), 0.0)
        replicas = np.arange(stage.num_replicas)
        writer = work.unit_rows(number, units.first(Action.FORWARD)[:, None], replicas)
        if work.is_inference:
            made.write(writer, stage.leaders, saved, -1, lasts=True)
            continue
        backward = work.unit_rows(number, units.last(Action.BACKWARD)[:, None], replicas)
        if units.has_weights:
            share = stage.rows_to - stage.rows_from
            weight = work.unit_rows(number, units.last(Action.WEIGHT)[:, None], replicas)
            later = np.minimum(stage.deferred.saved * share, size)
            made.read(weight, made.write(writer, stage.leaders, later, -1))
            own = stage.deferred.made * share
            made.read(weight, made.write(backward, stage.leaders, own, -1))
            size = size - later
        made.read(backward, made.write(writer, stage.leaders, size, -1))


def emit_transfers(work: UnitWork, made: Emitted) -> tuple[list[Records], list[Records]]:
    """Sends and receives of every boundary, forward and backward, and what they read and write."""
    sends: list[Records] = []
    receives: list[Records] = []
    number = work.num_units
    for place, boundary in enumerate(work.boundaries):
        _keep_local(work, made, place, boundary)
        if not len(boundary.sent):
            continue
        for action in boundary.actions:
            send, receive = _transfer_rows(work, place, boundary, action, number)
            _serve(work, made, place, boundary, action, number)
            sends.append(send.ravel())
            receives.append(receive.ravel())
            number += send.size
    return sends, receives


def _keep_local(work: UnitWork, made: Emitted, place: int, boundary: Boundary) -> None:
    """Teams that run both stages wait for themselves only."""
    here = boundary.kept
    if not len(here):
        return
    for action in boundary.actions:
        way = _way(work, place, boundary, action, here)
        writer = work.unit_rows(
            way.origin, work.units[way.origin].last(action)[:, None], way.sender
        )
        reader = work.unit_rows(way.goal, work.units[way.goal].first(action)[:, None], way.receiver)
        made.order(writer, reader)
        if boundary.is_kept:
            stage = work.stages[way.origin]
            share = stage.held_bytes(np.ones(stage.num_replicas))[way.sender]
            size = np.broadcast_to(way.size * share, writer.shape)
            made.read(reader, made.write(writer, stage.leaders[way.sender], size, way.tensor))


class _Way(NamedTuple):
    """What goes over a boundary in an action: from which stage to which, and by pair of teams."""

    origin: int
    goal: int
    sender: Longs
    receiver: Longs
    size: Floats
    tensor: int


def _way(work: UnitWork, place: int, boundary: Boundary, action: Action, here: Longs) -> _Way:
    """Over the boundary of a number, between some of its pairs."""
    origin, goal = boundary.origin, boundary.goal
    before, after = boundary.before[here], boundary.after[here]
    if action is Action.FORWARD:
        tensor = int(work.graph.output[place])
        return _Way(origin, goal, before, after, boundary.forward_bytes[here], tensor)
    tensor = int(work.graph.gradient[place])
    return _Way(goal, origin, after, before, boundary.backward_bytes[here], tensor)


def _transfer_rows(
    work: UnitWork, place: int, boundary: Boundary, action: Action, number: int
) -> tuple[Records, Records]:
    """SENDs and RECEIVEs by microbatch and pair; the first SEND has this number, and its task."""
    here = boundary.sent
    way = _way(work, place, boundary, action, here)
    source = work.stages[way.origin].leaders[way.sender]
    target = work.stages[way.goal].leaders[way.receiver]
    rows = blank_rows((work.microbatches, len(here)))
    rows["tensor"] = way.tensor
    rows["microbatch"] = np.arange(work.microbatches)[:, None]
    rows["replica"] = way.sender
    rows["task"] = number + np.arange(rows.size).reshape(rows.shape)
    rows["bytes"] = way.size
    rows["rows_from"], rows["rows_to"] = boundary.rows_from[here], boundary.rows_to[here]
    receives = rows.copy()
    rows["kind"], rows["device"], rows["peer"] = Kind.SEND, source, target
    receives["kind"], receives["device"], receives["peer"] = Kind.RECEIVE, target, source
    return rows, receives


def _serve(
    work: UnitWork, made: Emitted, place: int, boundary: Boundary, action: Action, number: int
) -> None:
    """Let sends read what a unit made, and the units of the other stage what was received."""
    way = _way(work, place, boundary, action, boundary.sent)
    origin, goal, sender, receiver, size, tensor = way
    stage, target = work.stages[origin], work.stages[goal]
    send = number + np.arange(work.microbatches * len(size)).reshape(work.microbatches, -1)
    # What a unit made is one buffer a replica, however many teams it goes to.
    total = np.zeros(stage.num_replicas)
    np.add.at(total, sender, size)
    writer = work.unit_rows(
        origin, work.units[origin].last(action)[:, None], np.arange(stage.num_replicas)
    )
    output = made.write(writer, stage.leaders, stage.held_bytes(total), tensor)
    made.read(send, output[:, sender])
    share = target.held_bytes(np.ones(target.num_replicas))[receiver]
    received = made.write(send + work.num_sends, target.leaders[receiver], size * share, tensor)
    units = work.units[goal]
    reader = work.unit_rows(goal, units.first(action)[:, None], receiver)
    made.read(reader, received)
    if work.blocks:
        _block(work, made, writer[:, sender], send, reader)
    if not work.is_inference:
        made.read(work.unit_rows(goal, units.last(Action.BACKWARD)[:, None], receiver), received)


def _block(work: UnitWork, made: Emitted, writer: Longs, send: Longs, reader: Longs) -> None:
    """Let transfers wait until their receivers have come to them, and senders until they end."""
    before, after = work.before[reader], work.after[writer]
    made.order(before[before >= 0], send[before >= 0])
    made.order(send[after >= 0], after[after >= 0])


def collect_blocks(made: Emitted) -> tuple[Records, Records, Records, Records]:
    """Instructions, buffers, reads and orders, each as one array."""
    blocks = (
        (made.rows, INSTRUCTION), (made.buffers, BUFFER), (made.reads, PAIR), (made.orders, PAIR),
    )  # fmt: skip
    rows, buffers, reads, orders = (
        np.concatenate(each) if each else np.zeros(0, dtype) for each, dtype in blocks
    )
    return rows, buffers, reads, orders
