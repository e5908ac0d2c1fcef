"""What is to be lowered: a checked plan with every op's time, action and gradient bucket.

The plan's step is expanded first: by shards by features and by tokens, tokens that travel to
experts and what replicas say about batch norm, then by what is computed again, then by what ZeRO
divides. In this order, because a member computes its own shards again, with what it said to the
others meanwhile, and gathers weights for both times.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from meshwright.array import Bools, Floats, Ints
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.cost.compute import (
    estimated_seconds,
    host_seconds,
    launch_shares,
    measured_seconds,
    op_seconds,
)
from meshwright.graph.fuse import is_replayed_alone
from meshwright.graph.graph import ANY_TYPE, Graph, Phase, Split
from meshwright.plan.check import Placement
from meshwright.plan.plan import Plan, Schedule, ScheduleKind
from meshwright.program.bucket import (
    Buckets,
    effective_splits,
    fill_buckets,
    segment_ops,
)
from meshwright.program.expand.context import divide_tokens
from meshwright.program.expand.expansion import HOLDING, Expansion, unexpanded
from meshwright.program.expand.expert import divide_experts, is_expert_gradient
from meshwright.program.expand.recompute import recompute
from meshwright.program.expand.shard import shard
from meshwright.program.expand.synchronise import synchronise
from meshwright.program.expand.zero import divide_state
from meshwright.program.schedule import Action, StageSeconds
from meshwright.program.untie import untie


@dataclass(frozen=True, kw_only=True)
class Work:
    """A graph on its replicas with all that decides times: what is lowered."""

    expansion: Expansion
    graph: Graph
    """Of the expansion, or of units."""
    placement: Placement
    """Of the ops of `graph`."""
    plan: Plan
    split: npt.NDArray[np.int8]
    tensor_partial: Bools
    tensor_beside: Floats
    """Of each tensor the share that travels beside its largest member; 0: it is one tensor."""
    action: npt.NDArray[np.int8]
    """An `Action` for each op."""
    segment: Ints
    """Place of each op among the buckets of its part; zero without a schedule."""
    buckets: Buckets
    seconds: Floats
    """By op and replica of its part, op after op."""
    seconds_start: Ints
    """Where each op's entries in `seconds` begin."""
    stage_seconds: tuple[StageSeconds, ...]
    """Of the ops, also where they are merged: a schedule that looks at times must not depend on how
    these were added up. Empty without a schedule."""
    workspace_bytes: Floats
    """By op, for one microbatch and all rows."""
    whole_workspace_bytes: Floats
    """Of these, what a replica needs whatever its rows."""
    host_seconds: Floats
    """By device: what its host takes to launch the step."""
    is_again: Bools
    """By op: whether it is one of forward that runs once more in backward."""

    @property
    def microbatches(self) -> int:
        """How many; one without a schedule."""
        return self.plan.schedule.microbatches if self.plan.schedule else 1


def prepare_work(graph: Graph, cluster: Cluster, plan: Plan) -> Work:
    """Check the plan and work out times, gradient buckets and the order within actions."""
    planned = graph
    graph, plan, placement = untie(graph, cluster, plan)
    expansion = carry_measured(expand(graph, placement, plan), graph, cluster)
    is_known = expansion.origin >= 0
    launches = is_known * host_seconds(expansion.graph, graph.phase[expansion.origin])
    is_forward = expansion.graph.phase == Phase.FORWARD
    is_forward |= is_known & (graph.phase[expansion.origin] == Phase.FORWARD)
    graph = expansion.graph
    is_again = is_forward & (graph.phase != Phase.FORWARD)
    placement = replace(placement, part_of_op=expansion.part_of_op, priority=expansion.priority)
    split, partial = effective_splits(graph, placement, plan, is_forward)
    microbatches = plan.schedule.microbatches if plan.schedule else 1
    seconds, start = _replica_seconds(expansion, cluster, placement, split, microbatches)
    action = _find_actions(graph, placement, plan.schedule)
    scatters = np.isin(expansion.axis, HOLDING)
    is_fixed = scatters | (graph.split == Split.NONE)
    workspace = graph.workspace_bytes * np.where(is_fixed, 1.0, 1 / microbatches)
    of_experts = is_expert_gradient(expansion, plan.parts)
    buckets = fill_buckets(graph, placement, plan, scatters, of_experts)
    partial[of_experts & (buckets.of_tensor < 0)] = False  # nobody else has any of it
    return Work(
        expansion=expansion,
        graph=graph,
        placement=placement,
        plan=plan,
        split=split,
        tensor_partial=partial,
        tensor_beside=np.zeros(graph.num_tensors),
        action=action,
        segment=segment_ops(graph, placement, buckets)
        if plan.schedule
        else np.zeros(graph.num_ops, dtype=np.int32),
        buckets=buckets,
        seconds=seconds,
        seconds_start=start,
        stage_seconds=_stage_seconds(placement, action, seconds, start) if plan.schedule else (),
        workspace_bytes=workspace,
        whole_workspace_bytes=np.where(scatters | (split == Split.NONE), workspace, 0.0),
        host_seconds=np.zeros(cluster.num_devices)
        if len(np.unique(placement.replica_device)) == 1 and is_replayed_alone(planned)
        else _host_seconds(graph, launches, cluster, placement, microbatches),
        is_again=is_again,
    )


def sum_by_device(values: Floats, placement: Placement, num_devices: int) -> Floats:
    """Sums over ops by device, each op on all replicas of its part."""
    by_part = np.bincount(placement.part_of_op, weights=values, minlength=placement.num_parts)
    return np.bincount(
        placement.replica_device,
        weights=np.repeat(by_part, np.diff(placement.replica_start)),
        minlength=num_devices,
    ).astype(np.float64, copy=False)


def _host_seconds(
    graph: Graph, launches: Floats, cluster: Cluster, placement: Placement, microbatches: int
) -> Floats:
    """Launches of forward and backward ops for every microbatch, of updates once.

    An op of forward that runs again in backward is launched as it was, by Python.
    """
    times = np.where(graph.phase == Phase.UPDATE, 1, microbatches)
    total = sum_by_device(launches * times, placement, cluster.num_devices)
    return total * launch_shares(cluster)[cluster.type_of]


def _replica_seconds(
    expansion: Expansion,
    cluster: Cluster,
    placement: Placement,
    split: npt.NDArray[np.int8],
    microbatches: int,
) -> tuple[Floats, Ints]:
    """Time of every op on every replica of its part, each on its rows of a microbatch.

    Updates run once, on gradients of the whole batch; collectives take no time of a device.
    """
    graph = expansion.graph
    samples = graph.batch / microbatches
    columns: dict[tuple[int, float], int] = {}
    column_of = np.empty(len(placement.replica_device), dtype=np.int32)
    whole_of, update_of = np.empty_like(column_of), np.empty_like(column_of)
    for slot, device in enumerate(placement.replica_device.tolist()):
        share = float(placement.replica_to[slot] - placement.replica_from[slot])
        kind = int(cluster.type_of[device])
        column_of[slot] = columns.setdefault((kind, share), len(columns))
        whole_of[slot] = columns.setdefault((kind, 1.0), len(columns))
        update_of[slot] = columns.setdefault((kind, float(microbatches)), len(columns))
    times = np.stack(
        [
            op_seconds(graph, cluster.types[cluster.type_names[kind]], samples * share)
            for kind, share in columns
        ]
    )
    times[:, expansion.is_collective] = 0.0
    replicas = np.diff(placement.replica_start)[placement.part_of_op]
    start = np.zeros(graph.num_ops + 1, dtype=np.int32)
    np.cumsum(replicas, out=start[1:])
    op = np.repeat(np.arange(graph.num_ops), replicas)
    slots = placement.replica_start[placement.part_of_op][op] + (np.arange(len(op)) - start[op])
    column = np.where(split[op] == Split.NONE, whole_of[slots], column_of[slots])
    column = np.where(graph.phase[op] == Phase.UPDATE, update_of[slots], column)
    return times[column, op], start


def _stage_seconds(
    placement: Placement, action: npt.NDArray[np.int8], seconds: Floats, start: Ints
) -> tuple[StageSeconds, ...]:
    """Each stage's time of one microbatch by action, on its slowest replica."""
    op = np.repeat(np.arange(len(action)), np.diff(start))
    replica = np.arange(len(op)) - start[op]
    slot = placement.replica_start[placement.part_of_op[op]] + replica
    num_slots = len(placement.replica_device)
    times = np.bincount(slot * 4 + action[op], weights=seconds, minlength=num_slots * 4)
    slowest = np.maximum.reduceat(times.reshape(num_slots, 4), placement.replica_start[:-1], axis=0)
    return tuple((float(f), float(b), float(w)) for f, b, w, _ in slowest)


def _find_actions(
    graph: Graph, placement: Placement, schedule: Schedule | None
) -> npt.NDArray[np.int8]:
    """Each op's action. Zero-bubble: backward ops that no other stage waits for are WEIGHT."""
    action = graph.phase.copy()
    action[graph.phase == Phase.UPDATE] = Action.UPDATE
    if schedule is None or schedule.kind is not ScheduleKind.ZERO_BUBBLE:
        return action
    source, reader = (array.tolist() for array in graph.edges)
    part = placement.part_of_op.tolist()
    is_backward = (graph.phase == Phase.BACKWARD).tolist()
    is_awaited = [False] * graph.num_ops
    by_reader = np.argsort(-graph.edges[1], kind="stable").tolist()
    for use in by_reader:
        first, second = source[use], reader[use]
        if is_backward[first] and is_backward[second]:
            is_awaited[first] |= is_awaited[second] or part[first] != part[second]
    action[np.array(is_backward) & ~np.array(is_awaited)] = Action.WEIGHT
    return action


def expand(graph: Graph, placement: Placement, plan: Plan) -> Expansion:
    """What one device of every part runs."""
    expansion = unexpanded(graph, placement)
    if plan.is_plain:
        return synchronise(expansion, plan)
    expansion = divide_tokens(shard(expansion, graph, plan), graph, plan)
    expansion = synchronise(divide_experts(expansion, plan), plan)
    expansion = recompute(expansion, graph, plan)
    return divide_state(expansion, graph, plan)


def carry_measured(expansion: Expansion, graph: Graph, cluster: Cluster) -> Expansion:
    """Time shards of measured ops in proportion to what models of times say of both.

    Layers are priced by the same rule (`cost.layer.seconds`), so that a plan takes as long op by op
    as by layer. `graph`: the planned one, whose measured times are of whole ops.
    """
    if not graph.seconds or expansion.graph is graph:
        return expansion
    seconds, ladders = dict(expansion.graph.seconds), dict(expansion.graph.ladders)
    for name, device_type in cluster.types.items():
        seconds[name] = _shard_seconds(expansion, graph, device_type, graph.batch)
        ladders[name] = _shard_ladder(expansion, graph, device_type)
    return replace(expansion, graph=replace(expansion.graph, seconds=seconds, ladders=ladders))


def _shard_ladder(
    expansion: Expansion, graph: Graph, device_type: DeviceType
) -> dict[float, Floats]:
    """The times at other numbers of samples of what has been made of ops that have such times."""
    found: dict[float, Floats] = {}
    for name in (device_type.name, ANY_TYPE):
        for samples, rung in graph.ladders.get(name, {}).items():
            is_made = (expansion.origin >= 0) & ~np.isnan(rung)[expansion.origin]
            own = _shard_seconds(expansion, graph, device_type, samples)
            before = found.get(samples, np.nan)
            found[samples] = np.where(is_made & np.isfinite(own), own, before)
    return found


def _shard_seconds(
    expansion: Expansion, graph: Graph, device_type: DeviceType, batch: float
) -> Floats:
    """The time of each op of the expansion: measured, its share of a measured one, or NaN."""
    divided = expansion.graph
    known = measured_seconds(divided, device_type, batch)
    whole = measured_seconds(graph, device_type, batch)
    own = np.full(divided.num_ops, np.nan) if known is None else known
    if whole is None:
        return own
    is_shard = np.isnan(own) & (expansion.origin >= 0) & ~np.isnan(whole[expansion.origin])
    if not is_shard.any():
        return own
    origin = expansion.origin[is_shard]
    of_whole = estimated_seconds(graph, device_type, batch)[origin]
    share = estimated_seconds(divided, device_type, batch)[is_shard]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(of_whole > 0, share / of_whole, 1.0)
    own[is_shard] = whole[origin] * share
    return own
