"""Attention whose keys travel around a context team, op by op and in time."""

from itertools import product
from typing import Any

import numpy as np
import pytest
from test_context import (
    BATCH,
    HIDDEN,
    SEQUENCE,
    calls_of,
    expanded,
    model,
    plan_of,
    priced_calls,
)

from meshwright.cluster.catalogue import load_cluster
from meshwright.cost.layer.team import Team
from meshwright.graph.architecture.llama import llama
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.plan import Keys, Part, Plan, Recompute
from meshwright.program.expand.expansion import Axis
from meshwright.program.lower import lower
from meshwright.program.program import Kind
from meshwright.simulate.simulate import run_program, simulate

STREAM = 4.0 * BATCH * SEQUENCE * HIDDEN
"""Bytes of queries, of keys and of values of all tokens, in fp32."""


def test_blocks_follow_each_other_and_keys_go_ahead() -> None:
    """By hand, for GPT on four members: a block of keys and values is half of a stream."""
    graph = model("gpt")
    expansion = expanded(graph, plan_of(graph, (4, 1, False), keys=Keys.RING))
    made = expansion.graph
    ops = [op for op in range(made.num_ops) if "h.1.attn/attention_1" in made.op_names[op]]
    names = [made.op_names[op].partition("attention_1")[2] for op in ops]
    assert names == [
        ".pack", ".shift.1", ".block.0", ".shift.2", ".block.1", ".shift.3", ".block.2", "",
    ]  # fmt: skip
    assert expansion.hop[ops].tolist() == [0, 1, 0, 2, 1, 3, 2, 3]
    shifts = [op for op in ops if expansion.collective[op] == Kind.SHIFT]
    assert (expansion.axis[shifts] == Axis.CONTEXT).all()
    for op in shifts:
        assert made.tensor_bytes[made.outputs[op]].tolist() == [STREAM / 2]
    # The third block is sent on when the first is done, whose place the fourth takes.
    waited = [t for t in made.inputs[shifts[1]].tolist() if made.tensor_bytes[t] == 0]
    assert [made.tensor_source[t] for t in waited] == [ops[2]]
    blocks = [op for op in ops if expansion.origin[op] >= 0]
    whole = graph.flops[graph.op_names.index(made.op_names[ops[-1]])]
    assert made.flops[blocks].tolist() == [whole / 16] * 4


def test_gradients_of_keys_travel_with_them_and_end_at_their_owner() -> None:
    graph = model("gpt")
    expansion = expanded(graph, plan_of(graph, (4, 1, False), keys=Keys.RING))
    made = expansion.graph
    names = [each for each in made.op_names if "h.1.attn/attention_backward_1" in each]
    names = [each.partition("attention_backward_1")[2] for each in names]
    assert [each for each in names if "gradient" in each or "add" in each] == [
        ".gradient.shift.1", ".add.2", ".gradient.shift.2", ".add.3", ".gradient.shift.3", ".add",
    ]  # fmt: skip
    last = next(op for op in range(made.num_ops) if made.op_names[op].endswith("backward_1.add"))
    keys = made.outputs[last]
    assert made.tensor_bytes[keys].tolist() == [STREAM / 4, STREAM / 4]
    assert expansion.rows[keys].all()


@pytest.mark.parametrize(
    ("team", "recompute"),
    [((4, 2, True), Recompute.NONE), *product([(2, 1, False), (4, 1, False)], Recompute)],
)
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_members_say_what_layers_are_priced_for(
    name: str, team: tuple[int, int, bool], recompute: Recompute
) -> None:
    context, tensor, sequence = team
    graph = model(name)
    plan = plan_of(graph, team, keys=Keys.RING, recompute=recompute)
    priced = Team(context=context, tensor=tensor, sequence=sequence, keys=Keys.RING)
    assert calls_of(expanded(graph, plan)) == priced_calls(graph, priced, recompute)


def test_as_many_bytes_travel_as_are_gathered_and_scattered() -> None:
    """A member receives all keys but its own, twice, and as many bytes of gradients."""
    graph = model("llama")
    ring, gathered = (
        calls_of(expanded(graph, plan_of(graph, (4, 1, False), keys=keys)))
        for keys in (Keys.RING, Keys.GATHERED)
    )
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        shifted = sum(size * count for (kind, _, when, size), count in ring.items()
                      if kind == "shift" and when == phase)  # fmt: skip
        moved = sum(size * count for (_, axis, when, size), count in gathered.items()
                    if axis == "context" and when == phase)  # fmt: skip
        assert shifted == moved * 3 / 4


def long_model(make: Any) -> Graph:
    shape: dict[str, Any] = {"hidden": 1024, "heads": 16, "layers": 3, "batch": 4}
    more = {"key_heads": 16, "intermediate": 2816} if make is llama else {}
    return make(**shape, **more, sequence=16384, vocabulary=1024, precision="bf16")  # type: ignore[no-any-return]


def long_plan(graph: Graph, cluster: Any, width: int, keys: Keys) -> Plan:
    devices = tuple(device.name for device in cluster.devices[:width])
    return Plan(parts=(Part(ops=graph.op_names, devices=devices, context=width, keys=keys),))


def test_a_ring_holds_less_than_what_is_gathered() -> None:
    """On eight members keys, values and their gradients of all are 4 x 2 x 128 MiB; a ring has up
    to seven blocks of 32 MiB instead. Both have more at other ops, so that less is saved."""
    cluster, graph = load_cluster("h100-x8"), long_model(llama)
    ring, gathered = (
        max(simulate(graph, cluster, long_plan(graph, cluster, 8, keys)).peak_bytes)
        for keys in (Keys.RING, Keys.GATHERED)
    )
    assert 0.75 * gathered < ring < 0.95 * gathered


def test_keys_travel_beside_blocks() -> None:
    """Of all shifts of keys in forward at least two thirds are hidden: all but the first of each
    layer begin with a block, and on NVLink end before it."""
    cluster, graph = load_cluster("h100-x8"), long_model(llama)
    program = lower(graph, cluster, long_plan(graph, cluster, 4, Keys.RING))
    times = run_program(program, cluster)
    rows = program.instructions
    mine = rows["device"] == 0
    blocks = np.flatnonzero(mine & (rows["kind"] == Kind.COMPUTE))
    names = np.array(program.graph.op_names)
    blocks = blocks[np.char.find(names[rows["op"][blocks]], "attention") >= 0]
    shifts = np.flatnonzero(mine & (rows["kind"] == Kind.SHIFT))
    begun = np.maximum.outer(times.start[shifts], times.start[blocks])
    ended = np.minimum.outer(times.finish[shifts], times.finish[blocks])
    beside = np.maximum(ended - begun, 0.0).sum(axis=1)
    hidden = beside / (times.finish - times.start)[shifts]
    assert np.mean(hidden > 0.99) > 2 / 3


@pytest.mark.parametrize("width", [2, 4, 8])
def test_simulated_steps_by_op_and_by_layer_are_about_as_long(width: int) -> None:
    cluster, graph = load_cluster("h100-x8"), long_model(llama)
    plan = long_plan(graph, cluster, width, Keys.RING)
    by_op, by_layer = (
        run_program(lower(graph, cluster, plan, each), cluster).finish.max()
        for each in ("op", "layer")
    )
    assert 0.9 < by_op / by_layer < 1.1
