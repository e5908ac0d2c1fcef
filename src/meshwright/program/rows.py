"""What lowering knows without looking at tensors: the order of ops, and gradient buckets.

Decides who serves a bucket of a part with parameter servers: the replicas take turns.
"""

import numpy as np

from meshwright.array import Floats, Ints, Longs, Records, count_up
from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import copy_seconds
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Schedule, Sync
from meshwright.program.collective import Groups, Lane, teams_of
from meshwright.program.expand.expansion import Axis
from meshwright.program.program import BUFFER, INSTRUCTION, PAIR, Kind, blank_rows
from meshwright.program.record import BUCKET
from meshwright.program.schedule import Action, order_steps
from meshwright.program.work import Work


def order_ops(work: Work, num_devices: int) -> tuple[Floats, Floats, Floats]:
    """What decides priorities: each op's rank and turn, and with a schedule each action's place.

    An instruction's priority is minus its action's place times one more than the number of ops,
    minus its op's rank. Places are by replica, action and microbatch; all zero without a schedule.
    Collectives run in one order on all devices, so theirs must be one that the graph allows even
    where the plan's priorities are not: it uses the op's turn.
    """
    placement = work.placement
    rank = np.empty(work.graph.num_ops)
    if work.plan.schedule is None:
        order = np.argsort(-placement.priority, kind="stable")
        place = np.zeros((len(placement.replica_device), 4, 1))
    else:
        order = np.lexsort((np.arange(len(rank)), work.segment))
        place = _place_actions(work, work.plan.schedule, num_devices)
    rank[order] = np.arange(len(rank))
    turn = np.arange(len(rank), dtype=np.float64) if work.plan.schedule is None else rank
    return rank, turn, place


def _place_actions(work: Work, schedule: Schedule, num_devices: int) -> Floats:
    """Where each action stands in its device's order; updates come last, stage by stage, or from
    the last stage to the first where these wait for those."""
    placement = work.placement
    slots_on: list[list[int]] = [[] for _ in range(num_devices)]
    stage_of = np.repeat(np.arange(placement.num_parts), np.diff(placement.replica_start))
    for slot, device in enumerate(placement.replica_device.tolist()):
        slots_on[device].append(slot)
    stages_of = [tuple(int(stage_of[slot]) for slot in slots) for slots in slots_on]
    orders = order_steps(schedule, stages_of, work.stage_seconds)
    place = np.zeros((len(stage_of), 4, work.microbatches))
    stages = range(placement.num_parts)
    # A stage may update copies of weights by a sum that a later stage makes after backward: it must
    # not come first on a device that has both.
    source, reader = work.graph.edges
    is_update, stage = work.action == Action.UPDATE, placement.part_of_op
    waits = is_update[source] & is_update[reader] & (stage[source] > stage[reader])
    turn_of = stages[::-1] if waits.any() else stages
    for slots, steps in zip(slots_on, orders, strict=True):
        slot_of = {int(stage_of[slot]): slot for slot in slots}
        for number, step in enumerate(steps):
            place[slot_of[step.stage], step.action, step.microbatch] = number
        for slot in slots:
            place[slot, Action.UPDATE, 0] = len(steps) + turn_of[int(stage_of[slot])]
    return place


def bucket_rows(
    work: Work, cluster: Cluster, groups: Groups, turn: Floats, place: Floats, num_computes: int
) -> tuple[Records, Records, int]:
    """The buckets, their own instructions (numbered after the computes), and the tasks so far.

    Groups that broadcast do so from their first device.
    """
    placement, plan = work.placement, work.plan
    buckets = np.zeros(len(work.buckets.part), BUCKET)
    buckets["part"] = work.buckets.part
    member = work.buckets.of_tensor >= 0
    np.add.at(buckets["bytes"], work.buckets.of_tensor[member], work.graph.tensor_bytes[member])
    own: list[Records] = []
    number, task = num_computes, num_computes
    for turn_of, (bucket, last_op) in enumerate(
        zip(buckets, work.buckets.last_op.tolist(), strict=True)
    ):
        part = int(bucket["part"])
        devices = placement.replica_device[placement.replicas(part)]
        is_served = plan.parts[part].sync is Sync.PARAMETER_SERVER
        server = turn_of % len(devices) if is_served else -1
        group = part
        if is_served:
            group = groups.number(Lane.SYNC, tuple(np.roll(devices, -server).tolist()))
        rows = _sync_rows(devices, bucket, group, server, task, cluster)
        if work.buckets.is_packed[turn_of]:
            is_sent = np.isin(rows["kind"], (Kind.ALL_REDUCE, Kind.BROADCAST, Kind.SEND))
            rows["workspace_bytes"][is_sent] = bucket["bytes"]
        if work.buckets.of_experts[turn_of]:
            _divide_teams(work, groups, part, Axis.EXPERT_HOLDERS, rows)
        elif placement.part_width[part] > 1:
            _divide_teams(work, groups, part, Axis.HOLDERS, rows)
        # One key for all members: its first replica's last op, so that all devices agree.
        when = place[placement.replica_start[part], work.action[last_op], -1]
        rows["priority"] = -(when * (len(turn) + 1) + turn[last_op])
        rows["priority"][rows["kind"] == Kind.SUM] += 0.5  # before the broadcast
        bucket["instruction"], bucket["server"] = number, server
        number += len(rows)
        task = int(rows["task"].max()) + 1
        own.append(rows)
    joined = np.concatenate(own) if own else np.zeros(0, INSTRUCTION)
    return buckets, joined, task


def _divide_teams(work: Work, groups: Groups, part: int, axis: Axis, rows: Records) -> None:
    """Let those that hold the same weights synchronise them, each group by itself."""
    first = int(rows["task"][0])
    for number, members in enumerate(teams_of(work, part, axis)):
        devices = tuple(rows["device"][members].tolist())
        rows["group"][members] = groups.number(Lane.SYNC, devices)
        rows["task"][members] = first + number


def _sync_rows(
    devices: Ints,
    bucket: np.void,
    group: int,
    server: int,
    task: int,
    cluster: Cluster,
) -> Records:
    """All-reduce, or sends to the replica that serves, a sum there and a broadcast."""
    replicas, others = len(devices), len(devices) - 1
    rows = blank_rows(replicas + (2 * others + 1 if server >= 0 else 0))
    rows["rows_to"] = 1.0
    rows["bytes"] = bucket["bytes"]
    collective = rows[:replicas]
    collective["kind"] = Kind.BROADCAST if server >= 0 else Kind.ALL_REDUCE
    collective["device"] = devices
    collective["replica"] = np.arange(replicas)
    collective["group"] = group
    collective["task"] = task
    collective["stream"] = cluster.num_devices + devices
    if server >= 0:
        sends, receives = rows[replicas : replicas + others], rows[replicas + others : -1]
        sends["kind"], receives["kind"] = Kind.SEND, Kind.RECEIVE
        senders = np.delete(np.arange(replicas), server)
        sends["device"], sends["peer"] = devices[senders], devices[server]
        receives["device"], receives["peer"] = devices[server], devices[senders]
        sends["replica"] = receives["replica"] = senders
        sends["task"] = receives["task"] = task + 1 + np.arange(others)
        total = rows[-1:]
        total["kind"] = Kind.SUM
        # On the stream of collectives: it must not hold up the server's own backward.
        total["device"], total["stream"] = devices[server], cluster.num_devices + devices[server]
        total["replica"] = server
        total["task"] = task + 1 + others
        kind = cluster.types[cluster.devices[int(devices[server])].type]
        total["seconds"] = copy_seconds(1.0, kind) / 2 * float(bucket["bytes"]) * (replicas + 1)
    return rows


def server_extras(
    work: Work, buckets: Records, num_buffers: int
) -> tuple[Records, Records, Records]:
    """Buffers, reads and orders of parameter servers: what they receive, sum and broadcast."""
    buffers: list[tuple[int, int, int, bool, float]] = []
    reads: list[tuple[int, int]] = []
    orders: list[tuple[int, int]] = []
    for bucket in buckets[buckets["server"] >= 0]:
        devices = work.placement.replica_device[work.placement.replicas(int(bucket["part"]))]
        others, first = len(devices) - 1, int(bucket["instruction"])
        server = int(bucket["server"])
        total = first + len(devices) + 2 * others
        for k in range(others):
            receive = first + len(devices) + others + k
            reads.append((total, num_buffers + len(buffers)))
            buffers.append((int(devices[server]), receive, -1, False, float(bucket["bytes"])))
        orders.append((total, first + server))
    return np.array(buffers, BUFFER), np.array(reads, PAIR), np.array(orders, PAIR)


def saved_extras(work: Work, instance: Longs, num_buffers: int) -> tuple[Records, Records]:
    """Buffers and reads for what ops save besides their tensors, until their backward ops have run.

    What has no backward op after it on its device lasts until the end of the step: a batch that the
    caller holds, what inference returns and reads on. An update runs once, after all of them.
    """
    graph, placement = work.graph, work.placement
    part = placement.part_of_op
    ops = np.flatnonzero(graph.saved_bytes > 0)
    num_slots = np.diff(placement.replica_start)[part[ops]]
    times = np.where(graph.phase[ops] == Phase.UPDATE, 1, work.microbatches)
    count = num_slots * times  # an instance of an op for each microbatch and replica
    ends = np.cumsum(count)
    place, offset = np.repeat(np.arange(len(ops)), count), count_up(count)
    slot = placement.replica_start[part[ops]][place] + offset % num_slots[place]
    share = placement.replica_to[slot] - placement.replica_from[slot]
    share = np.where(work.split[ops][place] == Split.NONE, 1.0, share)
    of_place = np.full(graph.num_ops, -1)
    of_place[ops] = np.arange(len(ops))
    readers = _saved_readers(graph, part)
    readers = readers[of_place[graph.partner[readers]] >= 0]
    read = of_place[graph.partner[readers]]

    buffers = np.zeros(len(place), BUFFER)
    buffers["device"] = placement.replica_device[slot]
    buffers["writer"] = instance[ops][place] + offset
    buffers["tensor"] = -1
    buffers["bytes"] = graph.saved_bytes[ops][place] * share / times[place]
    buffers["lasts"] = (np.bincount(read, minlength=len(ops)) == 0)[place]
    pairs = np.zeros(int(count[read].sum()), PAIR)
    along = count_up(count[read])
    pairs["first"] = np.repeat(instance[readers], count[read]) + along
    pairs["second"] = num_buffers + np.repeat((ends - count)[read], count[read]) + along
    return buffers, pairs


def _saved_readers(graph: Graph, part: Ints) -> Longs:
    """The backward ops that read what their forward op has saved on the same device, by that op."""
    later = (graph.partner >= 0) & (graph.partner < np.arange(graph.num_ops))
    found = np.flatnonzero(later & (graph.phase == Phase.BACKWARD))
    partner = graph.partner[found]
    found = found[(graph.phase[partner] != Phase.UPDATE) & (part[partner] == part[found])]
    ordered: Longs = found[np.argsort(graph.partner[found], kind="stable")]
    return ordered
