"""The stages of a plan with teams, ZeRO or recomputation: who runs them and what they cost.

Decides whether parts can be such stages. Knows nothing of microbatches' order or instructions.

Weight gradients that zero-bubble schedules postpone are products of what a layer's products read in
forward, and of the gradients of what they gave. What forward saved for the rest of backward is gone
by then.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from meshwright.array import Floats, Ints, marked
from meshwright.cluster.cluster import Cluster
from meshwright.cost.group_price import GroupPrices
from meshwright.cost.layer.team import Team, team_fits
from meshwright.cost.runtime import RUNTIMES, Runtime
from meshwright.cost.stage import Stage, StageCost, replica_costs
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Phase, Split
from meshwright.graph.stack.crossing import StageLink
from meshwright.graph.stack.stack import LayerKind, Stack
from meshwright.plan.check import Placement
from meshwright.plan.plan import Part, Plan, Recompute, Schedule, ScheduleKind, Sync
from meshwright.plan.stage import team_of

_DIVIDED = "with tensor, context or expert parallelism, ZeRO or recomputation"


class Postponed(NamedTuple):
    """Bytes that weight gradients read, on one member of a team."""

    saved: float
    """Of what forward saved."""
    made: float
    """Of what backward made: gradients, and what it computed again."""


NOTHING = Postponed(0.0, 0.0)


def deferred_bytes(kind: LayerKind, team: Team, recompute: Recompute, samples: float) -> Postponed:
    """Of one layer for one microbatch of so many samples.

    What is computed again counts as made, although selective recomputation has some of it saved.
    Where a member of a tensor team may hold its rows only, all of them count.
    """
    graph = kind.graph
    makes_weights = (graph.phase == Phase.BACKWARD) & (graph.split == Split.SUM)
    is_read = marked(graph.num_tensors, graph.use_tensor[makes_weights[graph.use_op]])
    is_read &= ~kind.is_weight & ~kind.is_side
    width = np.where(kind.is_cut, team.tensor, 1) * np.where(kind.has_rows, team.context, 1)
    size = graph.scaled("tensor_bytes", samples) / width * is_read
    phase = graph.phase[graph.tensor_source]
    read = float(size[phase == Phase.FORWARD].sum())
    made = float(size[phase == Phase.BACKWARD].sum())
    keeps = recompute is Recompute.NONE or not kind.is_wrapped
    return Postponed(read, made) if keeps else Postponed(0.0, read + made)


@dataclass(frozen=True, kw_only=True, eq=False)
class TeamStage:
    """A stage of a plan on its teams."""

    devices: Ints
    """Numbers, one row a replica: its team, of which the first runs for all."""
    context: int
    """How many members of a team share the tokens; the others share tensors."""
    rows_from: Floats
    """Where each replica's rows of the batch begin, as a fraction of it ..."""
    rows_to: Floats
    """... and where they end."""
    costs: tuple[StageCost, ...]
    """One a replica, each on its rows."""
    side_bytes: Floats
    """By replica: what travels with its output in forward alone (masks, rotary tables)."""
    deferred: Postponed
    """What a member holds of a whole microbatch until its weight gradient, where that is apart."""

    @property
    def num_replicas(self) -> int:
        """How many teams run the stage."""
        return len(self.devices)

    @property
    def width(self) -> int:
        """Devices of a team."""
        return int(self.devices.shape[1])

    @property
    def leaders(self) -> Ints:
        """The first device of each team."""
        return self.devices[:, 0]

    @property
    def cost(self) -> StageCost:
        """That of its slowest replica."""
        return max(self._distinct[0], key=lambda each: each.forward_seconds + each.backward_seconds)

    def of_replicas(self, name: str) -> Floats:
        """A field of the costs, by replica."""
        values = np.array([getattr(cost, name) for cost in self._distinct[0]], dtype=np.float64)
        return values[self._distinct[1]]

    @property
    def busy_seconds(self) -> tuple[Floats, Floats]:
        """Forward and backward by replica, with what slows compute beside what ZeRO moves, but
        without waiting for that."""
        costs, of_replica = self._distinct
        slower = [
            (each.forward_slowdown_seconds, each.backward_slowdown_seconds) if each else (0.0, 0.0)
            for each in (cost.shards for cost in costs)
        ]
        seconds = np.array([cost.busy_seconds for cost in costs]) + np.array(slower)
        forward, backward = seconds[of_replica].T
        return forward, backward

    @cached_property
    def _distinct(self) -> tuple[list[StageCost], Ints]:
        """Costs that are objects of their own, and which one each replica has: most often one."""
        known = {id(cost): cost for cost in self.costs}
        place = {key: number for number, key in enumerate(known)}
        of_replica = np.array([place[id(cost)] for cost in self.costs], dtype=np.int32)
        return list(known.values()), of_replica

    def held_bytes(self, passed_bytes: Floats) -> Floats:
        """What a member holds of what its team passes on or receives."""
        is_scattered = self.of_replicas("is_scattered") > 0
        return np.asarray(passed_bytes / np.where(is_scattered, self.width, self.context))


def schedule_of(plan: Plan) -> Schedule:
    """The plan's schedule; without one the whole batch is the one microbatch."""
    return plan.schedule or Schedule(kind=ScheduleKind.GPIPE, microbatches=1)


def team_stages(
    stack: Stack, network: GroupPrices, plan: Plan, placement: Placement
) -> tuple[TeamStage, ...]:
    """The parts of a plan as stages; InputError where they cannot be."""
    layers = _layers_of_parts(stack, placement)
    samples = stack.graph.batch / schedule_of(plan).microbatches
    stages = []
    for number, part in enumerate(plan.parts):
        _check_part(stack, number, part, layers[number])
        here = placement.replicas(number)
        devices = placement.replica_device[here]
        rows_from = placement.replica_from[here][:: part.width]
        rows_to = placement.replica_to[here][:: part.width]
        shares = rows_to - rows_from
        sizes = (shares * samples).tolist()
        runtime = RUNTIMES[plan.runtime]
        costs = _costs(stack, network, part, devices, layers[number], sizes, runtime)
        side = [stack.side_bytes_at(share * samples) for share in shares.tolist()]
        defers = schedule_of(plan).kind is ScheduleKind.ZERO_BUBBLE
        deferred = _deferred(stack, part, layers[number], samples) if defers else NOTHING
        stages.append(
            TeamStage(
                devices=devices.reshape(-1, part.width),
                context=part.context,
                rows_from=rows_from,
                rows_to=rows_to,
                costs=costs,
                side_bytes=np.array(side),
                deferred=deferred,
            )
        )
    check_teams(network.cluster, stages)
    return tuple(stages)


def stage_links(stack: Stack, placement: Placement) -> list[StageLink] | None:
    """What passes between the parts of a plan; None: each speaks to the next only."""
    if stack.crossings is None:
        return None
    layers = _layers_of_parts(stack, placement)
    return stack.crossings.links([*(each.start for each in layers), stack.num_layers])


def _costs(
    stack: Stack,
    network: GroupPrices,
    part: Part,
    devices: Ints,
    layers: range,
    samples: Sequence[float],
    runtime: Runtime,
) -> tuple[StageCost, ...]:
    """One a replica; shares that differ by rounding are one share."""
    known: dict[float, tuple[StageCost, ...]] = {}
    for each in samples:
        key = float(f"{each:.9g}")
        if key not in known:
            stage = Stage(
                layers=layers,
                devices=tuple(devices.tolist()),
                team=team_of(part),
                zero=part.zero,
                recompute=part.recompute,
                samples=key,
                runtime=runtime,
            )
            known[key] = replica_costs(stack, network, stage)
    return tuple(known[float(f"{each:.9g}")][place] for place, each in enumerate(samples))


def _deferred(stack: Stack, part: Part, layers: range, samples: float) -> Postponed:
    """The sum over layers, for all rows of a microbatch."""
    saved, made = 0.0, 0.0
    for kind, count in Counter(stack.layers[layer] for layer in layers).items():
        each = deferred_bytes(stack.kinds[kind], team_of(part), part.recompute, samples)
        saved, made = saved + count * each.saved, made + count * each.made
    return Postponed(saved, made)


def _layers_of_parts(stack: Stack, placement: Placement) -> list[range]:
    """The layers of each part, which must hold whole ones, in order."""
    layer, part = stack.layer_of_op, placement.part_of_op
    part_of_layer = np.zeros(stack.num_layers, dtype=np.int64)
    part_of_layer[layer[::-1]] = part[::-1]
    bad = np.flatnonzero(part_of_layer[layer] != part)
    if len(bad):
        op = int(bad[0])
        raise InputError(
            f"op {quoted(stack.graph.op_names[op])}: {_DIVIDED} a part must hold whole layers, but "
            f" layer {layer[op]} is in part {part_of_layer[layer[op]]} and "
            f"{part[op]}"
        )
    back = np.flatnonzero(np.diff(part_of_layer) < 0)
    if len(back):
        first = int(back[0])
        raise InputError(
            f"part {part_of_layer[first]}: {_DIVIDED} parts must hold the layers in order, "
            f"but layer {first + 1} is in part {part_of_layer[first + 1]}"
        )
    bounds = np.searchsorted(part_of_layer, np.arange(placement.num_parts + 1)).tolist()
    return [range(low, high) for low, high in pairwise(bounds)]


def _check_part(stack: Stack, number: int, part: Part, layers: range) -> None:
    for kind in {stack.layers[layer] for layer in layers}:
        if (rule := team_fits(stack.kinds[kind], team_of(part))) is not None:
            raise InputError(f"part {number}: {rule}")
    if part.sync is not Sync.ALL_REDUCE:
        raise InputError(
            f"part {number}: {_DIVIDED} sync must be {Sync.ALL_REDUCE}, got {part.sync}"
        )


def check_teams(cluster: Cluster, stages: Sequence[TeamStage]) -> None:
    """Stages that share a device share its whole team: one stream runs for all its members."""
    leader = np.full(cluster.num_devices, -1)
    place = np.zeros((2, cluster.num_devices), dtype=np.int64)  # in its team, and the team's size
    for number, stage in enumerate(stages):
        first = np.repeat(stage.leaders, stage.width)
        own = np.stack(
            (np.tile(np.arange(stage.width), stage.num_replicas), np.full(first.size, stage.width))
        )
        devices = stage.devices.ravel()
        differs = (leader[devices] != first) | (place[:, devices] != own).any(axis=0)
        bad = np.flatnonzero(differs & (leader[devices] >= 0))
        if len(bad):
            name = cluster.devices[int(devices[bad[0]])].name
            raise InputError(
                f"part {number}: device {quoted(name)} must be in the same group in every part, "
                f"stands in another one before"
            )
        leader[devices], place[:, devices] = first, own
