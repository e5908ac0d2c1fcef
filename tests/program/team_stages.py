"""Stages on teams whose costs are given, so that steps can be worked out by hand."""

from collections.abc import Sequence

import numpy as np

from meshwright.cost.holder import Synchronisation
from meshwright.cost.stage import StageCost, StageMemory
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan, Recompute, Schedule, ScheduleKind
from meshwright.program.team.stage import Postponed, TeamStage
from small import layers

GRAPH: Graph = layers(1)
"""Any: of it only the name and the batch are read."""


def cost(
    forward: float = 1.0,
    backward: float = 2.0,
    weight: float = 0.0,
    output: float = 0.0,
    update: float = 0.0,
    saved: float = 0.0,
    workspace: float = 0.0,
    state: float = 0.0,
    calls: tuple[float, float] = (0.0, 0.0),
    host: float = 0.0,
    scattered: bool = False,
    synchronisations: tuple[Synchronisation, ...] = (),
    gathers: tuple[Synchronisation, ...] = (),
) -> StageCost:
    memory = StageMemory(
        parameter_bytes=state,
        gradient_bytes=0.0,
        optimiser_bytes=0.0,
        saved_bytes=saved,
        workspace_bytes=workspace,
        buffer_bytes=0.0,
        transfer_bytes=0.0,
        library_bytes=0.0,
    )
    return StageCost(
        forward_seconds=forward,
        backward_seconds=backward,
        weight_seconds=weight,
        forward_call_seconds=calls[0],
        backward_call_seconds=calls[1],
        host_seconds=host,
        output_bytes=output,
        is_scattered=scattered,
        synchronisations=synchronisations,
        gathers=gathers,
        update_seconds=update,
        update_host_seconds=0.0,
        memory=memory,
        calls=frozenset(),
        flops=0.0,
    )


def together(
    collective: str, groups: Sequence[Sequence[int]], message_bytes: float
) -> Synchronisation:
    return Synchronisation(
        collective=collective,
        groups=tuple(map(tuple, groups)),
        message_bytes=message_bytes,
        seconds=0.0,
    )


def stage(
    teams: Sequence[Sequence[int]],
    costs: StageCost | Sequence[StageCost],
    shares: Sequence[float] = (),
    context: int = 1,
    side: float = 0.0,
    deferred: tuple[float, float] = (0.0, 0.0),
) -> TeamStage:
    each = (costs,) * len(teams) if isinstance(costs, StageCost) else tuple(costs)
    bounds = np.cumsum([0.0, *(shares or [1 / len(teams)] * len(teams))])
    return TeamStage(
        devices=np.array(teams, dtype=np.int32),
        context=context,
        rows_from=bounds[:-1],
        rows_to=bounds[1:],
        costs=each,
        side_bytes=np.full(len(teams), side),
        deferred=Postponed(*deferred),
    )


def schedule(kind: str = "1f1b", microbatches: int = 1) -> Plan:
    """A plan of which only the schedule is read."""
    part = Part(ops=GRAPH.op_names, devices=("d0",), recompute=Recompute.FULL)
    return Plan(
        parts=(part,), schedule=Schedule(kind=ScheduleKind(kind), microbatches=microbatches)
    )
