"""The units of a plan's stages: one an action and microbatch, in which order, as a small graph.

The last microbatch's backward is cut into pieces so that gradients travel while the rest of it
runs; with zero-bubble its weight gradient is. Where ZeRO gathers and scatters, forward and backward
of every microbatch are. Knows nothing of devices and instructions.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from meshwright.array import Floats, Ints, Longs
from meshwright.cost.runtime import MESHWRIGHT, Runtime
from meshwright.cost.stage import BUCKET_BYTES, MAX_BUCKETS
from meshwright.graph.graph import OP_SIZES, Graph, Phase, Split
from meshwright.kernel.row import follow_lines, group_values
from meshwright.plan.plan import Schedule, ScheduleKind
from meshwright.program.schedule import Action, StageSeconds, order_steps
from meshwright.program.team.stage import TeamStage

_PHASES = {
    Action.FORWARD: Phase.FORWARD,
    Action.BACKWARD: Phase.BACKWARD,
    Action.WEIGHT: Phase.BACKWARD,
    Action.UPDATE: Phase.UPDATE,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class StageUnits:
    """What every replica of a stage runs, unit by unit: all forwards, backwards, weight gradients
    (if they are apart), updates; of each microbatch by microbatch and piece by piece."""

    microbatches: int
    pieces: int
    """Into how many the last microbatch's gradients, and the update, are cut."""
    has_weights: bool
    """Whether weight gradients are actions of their own."""
    forward_cut: int = 1
    """Into how many pieces the forward of every microbatch is cut."""
    backward_cut: int = 1
    """Into how many pieces each backward and weight gradient is cut; where it is more than one,
    gradients are not cut otherwise."""

    @cached_property
    def start(self) -> tuple[int, ...]:
        """Where the units of each action begin, and where all end."""
        forward, backward, weight, update = (self.pieces_of(Action(each)) for each in range(4))
        whole = self.microbatches - 1
        lengths = (
            whole * self.forward_cut + forward,
            whole * self.backward_cut + backward,
            whole * self.backward_cut + weight if self.has_weights else 0,
            update,
        )
        return tuple(np.cumsum((0, *lengths)).tolist())

    @property
    def num_units(self) -> int:
        """How many units one replica of the stage runs in a step."""
        return self.start[-1]

    def pieces_of(self, action: Action) -> int:
        """Into how many the last microbatch's action is cut."""
        gradients = Action.WEIGHT if self.has_weights else Action.BACKWARD
        is_whole = action not in (gradients, Action.UPDATE)
        return self.cut_of(action) if is_whole else max(self.pieces, self.cut_of(action))

    def cut_of(self, action: Action) -> int:
        """Into how many every microbatch's action is cut."""
        if action is Action.UPDATE:
            return 1
        return self.forward_cut if action is Action.FORWARD else self.backward_cut

    def span(self, action: Action) -> slice:
        """The units of an action."""
        return slice(self.start[action], self.start[action + 1])

    def first(self, action: Action) -> Ints:
        """By microbatch the first unit of an action."""
        cut, start = self.cut_of(action), self.start[action]
        return np.arange(start, start + self.microbatches * cut, cut, dtype=np.int32)

    def last(self, action: Action) -> Ints:
        """By microbatch the last unit of an action."""
        units = self.first(action) + np.int32(self.cut_of(action) - 1)
        units[-1] = self.start[action + 1] - 1
        return units

    @property
    def gradients(self) -> Ints:
        """The units after which a piece of the gradients is whole, piece by piece."""
        end = self.start[Action.WEIGHT + 1 if self.has_weights else Action.BACKWARD + 1]
        pieces = 1 if self.backward_cut > 1 else self.pieces
        return np.arange(end - pieces, end, dtype=np.int32)

    @cached_property
    def columns(self) -> tuple[Ints, Ints, Ints]:
        """Action, microbatch and piece of each unit."""
        action = np.repeat(np.arange(4, dtype=np.int32), np.diff(self.start))
        number = np.arange(self.num_units, dtype=np.int32) - np.array(self.start, np.int32)[action]
        is_update = action == Action.UPDATE
        cut = np.array([self.cut_of(Action(each)) for each in range(4)], np.int32)[action]
        microbatch = np.where(is_update, 0, np.minimum(number // cut, self.microbatches - 1))
        piece = np.where(is_update, number, number - microbatch * cut)
        return action, microbatch.astype(np.int32), piece.astype(np.int32)


def stage_units(
    stages: Sequence[TeamStage], schedule: Schedule, runtime: Runtime = MESHWRIGHT
) -> tuple[StageUnits, ...]:
    """The units of each stage."""
    has_weights = schedule.kind is ScheduleKind.ZERO_BUBBLE
    return tuple(
        StageUnits(
            microbatches=schedule.microbatches,
            pieces=_num_pieces(stage) if runtime.overlaps_gradients else 1,
            has_weights=has_weights,
            forward_cut=len(stage.cost.shards.forward_shares) if stage.cost.shards else 1,
            backward_cut=len(stage.cost.shards.backward_shares) if stage.cost.shards else 1,
        )
        for stage in stages
    )


def _num_pieces(stage: TeamStage) -> int:
    """As many as buckets: of 25 MiB, or an eighth of all gradients where that is more."""
    total = sum(each.message_bytes for each in stage.cost.synchronisations)
    return max(1, ceil(total / max(BUCKET_BYTES, total / MAX_BUCKETS) - 1e-9))


def action_seconds(
    stage: TeamStage, has_weights: bool, blocks: bool = False
) -> tuple[Floats, Floats]:
    """By action and replica: seconds, and of these the collectives that nothing hides.

    Calls that block leave a host no lead over its device: an action takes as long as its launches.
    """
    forward, backward = stage.busy_seconds
    update = stage.of_replicas("update_seconds")
    apart = stage.of_replicas("weight_seconds") if has_weights else np.zeros_like(forward)
    none = np.zeros_like(forward)
    if blocks:
        host = stage.of_replicas("host_seconds")
        forward_host = stage.of_replicas("forward_host_seconds")
        forward = np.maximum(forward, forward_host)
        backward = np.maximum(backward, host - forward_host)
    calls = [stage.of_replicas(f"{name}_call_seconds") for name in ("forward", "backward")]
    seconds = np.stack((forward, np.maximum(backward - apart, 0.0), apart, update))
    return seconds, np.minimum(np.stack((*calls, none, none)), seconds)


def place_units(
    stages: Sequence[TeamStage],
    units: Sequence[StageUnits],
    schedule: Schedule,
    seconds: Sequence[Floats],
) -> list[Floats]:
    """By stage, the place of each unit (rows) in the order of each replica's device (columns)."""
    stages_on = group_values(
        (device, number) for number, stage in enumerate(stages) for device in stage.leaders.tolist()
    )
    kinds: dict[tuple[int, ...], int] = {}
    kind_of = {d: kinds.setdefault(tuple(on), len(kinds)) for d, on in stages_on.items()}
    slowest: list[StageSeconds] = []
    for times in seconds:
        forward, backward, weight, _ = times.max(axis=1).tolist()
        slowest.append((forward, backward, weight))
    orders = order_steps(schedule, tuple(kinds), slowest)
    places = [_place_steps(order, len(stages), schedule.microbatches) for order in orders]
    result = []
    for number, (stage, each) in enumerate(zip(stages, units, strict=True)):
        action, microbatch, _ = each.columns
        on = np.array([kind_of[device] for device in stage.leaders.tolist()])
        columns = [place[number][action, microbatch] for place in places]
        result.append(np.stack(columns, axis=1)[:, on].astype(np.float64))
    return result


def find_before(
    stages: Sequence[TeamStage], units: Sequence[StageUnits], place: Sequence[Floats]
) -> Longs:
    """By unit and replica, stage after stage, what its device runs before it; -1: nothing."""
    device = [
        np.broadcast_to(stage.leaders, (each.num_units, stage.num_replicas)).ravel()
        for stage, each in zip(stages, units, strict=True)
    ]
    piece = [each.columns[2][:, None] for each in units]
    turn = [(a * (MAX_BUCKETS + 1) + b).ravel() for a, b in zip(place, piece, strict=True)]
    where = np.concatenate(device)
    before = np.full(len(where), -1, dtype=np.int64)
    first, second = follow_lines(where, np.concatenate(turn))
    before[second] = first
    return before


def _place_steps(
    order: Sequence[tuple[Action, int, int]], num_stages: int, microbatches: int
) -> Longs:
    """By stage, action and microbatch its place in an order; updates come last, by stage."""
    place = np.zeros((num_stages, 4, microbatches), dtype=np.int64)
    if order:
        action, stage, microbatch = np.array(order, dtype=np.int64).T
        place[stage, action, microbatch] = np.arange(len(order))
    place[:, Action.UPDATE, :] = len(order) + np.arange(num_stages)[:, None]
    return place


@dataclass(frozen=True, kw_only=True, eq=False)
class UnitGraph:
    """The units as ops of a graph: one for all whole microbatches of an action, one a piece."""

    graph: Graph
    stage_of_op: Ints
    op_of_unit: tuple[Ints, ...]
    """By stage, for each of its units."""
    output: Ints
    """By link the tensor that goes forward over it."""
    gradient: Ints
    """By link the tensor that comes back over it."""


class UnitLink(NamedTuple):
    """Two stages of which one passes something on to the other, and bytes of a microbatch."""

    origin: int
    goal: int
    forward_bytes: float
    backward_bytes: float


def unit_graph(
    name: str,
    batch: float,
    stages: Sequence[TeamStage],
    units: Sequence[StageUnits],
    links: Sequence[UnitLink],
) -> UnitGraph:
    """Ops in an order in which they can run, for people and for those who look at phases."""
    names: list[str] = []
    owner: list[tuple[int, Action]] = []
    op_of_unit = [np.zeros(each.num_units, dtype=np.int32) for each in units]
    count = len(stages)
    order = [(s, Action.FORWARD) for s in range(count)]
    order += [(s, a) for s in reversed(range(count)) for a in (Action.BACKWARD, Action.WEIGHT)]
    order += [(s, Action.UPDATE) for s in range(count)]
    for stage, action in order:
        span = units[stage].span(action)
        _, microbatch, piece = (column[span] for column in units[stage].columns)
        cut = units[stage].pieces_of(action) > 1
        is_last = microbatch == units[stage].microbatches - 1
        is_every = action is Action.UPDATE or units[stage].cut_of(action) > 1
        is_piece = (is_last | is_every) & cut
        number = np.where(is_piece, piece + 1, 0)
        for each in np.unique(number).tolist():
            op_of_unit[stage][span][number == each] = len(names)
            suffix = f" {each}/{units[stage].pieces_of(action)}" if each else ""
            names.append(f"stage {stage} {action.name.lower()}{suffix}")
            owner.append((stage, action))
    return _assemble(name, batch, links, tuple(names), owner, op_of_unit)


def _assemble(
    name: str,
    batch: float,
    links: Sequence[UnitLink],
    names: tuple[str, ...],
    owner: Sequence[tuple[int, Action]],
    op_of_unit: Sequence[Ints],
) -> UnitGraph:
    first = {each: number for number, each in reversed(tuple(enumerate(owner)))}
    count, num_ops = len(links), len(names)
    forward = [
        (first[each.origin, Action.FORWARD], first[each.goal, Action.FORWARD]) for each in links
    ]
    backward = [
        (first[each.goal, Action.BACKWARD], first[each.origin, Action.BACKWARD]) for each in links
    ]
    source, reader = np.array([*forward, *backward], dtype=np.int32).reshape(-1, 2).T
    sizes = np.array(
        [each.forward_bytes for each in links] + [each.backward_bytes for each in links]
    )
    nothing = np.full(num_ops, -1, dtype=np.int32)
    partner = [
        first[stage, Action.FORWARD] if action in (Action.BACKWARD, Action.WEIGHT) else -1
        for stage, action in owner
    ]
    sizes_of_ops: dict[str, Any] = {each: np.zeros(num_ops) for each in OP_SIZES}
    graph = Graph(
        name=name,
        batch=batch,
        op_names=names,
        kind=("unit",) * num_ops,
        module=("",) * num_ops,
        precision=("fp32",) * num_ops,
        phase=np.array([_PHASES[action] for _, action in owner], dtype=np.int8),
        split=np.full(num_ops, Split.BATCH, dtype=np.int8),
        group=nothing,
        partner=np.array(partner, dtype=np.int32),
        **sizes_of_ops,
        tensor_source=source.copy(),
        tensor_bytes=sizes,
        fixed_tensor_bytes=np.zeros(len(sizes)),
        tensor_partial=np.zeros(len(sizes), dtype=np.bool_),
        use_tensor=np.arange(len(sizes), dtype=np.int32),
        use_op=reader.copy(),
    )
    along = np.arange(count, dtype=np.int32)
    return UnitGraph(
        graph=graph,
        stage_of_op=np.array([stage for stage, _ in owner], dtype=np.int32),
        op_of_unit=tuple(op_of_unit),
        output=along,
        gradient=along + np.int32(count),
    )
