"""Tied weights in different parts become copies: the graph that capture makes of untied ones."""

from typing import Any

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.build import GraphBuilder
from meshwright.graph.column import OP_CODES, OP_SIZES
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.graph.stack.find import find_layers
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind
from meshwright.program.untie import untie
from meshwright.simulate.simulate import simulate
from small import connected

SHAPE: dict[str, Any] = {"hidden": 64, "heads": 4, "layers": 2, "sequence": 32, "vocabulary": 128}
COPY = {
    "add_18": "transformer/add_18",
    "lm_head/_fused_adamw__28": "transformer.wte/_fused_adamw_.copy",
}
"""Names of ops of the untied graph that differ."""


def two_stages(graph: Graph, **more: Any) -> Plan:
    layer = find_layers(graph).layer_of_op
    parts = tuple(
        Part(
            ops=tuple(np.array(graph.op_names)[(layer < 2) == (stage == 0)].tolist()),
            devices=(f"d{2 * stage}", f"d{2 * stage + 1}"),
            **more,
        )
        for stage in range(2)
    )
    return Plan(parts=parts, schedule=Schedule(kind=ScheduleKind.GPIPE, microbatches=2))


def test_the_step_is_that_of_untied_weights() -> None:
    tied, wanted = (gpt(**SHAPE, batch=4, untie=each) for each in (False, True))
    found, plan, placement = untie(tied, connected(4), two_stages(tied, tensor=2))
    assert found.op_names == tuple(COPY.get(name, name) for name in wanted.op_names)
    assert found.kind == wanted.kind
    assert found.module == wanted.module
    for name in {*OP_CODES, *OP_SIZES} - {"group"}:
        assert np.array_equal(getattr(found, name), getattr(wanted, name)), name
    for name in ("tensor_source", "tensor_bytes", "tensor_partial", "use_tensor", "use_op"):
        assert np.array_equal(getattr(found, name), getattr(wanted, name)), name
    assert placement.num_parts == 2
    assert sorted(name for part in plan.parts for name in part.ops) == sorted(found.op_names)
    groups = [set(found.group[placement.part_of_op == part].tolist()) - {-1} for part in range(2)]
    assert not groups[0] & groups[1]


def test_plans_that_untie_alike_have_one_graph() -> None:
    tied = gpt(**SHAPE, batch=4)
    ways: list[dict[str, Any]] = [{"tensor": 2}, {"zero": 1}]
    graphs = [untie(tied, connected(4), two_stages(tied, **each))[0] for each in ways]
    assert graphs[0] is graphs[1]
    again = gpt(**SHAPE, batch=4)
    assert untie(again, connected(4), two_stages(again, tensor=2))[0] is not graphs[0]


@pytest.mark.parametrize("more", [{"tensor": 2}, {"zero": 1}, {"zero": 3}])
def test_stages_of_both_cost_the_same(more: dict[str, Any]) -> None:
    graphs = [gpt(**SHAPE, batch=4, untie=each) for each in (False, True)]
    steps = [simulate(each, connected(4), two_stages(each, **more)) for each in graphs]
    assert steps[0].step_seconds == pytest.approx(steps[1].step_seconds)
    assert steps[0].peak_bytes == pytest.approx(steps[1].peak_bytes)


def test_what_stays_together_stays_as_it_is() -> None:
    graph = gpt(**SHAPE, batch=4)
    plan = Plan(parts=(Part(ops=graph.op_names, devices=("d0", "d1"), tensor=2),))
    assert untie(graph, connected(2), plan)[:2] == (graph, plan)


def test_weights_that_three_ops_share_are_refused() -> None:
    builder = GraphBuilder("three", batch=2)
    ops = [builder.add_op(f"f{k}", group=0, parameter_bytes=8.0 * (k == 0)) for k in range(3)]
    update = builder.add_op("u", phase=Phase.UPDATE, split=Split.NONE, group=0)
    for before, after in ((0, 1), (1, 2)):
        builder.add_tensor(ops[before], 4.0, [ops[after]])
    builder.add_tensor(ops[2], 8.0, [update], partial=True)
    parts = (
        Part(ops=("f0", "f1", "u"), devices=("d0", "d1"), zero=1),
        Part(ops=("f2",), devices=("d2", "d3")),
    )
    with pytest.raises(InputError, match="one weight in the graph; capture the model with `untie`"):
        untie(builder.finish(), connected(4), Plan(parts=parts))


def test_a_sum_that_nothing_reads_is_refused() -> None:
    builder = GraphBuilder("unread", batch=2)
    forward = [builder.add_op(f"f{k}", group=0, parameter_bytes=8.0 * (k == 0)) for k in range(2)]
    builder.add_tensor(forward[0], 4.0, [forward[1]])
    backward = [builder.add_op(f"b{k}", phase=Phase.BACKWARD, partner=forward[k]) for k in range(2)]
    total = builder.add_op("sum", phase=Phase.BACKWARD, group=0)
    for op in backward:
        builder.add_tensor(op, 8.0, [total], partial=True)
    parts = (
        Part(ops=("f0", "b0", "sum"), devices=("d0", "d1"), zero=1),
        Part(ops=("f1", "b1"), devices=("d2", "d3")),
    )
    with pytest.raises(InputError, match="one weight in the graph; capture the model with `untie`"):
        untie(builder.finish(), connected(4), Plan(parts=parts))
