"""What a stage costs on the devices that run it: seconds of its actions, bytes on each device.

Adds up the costs of its layers, prices what its teams say to each other on their actual devices,
all teams at once, and divides what ZeRO divides. The search and lowering both ask here, so that
what was searched for is what is simulated. Knows nothing of schedules: how many microbatches are
in flight is the caller's to say.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from meshwright.cluster.cluster import DeviceType
from meshwright.cost.collective import Collective
from meshwright.cost.compute import host_seconds
from meshwright.cost.group_price import GroupCall, GroupPrices, Groups
from meshwright.cost.holder import ShardTraffic, Synchronisation, find_shards, held, once
from meshwright.cost.layer.mode import Recompute
from meshwright.cost.layer.price import price_layer
from meshwright.cost.layer.result import Axis, LayerCost, TeamCall
from meshwright.cost.layer.team import Team
from meshwright.cost.passage import Passage, num_ways, passage_in_chain, passage_in_line
from meshwright.cost.runtime import MESHWRIGHT, Runtime
from meshwright.graph.graph import Phase
from meshwright.graph.stack.stack import LayerKind, Stack

BUCKET_BYTES = 25.0 * 2**20
"""Gradients travel in buckets of this size, as in PyTorch DDP."""
MAX_BUCKETS = 8
"""The most buckets of a part: each holds an eighth of its gradients, if that is more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """What one device of a stage holds, by what it is."""

    parameter_bytes: float
    gradient_bytes: float
    optimiser_bytes: float
    saved_bytes: float
    """Activations of one microbatch, from its forward to the end of its backward; of inference what
    it returns, until the step ends."""
    workspace_bytes: float
    """The most that is held only while one action runs: also what is computed again, logits."""
    buffer_bytes: float
    """Of collectives: gathered parameters, buckets of gradients."""
    transfer_bytes: float
    """What is on its way from and to neighbouring stages: inputs and gradients received ahead,
    outputs and gradients that are being sent. Programs count these one by one."""
    library_bytes: float
    """What libraries keep for themselves."""

    def peak_bytes(self, in_flight: float) -> float:
        """The most at once with so many microbatches in flight."""
        return self.fixed_bytes + self.transfer_bytes + in_flight * self.saved_bytes

    @property
    def fixed_bytes(self) -> float:
        """All but the activations, those on their way included."""
        return (
            self.parameter_bytes
            + self.gradient_bytes
            + self.optimiser_bytes
            + self.workspace_bytes
            + self.buffer_bytes
            + self.library_bytes
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCost:
    """A stage on its devices; of one microbatch on one team unless said otherwise."""

    forward_seconds: float
    """Compute, what the team says to itself, and an estimate of what ZeRO shows beyond what
    hides."""
    backward_seconds: float
    """The same of backward, with what is computed again."""
    weight_seconds: float
    """Of backward: what only weight gradients take, which zero-bubble schedules postpone."""
    forward_call_seconds: float
    """Of forward: collectives, not hidden."""
    backward_call_seconds: float
    host_seconds: float
    """What a device's host takes to launch one microbatch's forward and backward."""
    forward_host_seconds: float = 0.0
    """What a device's host takes to launch one microbatch's forward."""
    output_bytes: float
    """To the next stage, of the whole team; the gradient that comes back is as large. Where layers
    stand in line, all that crosses the cut behind the stage."""
    is_scattered: bool
    """Whether members of a tensor team hold different rows of the output (`sequence`)."""
    synchronisations: tuple[Synchronisation, ...]
    """Of gradients, once a step, while the last microbatch's backward runs and after it."""
    gathers: tuple[Synchronisation, ...]
    """Of parameters after the update (ZeRO 1 and 2), once a step."""
    update_seconds: float
    update_host_seconds: float
    memory: StageMemory
    calls: frozenset[GroupCall]
    """What groups of the stage do within the time of forward and backward."""
    flops: float
    """Of the model, forward and backward without recomputation, of the whole team."""
    shards: ShardTraffic | None = None
    """What ZeRO 2 and 3 move in every microbatch, of which `forward_seconds` and
    `backward_seconds` have an estimate."""

    @property
    def busy_seconds(self) -> tuple[float, float]:
        """Forward and backward without what ZeRO moves: no program takes less."""
        if self.shards is None:
            return self.forward_seconds, self.backward_seconds
        forward = self.forward_seconds - self.shards.forward_seconds
        return forward, self.backward_seconds - self.shards.backward_seconds


@dataclass(frozen=True, kw_only=True)
class Stage:
    """Some layers on some devices, and how: a part of a plan in numbers."""

    layers: range
    """The layers of the stage, as numbers in the stack."""
    devices: tuple[int, ...]
    """Replica after replica; within one, context after context, tensor innermost."""
    team: Team
    zero: int = 0
    recompute: Recompute = Recompute.NONE
    samples: float
    """Of one microbatch on one replica, the largest where shares differ."""
    runtime: Runtime = MESHWRIGHT

    @property
    def num_replicas(self) -> int:
        """How many teams run the stage, each on its samples."""
        return len(self.devices) // self.width

    @property
    def width(self) -> int:
        """Devices of a team."""
        return self.team.tensor * self.team.context

    @property
    def num_holders(self) -> int:
        """Devices that hold the same dense parameters: what ZeRO divides by."""
        return self.num_replicas * self.team.context

    @property
    def num_expert_holders(self) -> int:
        """Devices that hold the same experts."""
        return self.num_holders // self.team.expert

    @property
    def axes(self) -> dict[str, Groups]:
        """The groups of each axis: tensor, context, expert, and those that hold the same
        parameters (`dense`) and experts (`experts`)."""
        return _axes(self.devices, self.team)


@lru_cache(maxsize=64)
def _axes(devices: tuple[int, ...], team: Team) -> dict[str, Groups]:
    """Remembered, because chunks of interleaved stages share their devices."""
    tensor, context, expert = team.tensor, team.context, team.expert
    members = np.array(devices).reshape(-1, expert, context, tensor)
    # By (run of replicas with all experts, replica in it, context, tensor).
    grouped = {
        "tensor": members.reshape(-1, tensor),
        "context": members.transpose(0, 1, 3, 2).reshape(-1, context),
        "expert": members.transpose(0, 2, 3, 1).reshape(-1, expert),
        "dense": members.transpose(3, 0, 1, 2).reshape(tensor, -1),
        "experts": members.transpose(1, 3, 0, 2).reshape(expert * tensor, -1),
    }
    return {axis: tuple(map(tuple, each.tolist())) for axis, each in grouped.items()}


def stage_cost(stack: Stack, network: GroupPrices, stage: Stage) -> StageCost:
    """The cost of a stage: that of its slowest replica."""
    costs = {id(cost): cost for cost in replica_costs(stack, network, stage)}
    return max(costs.values(), key=lambda cost: cost.forward_seconds + cost.backward_seconds)


def replica_costs(stack: Stack, network: GroupPrices, stage: Stage) -> tuple[StageCost, ...]:
    """The cost on each replica: what its devices compute, and what its own groups say.

    A team of devices of several types computes as the slowest. Replicas of the same types have one
    cost, that of the slowest groups among them.
    """
    cluster, width = network.cluster, stage.width
    types = [cluster.devices[device].type for device in stage.devices]
    teams = [tuple(sorted(set(types[at : at + width]))) for at in range(0, len(types), width)]
    costs = {}
    for names in set(teams):
        places = [place for place, each in enumerate(teams) if each == names]
        own = frozenset(d for at in places for d in stage.devices[at * width : (at + 1) * width])
        found = [_cost_on(stack, network, stage, cluster.types[name], own) for name in names]
        costs[names] = max(found, key=lambda cost: cost.forward_seconds + cost.backward_seconds)
    return tuple(costs[names] for names in teams)


def _cost_on(
    stack: Stack, network: GroupPrices, stage: Stage, kind: DeviceType, own: frozenset[int]
) -> StageCost:
    """On replicas of one sort, whose devices are `own`."""
    kinds = [stack.kinds[stack.layers[each]] for each in stage.layers]
    layers = [
        price_layer(each, stage.team, stage.recompute, kind, stage.samples).under(stage.runtime)
        for each in kinds
    ]
    forward = call_seconds(network, stage, layers, own, "forward")
    backward = call_seconds(network, stage, layers, own, "backward")
    beside = call_seconds(network, stage, layers, own, "overlapped")
    backward += max(0.0, beside - _total(layers, "weight_seconds"))
    forward_compute = _total(layers, "forward_seconds")
    backward_compute = _total(layers, "backward_seconds")
    busy = forward_compute + forward, backward_compute + backward
    shards = _shards(network, stage, layers, own) if stage.zero >= 2 else None
    forward_zero = shards.forward_seconds if shards else 0.0
    backward_zero = shards.backward_seconds if shards else 0.0
    divided = stage.num_holders if stage.zero >= 1 else 1
    summing = Collective.REDUCE_SCATTER if stage.zero == 1 else Collective.ALL_REDUCE
    forward_host, backward_host = _call_host_seconds(stack, stage)
    passage = _passage(stack, stage, layers, kind)
    return StageCost(
        forward_seconds=busy[0] + forward_zero,
        backward_seconds=busy[1] + backward_zero,
        weight_seconds=_total(layers, "weight_seconds"),
        forward_call_seconds=forward + forward_zero,
        backward_call_seconds=backward + backward_zero,
        host_seconds=_total(layers, "host_seconds") + forward_host + backward_host,
        forward_host_seconds=_total(layers, "forward_host_seconds") + forward_host,
        output_bytes=passage.output_bytes,
        is_scattered=stage.team.sequence,
        # Under ZeRO 2 and 3 gradients are scattered in every backward.
        synchronisations=once(network, stage.axes, summing, "gradient", layers)
        if stage.zero < 2
        else (),
        # Those who update parameters are the only ones to have the new ones.
        gathers=once(network, stage.axes, Collective.ALL_GATHER, "parameter", layers)
        if stage.zero in (1, 2)
        else (),
        update_seconds=_total(layers, "update_seconds") / divided,
        update_host_seconds=_update_host_seconds(kinds) * kind.launch_share,
        memory=_memory(stage, layers, kind, passage),
        calls=_calls(stage, layers),
        shards=shards,
        flops=_total(layers, "flops"),
    )


def _call_host_seconds(stack: Stack, stage: Stage) -> tuple[float, float]:
    """What a runtime's hosts do for transfers, and for layers that ZeRO gathers and scatters, in
    forward and in backward."""
    runtime, count = stage.runtime, len(stage.layers)
    ends = (stage.layers.start > 0) + (stage.layers.stop < stack.num_layers)
    gathers, scatters = count * (stage.zero >= 3), count * (stage.zero >= 2)
    sending = ends * runtime.transfer_host_seconds
    back = (gathers + scatters) * runtime.shard_host_seconds + (num_ways(stack.graph) - 1) * sending
    return gathers * runtime.shard_host_seconds + sending, back


def _update_host_seconds(kinds: Sequence[LayerKind]) -> float:
    """Launches of the updates; ZeRO divides what they do, not how many they are."""
    seconds = {
        kind: float(host_seconds(kind.graph)[kind.graph.phase == Phase.UPDATE].sum())
        for kind in set(kinds)
    }
    return sum(seconds[kind] for kind in kinds)


def _total(layers: Iterable[LayerCost], name: str) -> float:
    return float(sum(getattr(layer, name) for layer in layers))


def call_seconds(
    network: GroupPrices,
    stage: Stage,
    layers: Sequence[LayerCost],
    own: frozenset[int],
    when: str,
    axis: Axis | None = None,
) -> float:
    """What teams say to each other in forward, in backward, or beside products, of a microbatch;
    `axis`: only what goes along it."""
    counts: dict[TeamCall, int] = {}
    for layer in layers:
        for call in layer.calls if axis is None else [c for c in layer.calls if c.axis == axis]:
            counts[call] = counts.get(call, 0) + 1
    total = 0.0
    for call, count in counts.items():
        number: int = count * getattr(call, when)
        if number and call.message_bytes > 0:
            groups = network.own_groups(call.collective, stage.axes[call.axis], own)
            alone = network.seconds(call.collective, groups, call.message_bytes)
            total += number * call.shown_seconds(alone)
    return total


def _shards(
    network: GroupPrices, stage: Stage, layers: Sequence[LayerCost], own: frozenset[int]
) -> ShardTraffic | None:
    """What ZeRO moves beside each layer's compute and what its team says."""
    known: dict[int, tuple[float, float]] = {}
    for layer in layers:
        if id(layer) not in known:
            said = [call_seconds(network, stage, [layer], own, w) for w in ("forward", "backward")]
            known[id(layer)] = layer.forward_seconds + said[0], layer.backward_seconds + said[1]
    forward, backward = np.array([known[id(layer)] for layer in layers]).T
    axes = stage.axes
    return find_shards(network, axes, stage.zero, layers, (forward, backward), stage.runtime)


def _calls(stage: Stage, layers: Sequence[LayerCost]) -> frozenset[GroupCall]:
    """Collectives of teams in every microbatch, and of ZeRO 2 and 3."""
    found = {(call.collective, stage.axes[call.axis]) for layer in layers for call in layer.calls}
    for layer in layers if stage.zero >= 2 else ():
        sizes = held(stage.axes, layer)
        found |= {(Collective.REDUCE_SCATTER, axis) for axis, _, size in sizes if size > 0}
    return frozenset((each, group) for each, axis in found for group in axis if len(group) > 1)


def _memory(
    stage: Stage, layers: Sequence[LayerCost], kind: DeviceType, passage: Passage
) -> StageMemory:
    dense, experts = stage.num_holders, stage.num_expert_holders
    spread = stage.width if stage.team.sequence else stage.team.context

    def whole(what: str, least_zero: int) -> float:
        """Dense and expert bytes, divided from that ZeRO stage on."""
        parts = (dense, experts) if stage.zero >= least_zero else (1, 1)
        own, of_experts = _total(layers, f"{what}_bytes"), _total(layers, f"expert_{what}_bytes")
        return own / parts[0] + of_experts / parts[1]

    return StageMemory(
        parameter_bytes=whole("parameter", 3),
        gradient_bytes=whole("gradient", 2),
        optimiser_bytes=whole("optimiser", 1),
        saved_bytes=_total(layers, "saved_bytes"),
        workspace_bytes=max(layer.workspace_bytes for layer in layers)
        + passage.over_bytes / spread,
        buffer_bytes=_buffer_bytes(stage, layers),
        transfer_bytes=passage.transfer_bytes / spread,
        library_bytes=kind.library_bytes,
    )


def _buffer_bytes(stage: Stage, layers: Sequence[LayerCost]) -> float:
    """A bucket of gradients in flight, gathered layers (ZeRO 3: the running one, those ahead of it,
    and what arrives before it is in its place), and whole gradients of a layer before they are
    scattered, with the buffers in which they travel (ZeRO 2)."""
    gradients = [layer.gradient_bytes + layer.expert_gradient_bytes for layer in layers]
    parameters = [layer.parameter_bytes + layer.expert_parameter_bytes for layer in layers]
    buffer = 0.0
    if stage.zero >= 2:
        buffer += max(gradients) * (2 + 1 / stage.num_holders)
    elif stage.num_holders > 1:
        buffer += min(sum(gradients), max(BUCKET_BYTES, sum(gradients) / MAX_BUCKETS))
    if stage.zero >= 3:
        ahead = 1 + stage.runtime.gathered_ahead
        buffer += sum(sorted(parameters)[-ahead:]) + max(parameters)
    return buffer


def _passage(stack: Stack, stage: Stage, layers: Sequence[LayerCost], kind: DeviceType) -> Passage:
    """What goes in and out, of the whole team."""
    if stack.crossings is not None:
        return passage_in_line(stack.crossings, stage.layers, stage.samples)
    before = 0.0
    if stage.layers.start > 0:
        previous = stack.kind_of(stage.layers.start - 1)
        cost = price_layer(previous, stage.team, stage.recompute, kind, stage.samples)
        before = cost.output_bytes
    return passage_in_chain(stack, stage.layers, stage.samples, before, layers[-1].output_bytes)
