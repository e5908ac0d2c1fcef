"""What a member of a context team runs, held against what layers cost, and op by op for one
attention."""

from collections import Counter
from dataclasses import replace
from functools import cache
from math import isclose
from typing import Any

import numpy as np
import pytest
from expand_calls import find_collectives

from meshwright.cluster.catalogue import load_cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cost.collective import Collective
from meshwright.cost.compute import op_seconds
from meshwright.cost.layer.call import find_calls, find_messages
from meshwright.cost.layer.price import price_layer
from meshwright.cost.layer.team import Team
from meshwright.errors import InputError
from meshwright.graph.architecture.bert import bert
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.architecture.llama import llama
from meshwright.graph.graph import Graph, Phase
from meshwright.graph.stack.find import find_layers
from meshwright.plan.check import resolve
from meshwright.plan.plan import Part, Plan, Recompute, Schedule, ScheduleKind
from meshwright.program.expand.expansion import Axis, Expansion, Owned
from meshwright.program.lower import emit_program, lower
from meshwright.program.program import Kind
from meshwright.program.work import expand, prepare_work
from meshwright.simulate.simulate import run_program
from small import connected

H100 = DEVICE_TYPES["h100"]
BATCH, SEQUENCE, HIDDEN = 4, 64, 128
CLUSTER = connected(8)

Calls = Counter[tuple[str, str, Phase, float]]
"""How many collectives of a kind, axis, phase and size there are."""
TEAMS = [(2, 1, False), (4, 1, False), (2, 2, False), (2, 2, True), (4, 2, True)]
"""Widths of context and tensor, and whether the tensor team divides rows, too."""


@cache
def model(name: str) -> Graph:
    shape: dict[str, Any] = {"hidden": HIDDEN, "heads": 8, "layers": 3, "batch": BATCH}
    tokens: dict[str, Any] = {**shape, "sequence": SEQUENCE, "vocabulary": 1024}
    if name == "llama":
        return llama(**tokens, key_heads=4, intermediate=256, precision="bf16")
    return gpt(**tokens) if name == "gpt" else bert(**tokens)


def plan_of(graph: Graph, team: tuple[int, int, bool], replicas: int = 1, **more: Any) -> Plan:
    context, tensor, sequence = team
    names = tuple(device.name for device in CLUSTER.devices)
    part = Part(
        ops=graph.op_names,
        devices=names[: context * tensor * replicas],
        context=context,
        tensor=tensor,
        sequence=sequence,
        **more,
    )
    return Plan(parts=(part,))


def expanded(graph: Graph, plan: Plan) -> Expansion:
    return expand(graph, resolve(graph, CLUSTER, plan), plan)


def calls_of(expansion: Expansion) -> Calls:
    return Calls(each for each in find_collectives(expansion) if each.phase != Phase.UPDATE)


def priced_calls(graph: Graph, team: Team, recompute: Recompute) -> Calls:
    stack, found = find_layers(graph), Calls()
    for layer in range(stack.num_layers):
        messages = find_messages(stack.kind_of(layer))
        for call in find_calls(messages, team, 1.0, recompute, True):
            key = Collective(call.collective).name.lower(), call.axis
            found[*key, Phase.FORWARD, call.message_bytes] += call.forward
            found[*key, Phase.BACKWARD, call.message_bytes] += call.backward + call.overlapped
    return +found


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_members_say_what_layers_are_priced_for(name: str, team: tuple[int, int, bool]) -> None:
    context, tensor, sequence = team
    graph = model(name)
    priced = Team(context=context, tensor=tensor, sequence=sequence)
    calls = calls_of(expanded(graph, plan_of(graph, team)))
    assert calls == priced_calls(graph, priced, Recompute.NONE)


@pytest.mark.parametrize("recompute", [Recompute.SELECTIVE, Recompute.FULL])
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_keys_are_gathered_once_more_for_what_is_computed_again(
    name: str, recompute: Recompute
) -> None:
    graph = model(name)
    plan = plan_of(graph, (2, 1, False), recompute=recompute)
    calls = calls_of(expanded(graph, plan))
    assert calls == priced_calls(graph, Team(context=2), recompute)


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_ops_take_what_layers_are_priced_for(name: str, team: tuple[int, int, bool]) -> None:
    """But for what is made of inputs alone, as labels, and of positions: it is whole on every
    member. Where tensor teams divide rows, sums of terms take longer, too."""
    context, tensor, sequence = team
    graph, stack = model(name), find_layers(model(name))
    expansion = expanded(graph, plan_of(graph, team)).graph
    seconds = op_seconds(expansion, H100, BATCH)
    priced = Team(context=context, tensor=tensor, sequence=sequence)
    for phase, field in ((Phase.FORWARD, "forward_seconds"), (Phase.BACKWARD, "backward_seconds")):
        costs = [
            price_layer(stack.kind_of(layer), priced, Recompute.NONE, H100, BATCH)
            for layer in range(stack.num_layers)
        ]
        total = sum(getattr(cost, field) for cost in costs)
        assert isclose(seconds[expansion.phase == phase].sum(), total, rel_tol=0.02)


def test_attention_reads_all_keys_and_its_own_queries() -> None:
    """By hand, for GPT on two members: 4 samples of 64 tokens and 128 features in fp32 are 128 KiB,
    of which a member has half."""
    graph = model("gpt")
    expansion = expanded(graph, plan_of(graph, (2, 1, False)))
    made, stream = expansion.graph, 4.0 * BATCH * SEQUENCE * HIDDEN
    (forward, backward) = (
        next(
            op
            for op in range(made.num_ops)
            if made.kind[op].endswith(ending) and "h.1." in made.op_names[op]
        )
        for ending in ("attention", "attention_backward")
    )
    gather = int(made.tensor_source[made.inputs[forward][-1]])
    assert made.op_names[gather] == f"{made.op_names[forward]}.all_gather"
    assert (expansion.collective[gather], expansion.axis[gather]) == (Kind.ALL_GATHER, Axis.CONTEXT)
    assert made.tensor_bytes[made.outputs[gather]].tolist() == [stream, stream]
    assert not expansion.rows[made.outputs[gather]].any()
    assert made.tensor_bytes[made.outputs[forward][0]] == stream / 2
    assert expansion.rows[made.outputs[forward]].all()
    again = int(made.tensor_source[made.inputs[backward][-1]])
    assert again != gather
    assert made.phase[again] == Phase.BACKWARD
    query, key, value = made.outputs[backward].tolist()
    assert made.tensor_bytes[[query, key, value]].tolist() == [stream / 2, stream, stream]
    assert expansion.rows[[query, key, value]].tolist() == [True, False, False]
    (scatter,) = made.readers[key].tolist()
    assert expansion.collective[scatter] == Kind.REDUCE_SCATTER
    assert made.readers[value].tolist() == [scatter]
    assert made.tensor_bytes[made.outputs[scatter]].tolist() == [stream / 2, stream / 2]
    assert expansion.rows[made.outputs[scatter]].all()


@pytest.mark.parametrize("team", TEAMS)
def test_labels_and_weights_are_whole_and_all_else_is_rows(team: tuple[int, int, bool]) -> None:
    graph = model("llama")
    expansion = expanded(graph, plan_of(graph, team))
    made = expansion.graph
    grows = (made.tensor_bytes > made.fixed_tensor_bytes) & ~made.tensor_partial
    whole = np.flatnonzero(grows & ~expansion.rows)
    kinds = {made.kind[made.tensor_source[each]] for each in whole}
    names = {name for name in kinds if "attention_backward" not in name}
    assert names <= {"all_gather", "constant_pad_nd", "strided_clone", "clone", "copy"}
    keys = expansion.axis[made.tensor_source[whole]] == Axis.CONTEXT
    heads = Owned.FEATURES if team[1] > 1 else Owned.WHOLE
    assert (expansion.held[whole[keys]] == heads).all()


@pytest.mark.parametrize("zero", [0, 1, 3])
def test_members_hold_the_same_weights_as_replicas_do(zero: int) -> None:
    """Two replicas of two members each: four holders, to whom ZeRO gives a quarter each."""
    graph = model("gpt")
    plan = plan_of(graph, (2, 1, False), replicas=2, zero=zero)
    work = prepare_work(graph, CLUSTER, plan)
    program = emit_program(work, CLUSTER)
    rows = program.instructions
    is_sync = (rows["group"] >= 0) & (rows["stream"] // program.num_devices != 3)
    groups = {program.groups[number] for number in rows["group"][is_sync].tolist()}
    assert groups == {(0, 1, 2, 3)}
    states = float(work.graph.state_bytes.sum()) / float(graph.state_bytes.sum())
    assert states == 1.0 if zero == 0 else states < 1.0


def staged(graph: Graph, teams: list[tuple[int, int]]) -> Plan:
    """As many layers a stage, each on a team of context x tensor devices."""
    layer = find_layers(graph).layer_of_op
    bounds = np.linspace(0, int(layer.max()) + 1, len(teams) + 1).astype(int)
    devices = iter(device.name for device in CLUSTER.devices)
    parts = tuple(
        Part(
            ops=tuple(np.array(graph.op_names)[(layer >= low) & (layer < high)].tolist()),
            devices=tuple(next(devices) for _ in range(context * tensor)),
            context=context,
            tensor=tensor,
        )
        for (context, tensor), low, high in zip(teams, bounds[:-1], bounds[1:], strict=True)
    )  # fmt: skip
    return Plan(parts=parts, schedule=Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=2))


def test_teams_of_one_shape_pass_rows_on_and_others_whole_tensors() -> None:
    graph = model("llama")
    same, other = (
        expanded(graph, staged(graph, teams)) for teams in ([(2, 1)] * 2, [(2, 1), (1, 2)])
    )
    crossing = [each for each in same.graph.op_names if each.endswith((".context", ".context.1"))]
    assert crossing == []
    crossing = [each for each in other.graph.op_names if each.endswith(".context")]
    assert [each.rpartition("/")[2].split(".")[1:] for each in crossing] == [
        ["all_gather", "context"],
        ["slice", "context"],
    ]


@pytest.mark.parametrize("recompute", [Recompute.NONE, Recompute.FULL])
@pytest.mark.parametrize("team", [(2, 1, False), (4, 2, True)])
@pytest.mark.parametrize("make", [gpt, llama])
def test_simulated_steps_by_op_and_by_layer_are_about_as_long(
    make: Any, team: tuple[int, int, bool], recompute: Recompute
) -> None:
    """By op they were 1% to 8% shorter: keys travel while weights' gradients are computed."""
    shape: dict[str, Any] = {"hidden": 1024, "heads": 16, "layers": 3, "batch": 4}
    more = {"key_heads": 4, "intermediate": 2816} if make is llama else {}
    graph = make(**shape, **more, sequence=1024, vocabulary=8192, precision="bf16")
    cluster = load_cluster("h100-x8")
    part = plan_of(graph, team, recompute=recompute).parts[0]
    names = tuple(device.name for device in cluster.devices[: part.width])
    plan = Plan(parts=(replace(part, devices=names),))
    by_op = run_program(emit_program(prepare_work(graph, cluster, plan), cluster), cluster)
    by_layer = run_program(lower(graph, cluster, plan, "layer"), cluster)
    assert 0.9 < by_op.finish.max() / by_layer.finish.max() < 1.02


def test_what_no_rows_divide_is_refused_in_one_line() -> None:
    graph = model("bert")
    with pytest.raises(InputError, match="context must be 1 where an op works on other rows than"):
        expanded(graph, plan_of(graph, (2, 1, False)))
    graph = model("gpt")
    with pytest.raises(
        InputError, match=r"context must divide the tokens of a sample \(64\), got 3"
    ):
        expanded(graph, plan_of(graph, (3, 1, False)))


def test_a_loss_that_leaves_a_token_out_cannot_be_divided() -> None:
    # A loss on scores[:, :-1]: one member would have 31 tokens of a sample and another 32.
    graph = model("gpt")
    loss = next(op for op, kind in enumerate(graph.kind) if kind == "_log_softmax")
    shifted = graph.tensor_bytes.copy()
    shifted[graph.outputs[loss]] *= 63 / 64
    graph = replace(graph, tensor_bytes=shifted)
    expanded(graph, plan_of(graph, (1, 2, True)))
    with pytest.raises(InputError, match="context must be 1 where an op leaves a token of each"):
        expanded(graph, plan_of(graph, (2, 1, False)))
