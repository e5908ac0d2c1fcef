"""A plan as people describe one: how many ways tensors, tokens, experts, layers and samples are
divided. Decides which degrees a model and a cluster allow, where layers are cut into stages, and
which devices run them. Knows nothing of memory: what is said is what is planned.
"""

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from meshwright.argument import is_whole, need_flag, need_type, read_choice
from meshwright.array import Floats, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.nest import find_nest
from meshwright.cost.group_price import group_prices
from meshwright.cost.layer.team import Team, team_fits
from meshwright.cost.stage import Stage, stage_cost
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Stack
from meshwright.plan.part import Keys, Part, Recompute, Schedule, ScheduleKind
from meshwright.plan.stage import DraftStage, Frame, Option, Planner, can_interleave

_WHOLE = 1_000_000
"""Layers are weighed in millionths of the whole: whole numbers, so that equal cuts are equal."""
_NEVER = np.int64(1 << 61)
"""The cost of what is no stage; two of them can be added."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Degrees:
    """Every stage runs alike; devices are taken tensor first, then context, data and pipeline."""

    tensor: int = 1
    """Devices that share each layer's heads and features."""
    sequence_parallel: bool = False
    """Whether those also share the rows of what lies between products."""
    context: int = 1
    """Devices that share each sample's tokens."""
    keys: Keys = Keys.GATHERED
    """How those get at each other's keys and values."""
    expert: int = 1
    """Replicas that share a layer's experts; they are replicas of `data`, not more of them."""
    pipeline: int = 1
    """Runs of devices that each hold some of the layers."""
    chunks: int = 1
    """Stages of each of these runs: above 1 for interleaved schedules."""
    data: int = 0
    """Replicas; 0: as many as there are devices left."""
    microbatches: int = 1
    """Into how many each replica's samples are divided."""
    zero: int = 0
    """ZeRO stage; where one device alone holds a parameter there is nothing to divide."""
    recompute: Recompute = Recompute.NONE
    schedule: ScheduleKind | None = None
    """None: 1F1B, interleaved where there are chunks."""
    layers: tuple[int, ...] = ()
    """How many layers each stage has, embedding and head counted; none: stages of equal work."""
    pods: int = 1
    """Runs of devices with a whole pipeline each, over which the replicas are spread: 1 keeps
    replicas next to each other, as many as there are replicas keeps stages next to each other."""

    def __post_init__(self) -> None:
        least = {"data": 0, "zero": 0}
        counts = ("tensor", "context", "expert", "pipeline", "chunks", "data", "microbatches")
        for name in (*counts, "zero", "pods"):
            value, fewest = getattr(self, name), least.get(name, 1)
            if not is_whole(value) or value < fewest:
                raise InputError(f"{name}: must be a whole number from {fewest}, got {value!r:.60}")
        need_flag(self.sequence_parallel, "sequence_parallel")
        for name, kind in (("keys", Keys), ("recompute", Recompute)):
            object.__setattr__(self, name, read_choice(getattr(self, name), kind, name))
        default = ScheduleKind.INTERLEAVED if self.chunks > 1 else ScheduleKind.ONE_F_ONE_B
        given = default if self.schedule is None else self.schedule
        chosen = read_choice(given, ScheduleKind, "schedule")
        object.__setattr__(self, "schedule", chosen)
        need_type(self.layers, (tuple, list), "layers", "a list of whole numbers")
        object.__setattr__(self, "layers", tuple(self.layers))
        for rule in self._broken_rules():
            raise InputError(rule)

    @property
    def num_stages(self) -> int:
        """How many stages the pipeline has, counting every chunk of every device."""
        return self.pipeline * self.chunks

    @property
    def kind(self) -> ScheduleKind:
        """The schedule, which is known by now."""
        assert self.schedule is not None
        return self.schedule

    @property
    def team(self) -> Team:
        """The devices of one replica of a stage."""
        return Team(
            tensor=self.tensor,
            context=self.context,
            keys=self.keys,
            expert=self.expert,
            sequence=self.sequence_parallel,
        )

    def _broken_rules(self) -> Iterator[str]:
        """Of the degrees among themselves."""
        if self.zero > 3:
            yield f"zero: must be 0, 1, 2 or 3, got {self.zero}"
        if self.sequence_parallel and self.tensor == 1:
            yield "sequence_parallel: needs tensor above 1, got 1"
        if self.keys is not Keys.GATHERED and self.context == 1:
            yield f"keys: {self.keys} needs context above 1, got 1"
        if self.chunks > 1 and self.pipeline == 1:
            yield f"chunks: needs pipeline above 1, got {self.chunks} chunks of 1"
        several = (ScheduleKind.INTERLEAVED, ScheduleKind.GPIPE)
        if self.chunks > 1 and self.kind not in several:
            yield f"chunks: above 1 needs schedule {' or '.join(several)}, got {self.kind}"
        if self.kind is ScheduleKind.INTERLEAVED:
            if self.chunks == 1 < self.pipeline:
                yield f"schedule: {self.kind} needs chunks above 1, got 1"
            if not can_interleave(self.microbatches, self.pipeline):
                rounds = self.microbatches // self.pipeline
                yield (
                    f"microbatches: {self.kind} takes them through pipeline {self.pipeline} in "
                    f"{rounds} equal rounds, which must divide them, got {self.microbatches}"
                )
        if self.layers and len(self.layers) != self.num_stages:
            yield (
                f"layers: must be one number for each of pipeline x chunks ({self.pipeline} x "
                f"{self.chunks}) stages, got {len(self.layers):,}"
            )
        for each in self.layers:
            if not is_whole(each) or each < 1:
                yield f"layers: each stage must have at least one, got {each!r:.60}"


def word_degrees(degrees: Degrees) -> dict[str, Any]:
    """The words that describe a plan, as plain values: what is as usual is left out."""
    usual = Degrees()
    words: dict[str, Any] = {}
    for each in fields(Degrees):
        value = getattr(degrees, each.name)
        if each.name in ("tensor", "pipeline", "data") or value != getattr(usual, each.name):
            words[each.name] = str(value) if isinstance(value, StrEnum) else value
    if degrees.layers:
        words["layers"] = list(degrees.layers)
    return words


Fields = tuple[tuple[Part, ...], Schedule]
"""What makes a plan."""


def plan_degrees(graph: Graph, cluster: Cluster, degrees: Degrees) -> Fields:
    """The parts and the schedule of a plan; InputError where the degrees are not possible."""
    need_type(graph, Graph, "graph", "a Graph, as `load_graph` gives it")
    need_type(cluster, Cluster, "cluster", "a Cluster, as `meshwright.cluster` gives it")
    whole = _fill(graph, cluster, degrees)
    schedule = Schedule(kind=whole.kind, microbatches=whole.microbatches)
    try:
        stack = find_layers(graph)
    except InputError as error:
        if whole != Degrees(data=whole.data, microbatches=whole.microbatches, schedule=whole.kind):
            raise InputError(f"degrees other than data need a model of layers: {error}") from None
        names = tuple(cluster.devices[number].name for number in find_nest(cluster).order)
        return (Part(ops=graph.op_names, devices=names),), schedule
    planner = Planner(stack, cluster, find_nest(cluster).order)
    return planner.parts(*stage_degrees(stack, cluster, whole)), schedule


def stage_degrees(
    stack: Stack, cluster: Cluster, degrees: Degrees
) -> tuple[Frame, tuple[DraftStage, ...]]:
    """The stages of a plan in numbers; InputError where the degrees are not possible."""
    whole = _fill(stack.graph, cluster, degrees)
    if rule := team_fits(stack, whole.team):
        raise InputError(rule)
    frame = Frame(pods=whole.pods, microbatches=whole.microbatches)
    return frame, tuple(_stages(stack, cluster, whole))


def find_degrees(graph: Graph, cluster: Cluster, found: Fields) -> Degrees | None:
    """The degrees that give these parts and this schedule; None: no degrees do."""
    parts, schedule = found
    first, num_runs = parts[0], len({part.devices for part in parts})
    try:
        layer_of_op = find_layers(graph).layer_of_op
        layers = [len(np.unique(layer_of_op[[graph.index[op] for op in p.ops]])) for p in parts]
        same = ("tensor", "context", "keys", "expert", "zero", "recompute")
        words = Degrees(
            **{name: getattr(first, name) for name in same},
            sequence_parallel=first.sequence,
            pipeline=num_runs,
            chunks=max(1, len(parts) // num_runs),
            data=first.num_replicas,
            microbatches=schedule.microbatches,
            schedule=schedule.kind,
        )
        for pods in (each for each in range(1, words.data + 1) if words.data % each == 0):
            for cut in ((), layers):
                degrees = replace(words, pods=pods, layers=tuple(cut))
                if plan_degrees(graph, cluster, degrees) == found:
                    return degrees
    except InputError:  # no layers, or stages that are unlike
        pass
    return None


def _fill(graph: Graph, cluster: Cluster, degrees: Degrees) -> Degrees:
    """With the replicas that are left over, and no ZeRO where there is nothing to divide."""
    num_devices, batch = cluster.num_devices, graph.batch
    model = degrees.tensor * degrees.context * degrees.pipeline
    data = degrees.data or max(1, num_devices // model)
    if model * data != num_devices:
        raise InputError(
            f"tensor x context x data x pipeline: must be the {num_devices:,} devices of cluster "
            f"{cluster.name}, got {degrees.tensor} x {degrees.context} x {data} x "
            f"{degrees.pipeline} = {model * data}"
        )
    for name in ("expert", "pods"):
        if data % getattr(degrees, name):
            raise InputError(f"{name}: must divide data ({data}), got {getattr(degrees, name)}")
    if batch % (data * degrees.microbatches):
        raise InputError(
            f"data x microbatches: must divide the batch ({batch:g} samples) of graph "
            f"{graph.name}, got {data} x {degrees.microbatches} = {data * degrees.microbatches}"
        )
    zero = degrees.zero if data * degrees.context > 1 else 0
    return replace(degrees, data=data, zero=zero)


def _stages(stack: Stack, cluster: Cluster, degrees: Degrees) -> Iterator[DraftStage]:
    """Stage after stage; chunks go round the runs of devices of a pod."""
    option = Option(team=degrees.team, zero=degrees.zero, recompute=degrees.recompute)
    graph, num_layers = stack.graph, stack.num_layers
    if degrees.num_stages > 1 and option.is_plain and stack.shares_groups:
        raise InputError(
            f"pipeline: must be 1, because layers of graph {graph.name} share weights, which "
            f"stages have copies of only with tensor, context or expert above 1, ZeRO or "
            f"recomputation, got {degrees.pipeline}; or untie them"
        )
    if degrees.num_stages > num_layers:
        raise InputError(
            f"pipeline x chunks: must be at most the {num_layers:,} layers of graph {graph.name}, "
            f"got {degrees.pipeline} x {degrees.chunks} = {degrees.num_stages}"
        )
    layers = degrees.layers or cut_layers(
        _layer_seconds(stack, cluster, degrees), degrees.num_stages
    )
    if sum(layers) != num_layers:
        raise InputError(
            f"layers: must add up to the {num_layers} of graph {graph.name} (embedding and head "
            f"counted), got {sum(layers)}"
        )
    size = cluster.num_devices // degrees.pods // degrees.pipeline
    for number, (first, after) in enumerate(pairwise(accumulate(layers, initial=0))):
        offset = number % degrees.pipeline * size
        yield DraftStage(first=first, after=after, offset=offset, size=size, option=option)


def _layer_seconds(stack: Stack, cluster: Cluster, degrees: Degrees) -> Floats:
    """By device and host, for each layer: what a microbatch takes there, with its share of what
    happens once a step, on the first devices."""
    network = group_prices(cluster)
    devices = find_nest(cluster).order[: cluster.num_devices // degrees.pipeline]
    of_kind: dict[int, tuple[float, float]] = {}
    for layer, kind in enumerate(stack.layers):
        if kind in of_kind:
            continue
        stage = Stage(
            layers=range(layer, layer + 1),
            devices=devices,
            team=degrees.team,
            zero=min(degrees.zero, 1),  # the others' gathers hide behind the layers before
            recompute=degrees.recompute,
            samples=stack.graph.batch / (degrees.microbatches * degrees.data),
        )
        cost = stage_cost(stack, network, stage)
        once = cost.update_seconds + sum(
            each.seconds for each in (*cost.synchronisations, *cost.gathers)
        )
        busy = cost.forward_seconds + cost.backward_seconds + once / degrees.microbatches
        of_kind[kind] = busy, cost.host_seconds
    return np.array([of_kind[kind] for kind in stack.layers]).T


def cut_layers(seconds: Floats, num_stages: int) -> tuple[int, ...]:
    """How many layers each stage has: the slowest stage is as fast as it can be, then stages are as
    even as they can be; of equal cuts the one whose first stages, which hold the most microbatches,
    are the shortest. `seconds` are by device and host, which work side by side, and layer."""
    work = np.rint(_WHOLE * seconds / max(seconds.sum(), 1e-300)).astype(np.int64)
    before = np.pad(np.cumsum(work, axis=1), ((0, 0), (1, 0)))
    load = (before[:, None, :] - before[:, :, None]).max(axis=0)  # by first layer and last + 1
    is_stage = np.triu(np.ones(load.shape, dtype=np.bool_), 1)
    largest, _ = _chain(np.where(is_stage, load, _NEVER), num_stages, np.maximum)
    even = np.where(is_stage & (load <= largest), load * load, _NEVER)
    return _chain(even, num_stages, np.add)[1]


def _chain(costs: Longs, num_stages: int, join: np.ufunc) -> tuple[int, tuple[int, ...]]:
    """The least cost of so many stages in a row, and how many layers each has."""
    value = np.full(len(costs), _NEVER)
    value[-1] = 0
    choices = []
    for _ in range(num_stages):
        total = np.minimum(join(costs, value[None, :]), _NEVER)
        choices.append(total.argmin(axis=1))
        value = total.min(axis=1)
    bounds = [0]
    for choice in reversed(choices):
        bounds.append(int(choice[bounds[-1]]))
    return int(value[0]), tuple(after - first for first, after in pairwise(bounds))
