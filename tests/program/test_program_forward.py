"""What losses need of a program is forward and nothing else, with all that it reads."""

import numpy as np
import pytest

from meshwright.graph.graph import Phase
from meshwright.plan.plan import Part, Plan
from meshwright.program.forward import keep_needed
from meshwright.program.program import Kind, freeze_order
from meshwright.simulate.simulate import run_program, simulate
from small import connected, dag, layers, stages

LAYERS, MICROBATCHES = 4, 3


@pytest.mark.parametrize("devices", [[["d0"], ["d1"]], [["d0", "d1"], ["d2", "d3"]]], ids=str)
@pytest.mark.parametrize("kind", ["gpipe", "1f1b"])
def test_a_pipeline_keeps_forward_of_every_microbatch(devices: list[list[str]], kind: str) -> None:
    graph = layers(LAYERS, activation=1.0, weight=1.0, gradient=1.0, batch=12)
    cluster = connected(4)
    timeline = simulate(graph, cluster, stages(graph, devices, kind, MICROBATCHES))
    program, kept = keep_needed(timeline.program, {LAYERS - 1}, {})
    rows, replicas = program.instructions, len(devices[0])
    assert (graph.phase[rows["op"][rows["kind"] == Kind.COMPUTE]] == Phase.FORWARD).all()
    assert (rows["kind"] == Kind.COMPUTE).sum() == LAYERS * MICROBATCHES * replicas
    assert (rows["kind"] == Kind.SEND).sum() == MICROBATCHES * replicas
    assert sorted(rows["task"][rows["kind"] == Kind.SEND]) == sorted(
        rows["task"][rows["kind"] == Kind.RECEIVE]
    )
    frozen = freeze_order(program, timeline.start[kept], timeline.finish[kept])
    again = run_program(frozen, cluster)
    assert (again.finish >= again.start).all()
    assert again.device_seconds < timeline.device_seconds
    whole = timeline.program
    for name in ("device", "op", "microbatch", "rows_from", "rows_to", "seconds"):
        np.testing.assert_array_equal(rows[name], whole.instructions[name][kept])
    writers = program.buffers["writer"][program.reads["second"]]
    assert (rows["device"][writers] == rows["device"][program.reads["first"]]).all()


def test_what_an_op_does_without_is_left_out() -> None:
    """o2 reads o0 and o1, of which it is told to do without o1; o3 is nobody's."""
    graph = dag([1.0] * 4, {(0, 2): 1.0, (1, 2): 1.0, (1, 3): 1.0})
    plan = Plan(parts=(Part(ops=graph.op_names, devices=("d0",)),))
    whole = simulate(graph, connected(1), plan)
    only = {2: {int(graph.outputs[0][0])}}
    for given, expected in (({}, [0, 1, 2]), (only, [0, 2])):
        program, kept = keep_needed(whole.program, {2}, given)
        assert program.instructions["op"].tolist() == expected
        assert kept.sum() == len(expected)
        assert len(program.reads) == len(expected) - 1
