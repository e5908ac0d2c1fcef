"""Lowers a Plan: from what runs where to every device's instructions.

Without a schedule ops run as soon as they can, each device picking by the plan's discipline. With
one, a stage's ops run in a fixed order as one action a microbatch: an action starts when all it
receives has arrived and sends when all of it is done, which is what makes granularity `op` and
`part` (one instruction an action) agree.

Teams, ZeRO and recomputation are ops of the graph's expansion by `op`. By `layer` what teams say is
within the seconds of a layer, where a rule says what hides behind what, and what ZeRO moves goes
beside runs of layers. So the two differ by a few per cent, which `benchmarks/granularity.py`
measures.
"""

from dataclasses import replace

import numpy as np

from meshwright.argument import need_one_of
from meshwright.array import Floats, Longs, Records, marked
from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import copy_seconds
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.errors import InputError
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Discipline, Plan, Sync
from meshwright.program.bucket import duplicating_parts
from meshwright.program.collective import Groups, num_lanes, order_gathers, show_collectives
from meshwright.program.emit import emit_computes, emit_tensors
from meshwright.program.expand.expansion import HOLDING, Axis
from meshwright.program.program import BUFFER, INSTRUCTION, PAIR, Program, StreamRule
from meshwright.program.record import (
    BUFFERS,
    HELD,
    INSTRUCTIONS,
    OP,
    ORDERS,
    PART,
    READS,
    SLOT,
    TASKS,
    TENSOR,
    Given,
    Made,
)  # fmt: skip
from meshwright.program.rows import bucket_rows, order_ops, saved_extras, server_extras
from meshwright.program.schedule import Action
from meshwright.program.team.lower import lower_teams
from meshwright.program.unit import merge_units
from meshwright.program.work import Work, prepare_work, sum_by_device

GRANULARITIES = ("op", "part", "layer")


MAX_OP_INSTANCES = 2_000_000
"""Op by op, a plan of more takes seconds to simulate and is too much to look at."""


def choose_granularity(plan: Plan) -> str:
    """By op, unless the plan has a schedule and too many instances of ops for that; by layer where
    others run it, whose ops are not known."""
    if plan.runtime != MESHWRIGHT.name:
        return "layer"
    is_few = count_instances(plan) <= MAX_OP_INSTANCES
    return "op" if is_few or (plan.schedule is None and plan.is_plain) else "part"


def count_instances(plan: Plan) -> int:
    """How often the graph's ops run in a step, on all devices."""
    replicas = sum(len(part.ops) * len(part.devices) for part in plan.parts)
    return replicas * (plan.schedule.microbatches if plan.schedule else 1)


def lower(graph: Graph, cluster: Cluster, plan: Plan, granularity: str = "op") -> Program:
    """The program of a plan that is legal for a graph and cluster.

    Granularity `op` has an instruction an op, `part` one an action of a stage; `part` needs a
    schedule. `layer` is `part` by what whole layers cost: much quicker for thousands of devices;
    with teams, ZeRO or recomputation `part` means it, too. A plan without a schedule has one
    microbatch then.
    """
    need_one_of(granularity, GRANULARITIES, "granularity")
    if granularity == "layer" or (granularity == "part" and not plan.is_plain):
        return lower_teams(graph, cluster, plan)
    if granularity == "part" and plan.schedule is None:
        raise InputError("granularity part: the plan must have a schedule; use granularity op")
    if granularity == "part":  # words are too small to count among merged ops
        plan = replace(plan, batch_statistics=False)
    work = prepare_work(graph, cluster, plan)
    return emit_program(merge_units(work) if granularity == "part" else work, cluster)


def emit_program(work: Work, cluster: Cluster) -> Program:
    """Every instruction of prepared work."""
    ops, instance = _number_ops(work)
    num_computes = int(instance[-1])
    rank, turn, place = order_ops(work, cluster.num_devices)
    placement = work.placement
    parts = range(placement.num_parts)
    devices = [placement.replica_device[placement.replicas(part)].tolist() for part in parts]
    groups = Groups(tuple(map(tuple, devices)))
    buckets, own, num_tasks = bucket_rows(work, cluster, groups, turn, place, num_computes)
    rates = [copy_seconds(1.0, cluster.types[name]) / 2 for name in cluster.type_names]
    ops["rank"], ops["turn"] = rank, turn
    given = Given(
        ops=ops,
        tensors=_number_tensors(work),
        readers=work.graph.readers.index,
        slots=_number_slots(work),
        parts=_number_parts(work),
        buckets=buckets,
        copy_seconds=np.array(rates)[cluster.type_of],
        host=cluster.host_of.astype(np.int32),
        seconds=work.seconds,
        place=place,
        is_scheduled=work.plan.schedule is not None,
        num_computes=num_computes,
    )
    sizes = np.zeros(8, np.int64)
    for writes in (False, True):
        made = Made(
            instructions=np.zeros(sizes[INSTRUCTIONS], INSTRUCTION),
            buffers=np.zeros(sizes[BUFFERS], BUFFER),
            reads=np.zeros(sizes[READS], PAIR),
            orders=np.zeros(sizes[ORDERS], PAIR),
            held=np.zeros(cluster.num_devices, HELD),
            counts=np.zeros(6, np.int64),
            writes=writes,
        )
        made.counts[INSTRUCTIONS] = num_computes + len(own)
        made.counts[TASKS] = num_tasks
        if writes:
            emit_computes(given, made)
            computes = made.instructions[:num_computes]
            is_whole = work.graph.mixes[computes["op"]]  # these have all rows on every replica
            computes["rows_from"][is_whole], computes["rows_to"][is_whole] = 0.0, 1.0
            show_collectives(
                work, groups, made.instructions, instance, turn, place, cluster.num_devices
            )
            made.instructions[num_computes : num_computes + len(own)] = own
        emit_tensors(given, made)
        sizes = made.counts
    gathers = order_gathers(work, instance, turn, place)
    return _assemble(work, cluster, made, buckets, instance, groups, gathers)


def _number_ops(work: Work) -> tuple[Records, Longs]:
    """The ops, and each one's first instruction (one entry more: how many there are)."""
    placement = work.placement
    ops = np.zeros(work.graph.num_ops, OP)
    ops["part"] = placement.part_of_op
    ops["split"] = work.split
    ops["action"] = work.action
    ops["microbatches"] = np.where(work.action == Action.UPDATE, 1, work.microbatches)
    replicas = np.diff(placement.replica_start)[placement.part_of_op]
    instances = ops["microbatches"].astype(np.int64) * replicas
    if instances.sum() > 2**27:
        raise InputError(
            f"plan: has {instances.sum()} op instances, at most {2**27} can be lowered; "
            f"use granularity part"
        )
    instance = np.concatenate(([0], np.cumsum(instances)))
    ops["instance"] = instance[:-1]
    ops["workspace_bytes"] = work.workspace_bytes
    ops["whole_workspace_bytes"] = work.whole_workspace_bytes
    ops["seconds"] = work.seconds_start[:-1]
    return ops, instance


def _number_tensors(work: Work) -> Records:
    graph = work.graph
    tensors = np.zeros(graph.num_tensors + 1, TENSOR)
    tensors["source"][:-1] = graph.tensor_source
    tensors["first_use"] = graph.readers.start
    tensors["bucket"][:-1] = work.buckets.of_tensor
    tensors["is_partial"][:-1] = work.tensor_partial
    is_batch = graph.split[graph.tensor_source] == Split.BATCH
    tensors["has_rows"][:-1] = is_batch & ~graph.tensor_partial
    is_backward = graph.phase[graph.tensor_source] == Phase.BACKWARD
    tensors["adds_up"][:-1] = is_backward & graph.tensor_partial
    tensors["bytes"][:-1] = graph.scaled("tensor_bytes", graph.batch / work.microbatches)
    tensors["fixed_bytes"][:-1] = graph.fixed_tensor_bytes
    tensors["beside"][:-1] = work.tensor_beside
    return tensors


def _number_slots(work: Work) -> Records:
    slots = np.zeros(len(work.placement.replica_device), SLOT)
    slots["device"] = work.placement.replica_device
    slots["rows_from"] = work.placement.replica_from
    slots["rows_to"] = work.placement.replica_to
    replicas = np.diff(work.placement.replica_start)
    whole = np.repeat(duplicating_parts(work.placement, work.plan), replicas)
    slots["rows_from"][whole], slots["rows_to"][whole] = 0.0, 1.0
    return slots


def _number_parts(work: Work) -> Records:
    """The parts, with a schedule also the first and last op of each of their actions."""
    placement = work.placement
    parts = np.zeros(placement.num_parts + 1, PART)
    parts["slot"] = placement.replica_start
    parts["width"][:-1] = placement.part_width
    parts["first_unit"] = parts["last_unit"] = -1
    if work.plan.schedule is None:
        return parts
    order = np.lexsort((np.arange(len(work.segment)), work.segment))
    # Weights may be gathered before an action has what it receives, and nothing that it sends waits
    # for gradients to be scattered; they count only in actions that have nothing else.
    beside = np.isin(work.expansion.axis[order], HOLDING)
    order = np.concatenate((order[beside], order[~beside]))
    where = (placement.part_of_op[order], work.action[order])
    parts["last_unit"][where] = order
    reverse = np.concatenate((order[: beside.sum()][::-1], order[beside.sum() :][::-1]))
    parts["first_unit"][placement.part_of_op[reverse], work.action[reverse]] = reverse
    if _exchanges_updates(work):
        parts["first_unit"][:, Action.UPDATE] = parts["last_unit"][:, Action.UPDATE] = -1
    return parts


def _exchanges_updates(work: Work) -> bool:
    """Whether teams gather gradients after backward for copies of weights in other parts. Then the
    sums come back to them, so that they cannot wait for all of an action."""
    if work.graph is not work.expansion.graph:
        return False  # units of plain plans
    source, reader = work.graph.edges
    part_of = work.placement.part_of_op
    gathers = (work.expansion.axis == Axis.TENSOR) & (work.action == Action.UPDATE)
    return bool((gathers[source] & (part_of[source] != part_of[reader])).any())


def _assemble(
    work: Work,
    cluster: Cluster,
    made: Made,
    buckets: Records,
    instance: Longs,
    groups: Groups,
    gathers: Records,
) -> Program:
    buffers, reads, orders = made.buffers, made.reads, made.orders
    if len(gathers):
        orders = np.concatenate((orders, gathers))
    if (buckets["server"] >= 0).any():
        more = server_extras(work, buckets, len(buffers))
        buffers, reads, orders = (
            np.concatenate(each) for each in zip((buffers, reads, orders), more, strict=True)
        )
    if work.graph.is_inference:
        tensor = buffers["tensor"]
        buffers["lasts"] = (tensor >= 0) & work.graph.is_returned[tensor]
    if work.graph.saved_bytes.any():
        extra_buffers, extra_reads = saved_extras(work, instance, len(buffers))
        buffers = np.concatenate((buffers, extra_buffers))
        reads = np.concatenate((reads, extra_reads))
    plan = work.plan
    rules = np.full(num_lanes(work) * cluster.num_devices, StreamRule.ORDER, dtype=np.int8)
    if plan.schedule is None:
        rules[: cluster.num_devices] = StreamRule[Discipline(plan.discipline).name]
    algorithms = {Sync.RING: "ring", Sync.TREE: "tree"}
    asked = [algorithms.get(part.sync, "") for part in plan.parts]
    return Program(
        graph=work.graph,
        part_of_op=work.placement.part_of_op,
        is_again=work.is_again,
        device_names=tuple(device.name for device in cluster.devices),
        instructions=made.instructions,
        buffers=buffers,
        reads=reads,
        orders=orders,
        stream_rule=rules,
        groups=tuple(groups.devices),
        group_algorithm=(*asked, *[""] * (len(groups.devices) - len(asked))),
        state_bytes=_state_bytes(work, cluster),
        host_seconds=work.host_seconds,
        allocations=plan.allocations,
        microbatches=work.microbatches,
    )


def _state_bytes(work: Work, cluster: Cluster) -> Floats:
    """Weights and optimiser state on each device: a part's whole state on each of its replicas.

    Of a captured graph, whose sizes are those of a real step, what libraries keep counts, too.
    """
    held = sum_by_device(work.graph.state_bytes, work.placement, cluster.num_devices)
    if not work.graph.calls.any():
        return held
    types = [cluster.types[name].library_bytes for name in cluster.type_names]
    used = marked(cluster.num_devices, work.placement.replica_device)
    return held + np.where(used, np.array(types)[cluster.type_of], 0.0)
