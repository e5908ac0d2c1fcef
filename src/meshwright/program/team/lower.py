"""Lowers a plan with teams, ZeRO or recomputation: from what its stages cost to a Program.

A stage's forward, backward (and weight gradient) for a microbatch is one unit on the first device
of each team; the other members run as it does. What teams say to each other meanwhile is within
the unit's time, transfers between stages and what replicas do together are tasks of their own;
where ZeRO moves something in every microbatch, a unit is a run of layers.
"""

from collections.abc import Sequence

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster
from meshwright.cost.group_price import group_prices
from meshwright.cost.runtime import MESHWRIGHT, RUNTIMES, Runtime
from meshwright.errors import InputError
from meshwright.graph.fuse import is_replayed_alone
from meshwright.graph.graph import Graph
from meshwright.graph.stack.crossing import StageLink
from meshwright.graph.stack.find import find_layers
from meshwright.plan.check import resolve
from meshwright.plan.plan import Plan, ScheduleKind
from meshwright.program.program import Program, StreamRule
from meshwright.program.team.boundary import Boundary, find_boundaries
from meshwright.program.team.emit import (
    Emitted,
    UnitWork,
    collect_blocks,
    emit_saved,
    emit_transfers,
    emit_units,
)
from meshwright.program.team.stage import (
    TeamStage,
    check_teams,
    schedule_of,
    stage_links,
    team_stages,
)
from meshwright.program.team.synchronise import (
    Groups,
    Tie,
    emit_collectives,
    emit_shards,
    find_tie,
    order_tie,
    tie_rows,
)
from meshwright.program.team.unit import (
    UnitLink,
    action_seconds,
    find_before,
    place_units,
    stage_units,
    unit_graph,
)

MAX_INSTRUCTIONS = 2**26
"""About 8 GB of them."""
_BLOCKING = (ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B)
"""Schedules whose transfers stages wait for where a runtime has them do so."""


def lower_teams(graph: Graph, cluster: Cluster, plan: Plan) -> Program:
    """The program of a plan whose parts have teams, ZeRO or recomputation."""
    placement = resolve(graph, cluster, plan)
    stack = find_layers(graph)
    stages = team_stages(stack, group_prices(cluster), plan, placement)
    links = stage_links(stack, placement)
    return lower_stages(graph, cluster, plan, stages, stack.tied_bytes, links)


def lower_stages(
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    stages: Sequence[TeamStage],
    tied_bytes: float = 0.0,
    links: Sequence[StageLink] | None = None,
) -> Program:
    """The same, from stages whose costs are known; of the plan only its schedule, runtime and
    allocations are read. `tied_bytes`: weights that the first and the last stage share. `links`:
    what passes between stages; None: each speaks to the next only."""
    check_teams(cluster, stages)
    tie = find_tie(stages[0], stages[-1], tied_bytes)
    work = _prepare(graph, cluster, plan, stages, links, tie.num_sends if tie else 0)
    made = Emitted()
    calls = emit_units(work, made)
    emit_saved(work, made)
    groups = _emit_communication(work, made, tie, RUNTIMES[plan.runtime])
    rows, buffers, reads, orders = collect_blocks(made)
    call_seconds = np.zeros(len(rows))
    call_seconds[: len(calls)] = calls
    return Program(
        graph=work.graph.graph,
        part_of_op=work.graph.stage_of_op,
        is_again=np.zeros(work.graph.graph.num_ops, dtype=np.bool_),
        device_names=tuple(device.name for device in cluster.devices),
        instructions=rows,
        buffers=buffers,
        reads=reads,
        orders=orders,
        stream_rule=np.full(2 * cluster.num_devices, StreamRule.ORDER, dtype=np.int8),
        groups=tuple(each[0] for each in groups),
        group_algorithm=("",) * len(groups),
        beside=tuple(each[1:] for each in groups),
        state_bytes=_state_bytes(cluster, stages),
        host_seconds=np.zeros(cluster.num_devices)
        if plan.runtime == MESHWRIGHT.name and _is_one_device(stages) and is_replayed_alone(graph)
        else _host_seconds(cluster, stages, work.microbatches),
        allocations=plan.allocations,
        microbatches=work.microbatches,
        teams=tuple(
            {each: None for stage in stages for each in map(tuple, stage.devices.tolist())}
        ),
        call_seconds=call_seconds,
        team_calls=frozenset(call for stage in stages for call in stage.cost.calls),
    )


def _emit_communication(
    work: UnitWork, made: Emitted, tie: Tie | None, runtime: Runtime
) -> list[Groups]:
    """Transfers and collectives; the groups that each number of `group` stands for."""
    sends, receives = emit_transfers(work, made)
    number = work.num_units + sum(map(len, sends))
    if tie is not None:
        send, receive = tie_rows(work, tie, number)
        sends.append(send)
        receives.append(receive)
    made.rows += sends + receives
    groups: dict[Groups, int] = {}
    whole = emit_collectives(work, made, groups)
    emit_shards(work, made, groups, runtime.gathered_ahead)
    if tie is not None:
        order_tie(work, made, tie, number, whole, adds_in_one=runtime.adds_tied_in_one)
    return list(groups)


def _prepare(
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    stages: Sequence[TeamStage],
    links: Sequence[StageLink] | None,
    num_more_sends: int,
) -> UnitWork:
    schedule = schedule_of(plan)
    runtime = RUNTIMES[plan.runtime]
    units = stage_units(stages, schedule, runtime)
    has_weights = schedule.kind is ScheduleKind.ZERO_BUBBLE
    # Of several stages a device, each would wait for the others: such schedules send meanwhile.
    is_alone = len({tuple(each.devices.ravel().tolist()) for each in stages}) == len(stages)
    is_blocking = is_alone and len(stages) > 1 and schedule.kind in _BLOCKING
    blocks = runtime.blocks_on_transfers and is_blocking
    times = [action_seconds(stage, has_weights, blocks) for stage in stages]
    seconds, call_seconds = [each for each, _ in times], [each for _, each in times]
    samples = graph.batch / schedule.microbatches
    boundaries = find_boundaries(stages, links, samples, is_inference=graph.is_inference)
    lengths = [
        each.num_units * stage.num_replicas for each, stage in zip(units, stages, strict=True)
    ]
    sent = sum(len(each.actions) * len(each.sent) for each in boundaries)
    num_sends = schedule.microbatches * sent
    num_sends += num_more_sends
    if sum(lengths) + 2 * num_sends > MAX_INSTRUCTIONS:
        raise InputError(
            f"plan: has {sum(lengths) + 2 * num_sends:,} instructions, at most "
            f"{MAX_INSTRUCTIONS:,} can be lowered"
        )
    place = place_units(stages, units, schedule, seconds)
    return UnitWork(
        stages=stages,
        units=units,
        boundaries=boundaries,
        graph=unit_graph(graph.name, graph.batch, stages, units, _unit_links(stages, boundaries)),
        seconds=seconds,
        call_seconds=call_seconds,
        place=place,
        before=find_before(stages, units, place),
        blocks=blocks,
        unit_start=np.concatenate(([0], np.cumsum(lengths))),
        num_sends=num_sends,
        num_devices=cluster.num_devices,
        microbatches=schedule.microbatches,
        is_inference=graph.is_inference,
    )


def _unit_links(stages: Sequence[TeamStage], boundaries: Sequence[Boundary]) -> list[UnitLink]:
    """As people see them: of neighbours all that a stage gives, wherever it goes."""
    return [
        UnitLink(
            each.origin,
            each.goal,
            float(each.forward_bytes.sum())
            if each.is_kept
            else float(stages[each.origin].of_replicas("output_bytes").sum()),
            float(each.backward_bytes.sum())
            if each.is_kept
            else float(stages[each.origin].of_replicas("output_bytes").sum()),
        )
        for each in boundaries
    ]


def _state_bytes(cluster: Cluster, stages: Sequence[TeamStage]) -> Floats:
    """Held for the whole step by every member: all but activations and what one action holds.

    What libraries keep counts once on a device of several stages.
    """
    held, library = np.zeros(cluster.num_devices), np.zeros(cluster.num_devices)
    for stage in stages:
        memory = [cost.memory for cost in stage.costs]
        own = [each.fixed_bytes - each.workspace_bytes - each.library_bytes for each in memory]
        kept = np.array([each.library_bytes for each in memory])[:, None]
        held[stage.devices] += np.array(own)[:, None]
        library[stage.devices] = np.maximum(library[stage.devices], kept)
    return held + library


def _is_one_device(stages: Sequence[TeamStage]) -> bool:
    return len({device for stage in stages for device in stage.devices.ravel().tolist()}) == 1


def _host_seconds(cluster: Cluster, stages: Sequence[TeamStage], microbatches: int) -> Floats:
    """Launches of every microbatch, and of updates once, on devices that run behind their hosts."""
    total = np.zeros(cluster.num_devices)
    for stage in stages:
        launches = stage.of_replicas("host_seconds") * microbatches
        total[stage.devices] += (launches + stage.of_replicas("update_host_seconds"))[:, None]
    launched = [cluster.types[name].is_asynchronous for name in cluster.type_names]
    return np.where(np.array(launched)[cluster.type_of], total, 0.0)
