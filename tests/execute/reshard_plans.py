"""Plans of which each goes on from every other's checkpoint."""

from ranks import RANKS
from small_plans import UNEQUAL, data_plan, device_names, hybrid, pipeline_plan

from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan, Recompute, ScheduleKind


def stages(graph: Graph, zero: int) -> Plan:
    kind = ScheduleKind.ONE_F_ONE_B
    return hybrid(pipeline_plan(graph, RANKS, 2, kind, 4), zero, Recompute.FULL)


def team(graph: Graph, tensor: int, zero: int = 0, *, sequence: bool = False) -> Plan:
    """Tensor teams of as many ranks, each a replica."""
    shares = (0.75, 0.25) if RANKS // tensor == 2 else ()
    part = Part(
        ops=graph.op_names,
        devices=device_names(RANKS),
        shares=shares,
        tensor=tensor,
        sequence=sequence,
        zero=zero,
    )
    return Plan(parts=(part,))


PLANS = {
    "alone": lambda graph: data_plan(graph, 1),
    "data": lambda graph: data_plan(graph, RANKS),
    "zero 1": lambda graph: hybrid(data_plan(graph, RANKS, UNEQUAL), 1, Recompute.NONE),
    "zero 2 on 3": lambda graph: hybrid(data_plan(graph, 3), 2, Recompute.NONE),
    "zero 3": lambda graph: hybrid(data_plan(graph, RANKS), 3, Recompute.FULL),
    "stages": lambda graph: stages(graph, 0),
    "stages, zero 3": lambda graph: stages(graph, 3),
}
TEAMS = {
    "teams of 2": lambda graph: team(graph, 2),
    "teams of 2, zero 1": lambda graph: team(graph, 2, 1, sequence=True),
    "teams of 2, zero 3": lambda graph: team(graph, 2, 3),
    "team of 4": lambda graph: team(graph, 4),
    "sequence": lambda graph: team(graph, 2, sequence=True),
}
EVERY = PLANS | TEAMS
