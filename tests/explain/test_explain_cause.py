"""What each instruction's time counts as, held against the rules one instruction at a time."""

import pytest

import meshwright as mw
from meshwright.explain.cause import Cause, cause_codes, find_causes
from meshwright.graph.graph import Phase
from meshwright.plan.plan import Plan
from meshwright.program.collective import Lane, find_lanes
from meshwright.program.lower import lower
from meshwright.program.program import JOINS, Kind, Program

SHAPE = "gpt:hidden=64,heads=4,layers=4,sequence=32,batch=16"


def read_causes(program: Program, plan: Plan) -> list[Cause | None]:
    """The rules as `Cause` words them; None: a collective inside a team, of whatever axis."""
    found: list[Cause | None] = []
    for row, lane in zip(program.instructions, find_lanes(program).tolist(), strict=True):
        kind, op = Kind(int(row["kind"])), int(row["op"])
        zero = plan.parts[int(program.part_of_op[op])].zero if op >= 0 else 0
        if kind is Kind.COMPUTE:
            phase = Phase(int(program.graph.phase[op])).name
            again = bool(program.is_again[op])
            name = "optimiser update" if phase == "UPDATE" else phase.lower()
            found.append(Cause.RECOMPUTATION if again else Cause(name))
        elif kind in JOINS:
            found.append(Cause.JOIN)
        elif row["group"] < 0:
            found.append(Cause.TRANSFER if row["tensor"] >= 0 else Cause.GRADIENTS)
        elif lane == Lane.TEAM:
            found.append(None)
        elif kind is Kind.ALL_GATHER:
            found.append(Cause.GATHERS)
        elif kind is Kind.REDUCE_SCATTER and (row["stream"] < 0 or zero >= 2):
            found.append(Cause.SCATTERS)
        else:
            found.append(Cause.GRADIENTS)
    return found


@pytest.mark.parametrize(
    "degrees",
    [
        {"data": 8},
        {"data": 8, "zero": 1},
        {"data": 8, "zero": 3},
        {"tensor": 2, "pipeline": 2, "data": 2, "microbatches": 4, "recompute": "full"},
        {"tensor": 2, "context": 2, "data": 2, "zero": 2},
    ],
)
@pytest.mark.parametrize("granularity", ["op", "layer"])
def test_causes_are_those_of_the_rules(degrees: dict[str, int | str], granularity: str) -> None:
    graph, cluster = mw.load_graph(SHAPE), mw.cluster("a100-80-x8")
    plan = Plan.from_degrees(graph, cluster, **degrees).in_ops(graph)
    program = lower(graph, cluster, plan, granularity)
    found, expected = find_causes(program, plan), read_causes(program, plan)
    within = {Cause.TENSOR, Cause.CONTEXT, Cause.EXPERT}
    for one, other in zip(found, expected, strict=True):
        assert one in within if other is None else one is other
    assert [list(Cause)[code] for code in cause_codes(program, plan).tolist()] == found
    if granularity == "op" and degrees.get("tensor") == 2:
        assert Cause.TENSOR in found
