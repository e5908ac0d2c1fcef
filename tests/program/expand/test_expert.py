"""What replicas run that hold different experts, held against what layers cost."""

from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest

from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cost.collective import Collective
from meshwright.cost.compute import op_seconds
from meshwright.cost.layer.call import find_calls, find_messages
from meshwright.cost.layer.price import price_layer
from meshwright.cost.layer.team import Team
from meshwright.errors import InputError
from meshwright.graph.architecture.llama import llama
from meshwright.graph.architecture.mixtral import mixtral
from meshwright.graph.graph import Graph, Phase
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Role
from meshwright.plan.check import resolve
from meshwright.plan.plan import Part, Plan, Recompute, Sync
from meshwright.program.expand.expansion import Axis, Expansion
from meshwright.program.lower import emit_program
from meshwright.program.program import Kind, Program
from meshwright.program.work import expand, prepare_work
from small import connected

LAYERS, EXPERTS, BATCH = 3, 4, 4
CLUSTER = connected(8)
H100 = DEVICE_TYPES["h100"]
SHAPE: dict[str, Any] = {
    "hidden": 128, "heads": 8, "layers": LAYERS, "batch": BATCH, "sequence": 64,
    "vocabulary": 1024, "key_heads": 4, "intermediate": 256,
}  # fmt: skip
ENDS_BYTES = 4.0 * EXPERTS
"""Of the message in which replicas say how many tokens each expert gets."""

Calls = Counter[tuple[str, Phase, float]]
"""How many collectives of a kind, phase and size there are."""


@cache
def model() -> Graph:
    return mixtral(**SHAPE, experts=EXPERTS)


def plan_of(graph: Graph, count: int, **how: Any) -> Plan:
    devices = tuple(f"d{number}" for number in range(count))
    return Plan(parts=(Part(ops=graph.op_names, devices=devices, **how),))


def expanded(count: int, **how: Any) -> Expansion:
    graph = model()
    plan = plan_of(graph, count, **how)
    return expand(graph, resolve(graph, CLUSTER, plan), plan)


def lowered(count: int, **how: Any) -> Program:
    return emit_program(prepare_work(model(), CLUSTER, plan_of(model(), count, **how)), CLUSTER)


def calls_of(expansion: Expansion) -> Calls:
    """The collectives of teams, each by the largest tensor that it moves."""
    graph, found = expansion.graph, Calls()
    for op in np.flatnonzero(np.isin(expansion.axis, (Axis.TENSOR, Axis.EXPERT))).tolist():
        if graph.phase[op] == Phase.UPDATE:
            continue
        is_words = expansion.collective[op] == Kind.ALL_REDUCE
        side = graph.outputs[op] if is_words else graph.inputs[op]
        name = Kind(int(expansion.collective[op])).name.lower()
        found[name, Phase(int(graph.phase[op])), float(graph.tensor_bytes[side].max())] += 1
    return found


def priced_calls(team: Team, recompute: Recompute) -> Calls:
    stack, found = find_layers(model()), Calls()
    for layer in range(stack.num_layers):
        messages = find_messages(stack.kind_of(layer))
        for call in find_calls(messages, team, 1.0, recompute, False):
            key = Collective(call.collective).name.lower()
            found[key, Phase.FORWARD, call.message_bytes] += call.forward
            found[key, Phase.BACKWARD, call.message_bytes] += call.backward + call.overlapped
    return +found


@pytest.mark.parametrize("again", [Recompute.NONE, Recompute.FULL])
@pytest.mark.parametrize("expert", [2, 4])
def test_tokens_travel_as_layers_are_priced(expert: int, again: Recompute) -> None:
    """And before they do, replicas say how many, once a layer in each forward."""
    calls = calls_of(expanded(expert, expert=expert, recompute=again))
    priced = priced_calls(Team(expert=expert), again)
    priced["all_to_all", Phase.FORWARD, ENDS_BYTES] = LAYERS
    if again is Recompute.FULL:
        priced["all_to_all", Phase.BACKWARD, ENDS_BYTES] = LAYERS
    assert calls == priced
    # Two copies of each token of 128 numbers in bf16, there and back, forward and backward.
    tokens = 2.0 * BATCH * 64 * 128 * 2
    assert calls["all_to_all", Phase.FORWARD, tokens] == 2 * LAYERS


def test_tensor_teams_add_up_what_comes_back() -> None:
    """Terms travel as tokens do, each to and from the same member of the other replicas."""
    calls = calls_of(expanded(4, expert=2, tensor=2))
    alone, both = calls_of(expanded(2, tensor=2)), priced_calls(Team(expert=2), Recompute.NONE)
    both["all_to_all", Phase.FORWARD, ENDS_BYTES] = LAYERS
    assert calls == alone + both


def test_ops_of_experts_read_what_travels_and_others_what_comes_back() -> None:
    expansion = expanded(2, expert=2)
    graph = expansion.graph
    inside = (expansion.role == Role.EXPERT) & (graph.phase != Phase.UPDATE)
    moves = expansion.axis == Axis.EXPERT
    source, reader = graph.edges
    own = ~moves[source] & ~moves[reader] & (graph.phase[reader] != Phase.UPDATE)
    assert (inside[source] == inside[reader])[own].all()
    travels = moves[reader] & ~moves[source]
    tensors = np.unique(graph.use_tensor[travels])
    assert len(tensors) == 5 * LAYERS == moves.sum()


@pytest.mark.parametrize("expert", [2, 4])
def test_a_replica_has_its_share_of_experts_and_their_work(expert: int) -> None:
    """The sizes of all ops, and what is held, are those that layers are priced by."""
    expansion, stack = expanded(expert, expert=expert), find_layers(model())
    graph, team = expansion.graph, Team(expert=expert)
    layer = stack.layer_of_op[expansion.origin]
    seconds = op_seconds(graph, H100, BATCH)
    for number in range(stack.num_layers):
        price = price_layer(stack.kind_of(number), team, Recompute.NONE, H100, BATCH)
        mine = (layer == number) & (expansion.origin >= 0)
        forward = mine & (graph.phase == Phase.FORWARD)
        assert seconds[forward].sum() == pytest.approx(price.forward_seconds, rel=1e-9)
        backward = mine & (graph.phase == Phase.BACKWARD)
        assert seconds[backward].sum() == pytest.approx(price.backward_seconds, rel=1e-9)
        held = float(graph.parameter_bytes[mine].sum())
        assert held == pytest.approx(price.parameter_bytes + price.expert_parameter_bytes)
        is_update = (graph.phase[graph.use_op] == Phase.UPDATE) & mine[graph.use_op]
        gradients = np.unique(graph.use_tensor[is_update])
        size = float(graph.tensor_bytes[gradients].sum())
        assert size == pytest.approx(price.gradient_bytes + price.expert_gradient_bytes)


def moved_by(program: Program, kind: Kind) -> Counter[tuple[int, ...]]:
    """Bytes of a kind of collective by its devices, each once."""
    rows = program.instructions[program.instructions["kind"] == kind]
    found: Counter[tuple[int, ...]] = Counter()
    for row in rows[np.unique(rows["task"], return_index=True)[1]]:
        found[program.groups[row["group"]]] += round(float(row["bytes"]))
    return found


def test_gradients_of_experts_are_synchronised_by_those_who_hold_them() -> None:
    found = moved_by(lowered(8, expert=2, tensor=2), Kind.ALL_REDUCE)
    # Devices 0 and 1 are a team, 0 and 2 hold different experts, 0 and 4 the same.
    dense, experts = {(0, 2, 4, 6), (1, 3, 5, 7)}, {(0, 4), (1, 5), (2, 6), (3, 7)}
    assert dense | experts <= set(found)
    of_experts = 3 * EXPERTS * 128 * 256 * 2 * LAYERS  # gate, up and down, in bf16
    for group in experts:
        assert found[group] == of_experts / 2 / 2


def test_experts_with_one_holder_are_not_synchronised() -> None:
    found = moved_by(lowered(4, expert=4), Kind.ALL_REDUCE)
    stack = find_layers(model())
    dense = sum(
        price_layer(stack.kind_of(k), Team(), Recompute.NONE, H100, BATCH).gradient_bytes
        for k in range(stack.num_layers)
    )
    assert found == {(0, 1, 2, 3): dense}


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_zero_divides_experts_among_those_who_hold_them(zero: int) -> None:
    found = moved_by(lowered(4, expert=2, zero=zero), Kind.REDUCE_SCATTER)
    of_experts = 3 * EXPERTS * 128 * 256 * 2 * LAYERS
    assert set(found) == {(0, 1, 2, 3), (0, 2), (1, 3)}
    assert found[0, 2] == found[1, 3] == of_experts / 2
    alone = moved_by(lowered(4, expert=4, zero=zero), Kind.REDUCE_SCATTER)
    assert set(alone) == {(0, 1, 2, 3)}
    expansion = expanded(4, expert=2, zero=zero)
    whole = expanded(4, expert=2)
    updates = (expansion.graph.phase == Phase.UPDATE) & (expansion.origin >= 0)
    for op in np.flatnonzero(updates).tolist():
        of_expert = expansion.role[op] == Role.EXPERT
        other = whole.graph.index[expansion.graph.op_names[op]]
        share = expansion.graph.state_bytes[op] / whole.graph.state_bytes[other]
        assert share == pytest.approx(1 / 2 if of_expert else 1 / 4)


def test_what_cannot_be_divided_is_refused() -> None:
    dense = llama(**SHAPE)
    plan = plan_of(dense, 2, expert=2)
    with pytest.raises(InputError, match="part 0: expert must be 1 in a model without experts"):
        expand(dense, resolve(dense, CLUSTER, plan), plan)
    with pytest.raises(InputError, match="expert must divide experts of layer 1"):
        expanded(8, expert=8)
    with pytest.raises(InputError, match="synchronised by parameter_server, got 2"):
        expanded(2, expert=2, sync=Sync.PARAMETER_SERVER)


@pytest.mark.parametrize("expert", [1, 2])
def test_members_that_divide_rows_gather_them_before_tokens_are_sorted(expert: int) -> None:
    """Layers are priced for copies of tokens that are gathered and scattered, two each; what runs
    gathers tokens and adds up copies: with two members 6% more bytes here. Where replicas divide
    experts, all members send all copies, not each its own."""
    how: dict[str, Any] = {"tensor": 2, "sequence": True, "expert": expert}
    calls, priced = calls_of(expanded(4, **how)), priced_calls(Team(**how), Recompute.NONE)
    tokens = 2.0 * BATCH * 64 * 128
    copies = 2 * tokens
    forward, backward = Phase.FORWARD, Phase.BACKWARD
    own = tokens / 2  # what a member gathers is listed by its own rows
    for key, count in (
        (("all_gather", forward, own), LAYERS), (("all_gather", backward, own), 2 * LAYERS),
        (("all_reduce", forward, copies), LAYERS), (("all_reduce", backward, copies), LAYERS),
    ):  # fmt: skip
        calls[key] -= count
    for key, count in (
        (("all_gather", forward, copies), LAYERS), (("all_gather", backward, copies), 2 * LAYERS),
        (("reduce_scatter", forward, copies), LAYERS),
        (("reduce_scatter", backward, copies), LAYERS),
    ):  # fmt: skip
        priced[key] -= count
    for phase in (forward, backward):
        if expert > 1:
            assert calls.pop(("all_to_all", phase, copies)) == 2 * LAYERS
            assert priced.pop(("all_to_all", phase, copies / 2)) == 2 * LAYERS
        calls["all_gather", phase, tokens] += calls.pop(("all_gather", phase, own))
    calls.pop(("all_to_all", forward, ENDS_BYTES), None)
    assert +calls == +priced
