"""The order that the executor runs: that of the simulation, also where it is a tie."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright.graph.build import GraphBuilder
from meshwright.plan.plan import Discipline, place_ops
from meshwright.program.lower import lower
from meshwright.program.program import Kind, StreamRule, freeze_order
from meshwright.simulate.simulate import run_program
from small import connected


@given(
    seconds=st.lists(st.sampled_from([0.0, 1.0]), min_size=2, max_size=8),
    priorities=st.lists(st.floats(-5, 5), min_size=8, max_size=8),
    devices=st.lists(st.integers(0, 1), min_size=8, max_size=8),
    discipline=st.sampled_from(list(Discipline)[:2]),
)
def test_no_op_comes_before_what_it_reads(
    seconds: list[float], priorities: list[float], devices: list[int], discipline: Discipline
) -> None:
    builder = GraphBuilder("chain", batch=1)
    ops = [builder.add_op(f"op{k}", seconds={"any": each}) for k, each in enumerate(seconds)]
    for first, second in itertools.pairwise(ops):
        builder.add_tensor(first, 0.0, [second])
    graph, cluster = builder.finish(), connected(2)
    count = len(ops)
    plan = place_ops(graph.op_names, devices[:count], ["d0", "d1"], priorities[:count], discipline)
    program = lower(graph, cluster, plan)
    simulated = run_program(program, cluster)
    frozen = freeze_order(program, simulated.start, simulated.finish)
    rows = frozen.instructions
    assert (frozen.stream_rule == StreamRule.ORDER).all()
    for device in range(2):
        here = np.flatnonzero((rows["kind"] == Kind.COMPUTE) & (rows["device"] == device))
        order = here[np.argsort(-rows["priority"][here])]
        assert rows["op"][order].tolist() == sorted(rows["op"][order].tolist())
    assert run_program(frozen, cluster).step_seconds == run_program(program, cluster).step_seconds


def test_an_op_of_no_time_is_not_frozen_behind_one_that_starts_with_it() -> None:
    # d0 runs `quick` (urgent, no time) and then `long`, both at 0; d1 reads `quick`: 1 s of its
    # own beside 5 s of `long`. Behind `long` it would begin at 5 and end at 6.
    builder = GraphBuilder("tie", batch=1)
    builder.add_op("long", seconds={"any": 5.0})
    quick = builder.add_op("quick", seconds={"any": 0.0})
    reader = builder.add_op("reader", seconds={"any": 1.0})
    builder.add_tensor(quick, 0.0, [reader])
    graph, cluster = builder.finish(), connected(2)
    plan = place_ops(graph.op_names, [0, 0, 1], ["d0", "d1"], [0.0, 1.0, 0.0])
    program = lower(graph, cluster, plan)
    first = run_program(program, cluster)
    again = run_program(freeze_order(program, first.start, first.finish), cluster)
    assert first.step_seconds == again.step_seconds == 5.0
