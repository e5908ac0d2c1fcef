"""What a member of a tensor team runs, held against what layers cost and against an algebra of
what members hold."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from math import isclose
from typing import Any

import numpy as np
import pytest
from expand_calls import find_collectives
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cost.collective import Collective
from meshwright.cost.compute import op_seconds
from meshwright.cost.layer.call import find_calls, find_messages
from meshwright.cost.layer.price import price_layer
from meshwright.cost.layer.result import LayerCost
from meshwright.cost.layer.seconds import layer_seconds
from meshwright.cost.layer.share import Widths, divide
from meshwright.cost.layer.team import Team, team_fits
from meshwright.cost.layer.work import find_work
from meshwright.errors import InputError
from meshwright.graph.architecture.bert import bert
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.architecture.llama import llama
from meshwright.graph.architecture.mixtral import mixtral
from meshwright.graph.architecture.vit import vit
from meshwright.graph.graph import Graph, Phase, Split, read_graph
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import ProductCut, Role
from meshwright.plan.check import resolve
from meshwright.plan.plan import Part, Plan, Recompute
from meshwright.program.expand.expansion import Axis, Expansion, Owned, unexpanded
from meshwright.program.expand.member import find_members
from meshwright.program.expand.shard import shard
from meshwright.program.program import Kind
from meshwright.program.work import expand
from meshwright.zoo.shipped import FOLDER, SUFFIX
from small import connected

H100 = DEVICE_TYPES["h100"]
BATCH, SEQUENCE, HIDDEN = 4, 64, 128
CLUSTER = connected(8)

Calls = Counter[tuple[str, Phase, float]]
"""How many collectives of a kind, phase and size there are."""


@cache
def model(name: str) -> Graph:
    shape: dict[str, Any] = {"hidden": HIDDEN, "heads": 8, "layers": 3, "batch": BATCH}
    tokens: dict[str, Any] = {**shape, "sequence": SEQUENCE, "vocabulary": 1024}
    grouped: dict[str, Any] = {**tokens, "key_heads": 4, "intermediate": 256}
    match name:
        case "gpt":
            return gpt(**tokens)
        case "bert":
            return bert(**tokens)
        case "llama":
            return llama(**grouped, precision="bf16")
        case "mixtral":
            return mixtral(**grouped, experts=4)
        case "vit":
            return vit(**shape, side=112)  # 49 squares and a class: 50 tokens
    return read_graph(FOLDER / f"{name}{SUFFIX}")


def plan_of(graph: Graph, *teams: tuple[int, bool], bounds: Sequence[int] = ()) -> Plan:
    """Parts of layers from bound to bound, each on a team of its own of that width."""
    layer = find_layers(graph).layer_of_op
    bounds = (0, *bounds, int(layer.max()) + 1)
    devices = iter(device.name for device in CLUSTER.devices)
    return Plan(
        parts=tuple(
            Part(
                ops=tuple(np.array(graph.op_names)[(layer >= low) & (layer < high)].tolist()),
                devices=tuple(next(devices) for _ in range(tensor)),
                tensor=tensor,
                sequence=sequence,
            )
            for (tensor, sequence), low, high in zip(teams, bounds[:-1], bounds[1:], strict=True)
        )
    )  # fmt: skip


def sharded(graph: Graph, *teams: tuple[int, bool], bounds: Sequence[int] = ()) -> Expansion:
    plan = plan_of(graph, *teams, bounds=bounds)
    return expand(graph, resolve(graph, CLUSTER, plan), plan)


def calls_of(expansion: Expansion) -> Calls:
    return Calls((each.kind, each.phase, each.bytes) for each in find_collectives(expansion))


def priced_calls(graph: Graph, team: Team) -> Calls:
    stack, found = find_layers(graph), Calls()
    for layer in range(stack.num_layers):
        messages = find_messages(stack.kind_of(layer))
        for call in find_calls(messages, team, 1.0, Recompute.NONE, False):
            key = Collective(call.collective).name.lower()
            found[key, Phase.FORWARD, call.message_bytes] += call.forward
            found[key, Phase.BACKWARD, call.message_bytes] += call.backward + call.overlapped
    return +found


def without_updates(calls: Calls) -> Calls:
    return Calls({key: count for key, count in calls.items() if key[1] != Phase.UPDATE})


TEAMS = [(2, False), (4, False), (2, True), (4, True)]


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("name", ["gpt", "llama", "gpt2"])
def test_members_say_what_layers_are_priced_for(name: str, team: tuple[int, bool]) -> None:
    graph = model(name)
    calls = calls_of(sharded(graph, team))
    priced = priced_calls(graph, Team(tensor=team[0], sequence=team[1]))
    assert without_updates(calls) == priced
    if not team[1]:
        assert calls == priced


@pytest.mark.parametrize("team", TEAMS)
def test_the_head_of_bert_says_less_about_the_one_token_that_it_classifies(
    team: tuple[int, bool],
) -> None:
    """The gradient of the pooler's input is added up before it is padded with zeros to all tokens;
    rows of one a sample are not divided."""
    graph = model("bert")
    stream, pooled, pair = 4.0 * BATCH * SEQUENCE * HIDDEN, 4.0 * BATCH * HIDDEN, 4.0 * BATCH * 2
    expected = priced_calls(graph, Team(tensor=team[0], sequence=team[1]))
    expected["all_reduce", Phase.BACKWARD, pooled] += 1
    if team[1]:
        expected["reduce_scatter", Phase.BACKWARD, stream] -= 1
        expected["reduce_scatter", Phase.FORWARD, pair] -= 1
        expected["all_gather", Phase.BACKWARD, pair] -= 1
        expected["all_reduce", Phase.FORWARD, pair] += 1
    else:
        expected["all_reduce", Phase.BACKWARD, stream] -= 1
    assert without_updates(calls_of(sharded(graph, team))) == +expected


def test_queries_keys_and_values_are_reduced_once_where_a_residual_is_added_between() -> None:
    graph = model("bert")
    expansion = sharded(graph, (2, False))
    names = [name for name in expansion.graph.op_names if name.endswith(".all_reduce")]
    inner = [name for name in names if "layer.1.attention.self" in name]
    assert inner == ["bert.encoder.layer.1.attention.self.query/add_17.all_reduce"]


@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "gpt2"])
def test_gradients_of_weights_found_on_rows_are_added_up_once_a_step(name: str) -> None:
    """Norms, biases of row products, tables of positions: whatever an update reads whole."""
    graph = model(name)
    expansion = sharded(graph, (2, True))
    members = find_members(find_layers(graph))
    updates = (graph.phase == Phase.UPDATE) & (members.role == Role.WHOLE)
    is_sum = (expansion.graph.phase == Phase.UPDATE) & expansion.is_collective
    whole_rows = ("bert.pooler", "cls.seq_relationship")  # one row a sample
    wanted = [op for op in np.flatnonzero(updates) if not graph.module[op].startswith(whole_rows)]
    assert is_sum.sum() == len(wanted)
    for op in np.flatnonzero(is_sum).tolist():
        (given,) = expansion.graph.inputs[op].tolist()
        (made,) = expansion.graph.outputs[op].tolist()
        assert expansion.graph.tensor_partial[given]
        assert not expansion.graph.tensor_partial[made]
        assert expansion.graph.split[op] == Split.NONE


# Sizes and times


def costs_of(graph: Graph, team: Team) -> list[LayerCost]:
    stack = find_layers(graph)
    kinds = [stack.kind_of(layer) for layer in range(stack.num_layers)]
    return [price_layer(kind, team, Recompute.NONE, H100, graph.batch) for kind in kinds]


def tied_updates(graph: Graph) -> list[int]:
    """Updates that the head has a copy of."""
    stack = find_layers(graph)
    names = stack.kind_of(stack.num_layers - 1).graph.op_names
    head = stack.num_layers - 1
    return [graph.index[name] for name in names
            if name in graph.index and stack.layer_of_op[graph.index[name]] != head]  # fmt: skip


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "gpt2"])
def test_weights_take_what_layers_are_priced_for(name: str, team: tuple[int, bool]) -> None:
    """Layers count a tied weight twice, as if its copies were apart; here they are in one part."""
    graph, stack = model(name), find_layers(model(name))
    costs = costs_of(graph, Team(tensor=team[0], sequence=team[1]))
    expansion = sharded(graph, team).graph
    copies = stack.tied_bytes / team[0]
    weights = sum(cost.parameter_bytes for cost in costs)
    assert isclose(expansion.parameter_bytes.sum() + copies, weights, rel_tol=1e-9)
    states = weights + sum(cost.optimiser_bytes for cost in costs)
    copies += float(graph.state_bytes[tied_updates(graph)].sum()) / team[0]
    assert isclose(expansion.state_bytes.sum() + copies, states, rel_tol=1e-9)


@pytest.mark.parametrize("samples", [BATCH, 1.0])
@pytest.mark.parametrize("tensor", [2, 4])
@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "vit"])
def test_ops_take_what_layers_are_priced_for(name: str, tensor: int, samples: float) -> None:
    graph, stack = model(name), find_layers(model(name))
    expansion = sharded(graph, (tensor, False)).graph
    seconds = op_seconds(expansion, H100, samples)
    for phase, field in ((Phase.FORWARD, "forward_seconds"), (Phase.BACKWARD, "backward_seconds")):
        costs = [
            price_layer(stack.kind_of(layer), Team(tensor=tensor), Recompute.NONE, H100, samples)
            for layer in range(stack.num_layers)
        ]
        total = sum(getattr(cost, field) for cost in costs)
        assert isclose(seconds[expansion.phase == phase].sum(), total, rel_tol=1e-6)


def priced_seconds(graph: Graph, team: Team) -> dict[str, float]:
    """What the pricing of layers gives for each op."""
    stack, found = find_layers(graph), {}
    for op in range(graph.num_ops):
        kind = stack.kind_of(int(stack.layer_of_op[op]))
        found[graph.op_names[op]] = float(_kind_seconds(kind, team)[stack.template_op[op]])
    return found


@cache
def _kind_seconds(kind: Any, team: Team) -> Any:
    work = find_work(kind)
    return layer_seconds(work, H100, [(team, kind.graph.batch)])[0][work.place]


@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "gpt2"])
def test_only_sums_of_terms_and_what_is_no_row_take_longer_than_priced_where_rows_are_divided(
    name: str,
) -> None:
    """Layers are priced as if every op that members run whole worked on their rows; labels do not,
    nor ops on one row a sample, nor sums of what is not added up yet."""
    graph = model(name)
    expansion = sharded(graph, (2, True))
    seconds = op_seconds(expansion.graph, H100, graph.batch)
    priced = priced_seconds(graph, Team(tensor=2, sequence=True))
    for op in np.flatnonzero(expansion.origin >= 0).tolist():
        if isclose(seconds[op], priced[expansion.graph.op_names[op]], rel_tol=1e-9):
            continue
        read, made = (
            set(expansion.held[side[op]].tolist())
            for side in (expansion.graph.inputs, expansion.graph.outputs)
        )
        assert expansion.role[op] == Role.WHOLE
        assert Owned.TERMS in made or Owned.ROWS not in read | made


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("name", ["gpt", "llama"])
def test_members_together_do_all_flops_of_divided_ops(name: str, team: tuple[int, bool]) -> None:
    graph = model(name)
    expansion = sharded(graph, team)
    divided = np.flatnonzero((expansion.role != Role.WHOLE) & (expansion.origin >= 0))
    whole = graph.flops[expansion.origin[divided]]
    assert np.allclose(expansion.graph.flops[divided] * team[0], whole, rtol=1e-12)


def test_fixed_sizes_are_those_of_a_share_of_no_samples() -> None:
    """A member's sizes grow with its samples as the price of a layer says."""
    graph, stack = model("llama"), find_layers(model("llama"))
    expansion = sharded(graph, (2, False))
    for op in np.flatnonzero(expansion.origin >= 0).tolist():
        origin = int(expansion.origin[op])
        kind = stack.kind_of(int(stack.layer_of_op[origin]))
        place = find_work_of(kind).place[stack.template_op[origin]]
        columns = divide_of(kind)
        for name in ("flops", "bytes_read", "bytes_written"):
            new = expansion.graph.scaled(name, 1.0)[op]
            assert isclose(new, columns[name][0][place], rel_tol=1e-9, abs_tol=1e-9)


@cache
def find_work_of(kind: Any) -> Any:
    return find_work(kind)


@cache
def divide_of(kind: Any) -> Any:
    return divide(find_work_of(kind), Widths.of([(Team(tensor=2), 1.0)], kind.graph.batch))


def test_measured_times_of_divided_ops_are_forgotten_and_impossible_ones_stay() -> None:
    graph = model("gpt")
    times = np.full(graph.num_ops, 1.0)
    times[graph.phase == Phase.BACKWARD] = np.inf
    expansion = sharded(replace(graph, seconds={"h100": times}), (2, False))
    seconds = expansion.graph.seconds["h100"]
    divided, mine = expansion.role != Role.WHOLE, expansion.origin >= 0
    forward = (expansion.graph.phase == Phase.FORWARD) & mine
    table = expansion.graph.op_names.index("transformer.wte/embedding")  # gives all rows anyway
    assert seconds[table] == 1.0
    divided[table] = False
    assert np.isnan(seconds[forward & divided]).all()
    assert (seconds[forward & ~divided] == 1.0).all()
    assert np.isinf(seconds[(expansion.graph.phase == Phase.BACKWARD) & mine]).all()
    assert (seconds[expansion.is_collective] == 0.0).all()


# What members hold


def check_held(graph: Graph, plan: Plan, expansion: Expansion) -> None:
    """Every op reads what it can work on, every collective makes of a tensor what it says, and
    sizes are those of what is held."""
    new, members = expansion.graph, find_members(find_layers(graph))
    parts = [plan.parts[part] for part in expansion.part_of_op.tolist()]
    for tensor in range(new.num_tensors):
        _check_bytes(graph, expansion, tensor, parts[new.tensor_source[tensor]].tensor)
    for op in range(new.num_ops):
        read = [each for each in new.inputs[op].tolist() if expansion.tensor_origin[each] >= 0]
        held = {each: Owned(int(expansion.held[each])) for each in read}
        for each in read:
            _check_crossing(parts[new.tensor_source[each]], parts[op], held[each])
        if parts[op].tensor == 1:
            assert set(held.values()) <= {Owned.WHOLE}
        elif expansion.is_collective[op]:
            _check_collective(expansion, op)
        elif expansion.role[op] != Role.WHOLE:
            _check_divided(expansion, op, held)
        elif new.kind[op] == "slice" and expansion.origin[op] < 0:
            assert list(held.values()) == [Owned.WHOLE]
            assert expansion.held[new.outputs[op]].tolist() == [Owned.ROWS]
        else:
            rows = {each for each in read if members.has_rows[expansion.tensor_origin[each]]}
            _check_whole(expansion, op, held, rows)


def _check_bytes(graph: Graph, expansion: Expansion, tensor: int, width: int) -> None:
    origin, held = int(expansion.tensor_origin[tensor]), int(expansion.held[tensor])
    if origin < 0:
        return
    share = 1.0 if held in (Owned.WHOLE, Owned.TERMS) else 1 / width
    whole, fixed = graph.tensor_bytes[origin], graph.fixed_tensor_bytes[origin]
    expected = whole * share if held != Owned.ROWS else fixed + (whole - fixed) * share
    assert isclose(expansion.graph.tensor_bytes[tensor], expected, rel_tol=1e-12)


def _check_crossing(there: Part, here: Part, held: Owned) -> None:
    if there is here or held == Owned.WHOLE:
        return
    assert held in (Owned.FEATURES, Owned.ROWS)
    assert there.tensor == here.tensor
    assert held == Owned.FEATURES or there.sequence == here.sequence


MOVES = {
    Kind.ALL_REDUCE: (Owned.TERMS, Owned.WHOLE),
    Kind.REDUCE_SCATTER: (Owned.TERMS, Owned.ROWS),
    Kind.ALL_GATHER: (Owned.ROWS, Owned.WHOLE),
}


def _check_collective(expansion: Expansion, op: int) -> None:
    new = expansion.graph
    (made,) = new.outputs[op].tolist()
    origin = expansion.tensor_origin[made]
    moved = [each for each in new.inputs[op].tolist() if expansion.tensor_origin[each] == origin]
    before, after = MOVES[Kind(int(expansion.collective[op]))]
    if origin >= 0:
        assert [expansion.held[each] for each in moved] == [before]
    assert expansion.held[made] == after
    assert expansion.axis[op] == Axis.TENSOR
    assert len(new.readers[made])


def _check_divided(expansion: Expansion, op: int, held: dict[int, Owned]) -> None:
    new = expansion.graph
    assert set(held.values()) <= {Owned.WHOLE, Owned.FEATURES}
    grows = [each for each in held if new.tensor_bytes[each] > new.fixed_tensor_bytes[each]]
    made = set(expansion.held[new.outputs[op]].tolist())
    if new.phase[op] == Phase.FORWARD and expansion.cut[op] == ProductCut.COLUMNS:
        assert {held[each] for each in grows} == {Owned.WHOLE}
        assert made == {Owned.FEATURES}
    if new.phase[op] == Phase.FORWARD and expansion.cut[op] == ProductCut.DEPTH:
        assert {held[each] for each in grows} == {Owned.FEATURES}
        assert made == {Owned.TERMS}
    assert Owned.ROWS not in made


def _check_whole(expansion: Expansion, op: int, held: dict[int, Owned], rows: set[int]) -> None:
    new = expansion.graph
    made = set(expansion.held[new.outputs[op]].tolist())
    assert Owned.FEATURES not in held.values()
    if Owned.TERMS in held.values():
        is_linear = new.kind[op].endswith(("add", "_to_copy", "clone", "_backward"))
        assert is_linear or new.split[op] == Split.SUM
        assert made == {Owned.TERMS}
        return
    works_on = {held[each] for each in rows}
    assert len(works_on) <= 1
    if Owned.ROWS in works_on:
        assert Owned.WHOLE not in made
    else:
        assert made <= {Owned.WHOLE, Owned.ROWS}  # rows: of weights alone


@pytest.mark.parametrize("team", TEAMS)
@pytest.mark.parametrize("name", ["gpt", "llama", "bert", "vit", "mixtral", "gpt2", "bert-small"])
def test_every_op_reads_what_its_role_needs(name: str, team: tuple[int, bool]) -> None:
    graph = model(name)
    if team_fits(find_layers(graph), Team(tensor=team[0], sequence=team[1])) is not None:
        pytest.skip("its sizes are not divided so")
    check_held(graph, plan_of(graph, team), sharded(graph, team))


def test_what_is_gathered_again_waits_for_a_gradient_and_weights_come_after_inputs() -> None:
    graph = model("llama")
    expansion = sharded(graph, (2, True)).graph
    again = [op for op in range(expansion.num_ops)
             if expansion.op_names[op].endswith(".all_gather.1")]  # fmt: skip
    assert len(again) == 2 * 3 + 1  # two a layer, and the head's
    for op in again:
        assert expansion.phase[op] == Phase.BACKWARD
        phases = expansion.phase[expansion.predecessors[op]].tolist()
        assert phases == [Phase.FORWARD, Phase.BACKWARD]
        first = min(expansion.successors[op].tolist())
        partner = expansion.partner[first]
        others = np.flatnonzero((expansion.partner == partner) & (expansion.split == Split.BATCH))
        products = [each for each in others if expansion.kind[each] == "mm"]
        assert op < min(products) < first


def test_the_team_talks_about_a_loss_around_its_ops() -> None:
    graph = model("gpt")
    expansion = sharded(graph, (2, False)).graph
    names = ("_log_softmax", "_log_softmax.all_reduce", "_log_softmax.all_reduce.1",
             "nll_loss_forward.all_reduce", "nll_loss_forward")  # fmt: skip
    first = expansion.index[names[0]]
    assert expansion.op_names[first : first + 5] == names
    for op in range(first + 1, first + 4):
        assert expansion.tensor_bytes[expansion.outputs[op]].tolist() == [4.0 * BATCH * SEQUENCE]
    waits = expansion.predecessors[first + 4].tolist()
    assert {first, first + 2, first + 3} <= set(waits)


def test_ops_and_tensors_keep_their_origins() -> None:
    graph = model("bert")
    expansion = sharded(graph, (2, True))
    origins = expansion.origin[expansion.origin >= 0]
    assert sorted(origins.tolist()) == list(range(graph.num_ops))
    for op in np.flatnonzero(expansion.origin >= 0).tolist():
        assert expansion.graph.op_names[op] == graph.op_names[expansion.origin[op]]
        old = set(graph.inputs[expansion.origin[op]].tolist())
        new = expansion.tensor_origin[expansion.graph.inputs[op]]
        assert set(new[new >= 0].tolist()) == old


# Parts


def test_rows_go_from_member_to_member_where_parts_agree() -> None:
    graph = model("llama")
    whole, halves = (
        sharded(graph, *teams, bounds=bounds)
        for teams, bounds in ((((2, True),), ()), (((2, True), (2, True)), (2,)))
    )
    assert calls_of(halves) == calls_of(whole)
    assert "slice" not in halves.graph.kind


@pytest.mark.parametrize(
    ("first", "second", "gathers", "slices"),
    [
        ((2, False), (2, True), 0, 0),
        ((4, False), (2, False), 2, 2),
        ((1, False), (2, False), 1, 1),
        ((2, True), (1, False), 1, 1),
    ],
)
def test_gradients_of_copies_are_gathered_where_teams_differ(
    first: tuple[int, bool], second: tuple[int, bool], gathers: int, slices: int
) -> None:
    """The head's part adds the embedding's gradient to its own, and the sum comes back. Teams of
    one width send features; else a team gathers its features, and takes those of what arrives."""
    graph = gpt(hidden=HIDDEN, heads=8, layers=3, batch=BATCH, sequence=SEQUENCE, vocabulary=1024,
                untie=True)  # fmt: skip
    expansion = sharded(graph, first, second, bounds=(2,))
    new = expansion.graph
    late = np.flatnonzero((new.phase == Phase.UPDATE) & (expansion.origin < 0)).tolist()
    kinds = Counter(new.kind[op] for op in late if expansion.collective[op] != Kind.ALL_REDUCE)
    assert kinds == Counter({"all_gather": gathers, "slice": slices})
    for op in late:
        if new.kind[op] == "slice":
            assert expansion.held[new.outputs[op]].tolist() == [Owned.FEATURES]


@pytest.mark.parametrize(
    ("first", "second", "gathers", "slices"),
    [
        ((2, True), (4, True), [1, 1], [1, 1]),
        ((2, True), (2, False), [1, 0], [0, 1]),
        ((2, False), (2, True), [0, 1], [1, 0]),
        ((1, False), (2, True), [0, 1], [1, 0]),
        ((2, True), (1, False), [1, 0], [0, 1]),
        ((2, False), (4, False), [0, 0], [0, 0]),
    ],
)
def test_rows_are_gathered_where_parts_differ_and_cut_where_they_are_wanted(
    first: tuple[int, bool],
    second: tuple[int, bool],
    gathers: list[int],
    slices: list[int],
) -> None:
    """The stream goes to the second part in forward, its gradient comes back in backward."""
    graph = model("llama")
    plan = plan_of(graph, first, second, bounds=(2,))
    expansion = sharded(graph, first, second, bounds=(2,))
    check_held(graph, plan, expansion)
    new = expansion.graph
    leaving = [
        op
        for op in range(new.num_ops)
        if expansion.collective[op] == Kind.ALL_GATHER
        and (expansion.part_of_op[new.successors[op]] != expansion.part_of_op[op]).any()
    ]
    cuts = [op for op in range(new.num_ops) if new.kind[op] == "slice"]
    phases = [[new.phase[op] for op in ops].count(phase)
              for ops in (leaving, cuts) for phase in (Phase.FORWARD, Phase.BACKWARD)]  # fmt: skip
    assert phases[:2] == gathers
    assert phases[2:] == slices


def test_what_is_not_lowered_op_by_op_is_refused_by_name() -> None:
    graph = model("llama")
    plan = plan_of(graph, (2, False))
    placed = unexpanded(graph, resolve(graph, CLUSTER, plan))
    wide = Part(ops=graph.op_names, devices=("a", "b"), expert=2)
    with pytest.raises(InputError, match="part 0: expert must be 1 in a model without experts"):
        shard(placed, graph, Plan(parts=(wide,)))
    with pytest.raises(InputError, match="must divide heads of keys"):
        sharded(graph, (8, False))
    small = bert(hidden=16, heads=2, layers=2, batch=1, sequence=8, vocabulary=256)
    with pytest.raises(InputError, match="must be divided alike"):
        sharded(small, (2, False))  # its table of positions is larger, and divided instead
    torn = Plan(parts=tuple(Part(ops=ops, devices=devices, tensor=2) for ops, devices in (
        (graph.op_names[:40], ("a", "b")), (graph.op_names[40:], ("c", "d")))))  # fmt: skip
    part_of_op = np.repeat([0, 1], [40, graph.num_ops - 40]).astype(np.int32)
    with pytest.raises(InputError, match="must hold whole layers"):
        shard(replace(placed, part_of_op=part_of_op), graph, torn)


def test_without_tensor_teams_nothing_changes() -> None:
    graph = model("transformer")  # of which no layers are known
    plan = Plan(parts=(Part(ops=graph.op_names, devices=(CLUSTER.devices[0].name,), zero=1),))
    before = unexpanded(graph, resolve(graph, CLUSTER, plan))
    assert shard(before, graph, plan) is before


# At random


BUILDERS: dict[str, Callable[..., Graph]] = {"gpt": gpt, "bert": bert, "llama": llama, "vit": vit}


@st.composite
def shapes(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A name of `BUILDERS` and the sizes of a small model."""
    heads = draw(st.sampled_from([2, 4, 8]))
    shape: dict[str, Any] = {
        "hidden": heads * draw(st.sampled_from([8, 16])),
        "heads": heads,
        "layers": draw(st.integers(2, 4)),
        "batch": draw(st.integers(1, 4)),
        "precision": draw(st.sampled_from(["fp32", "bf16"])),
    }
    name = draw(st.sampled_from(sorted(BUILDERS)))
    if name == "vit":
        side = draw(st.sampled_from([48, 80]))  # 10 or 26 tokens
        return name, {**shape, "side": side, "classes": 64}
    # a vocabulary above the positions of BERT, so that its larger table is the tied one
    shape |= {"sequence": draw(st.sampled_from([8, 12, 16])), "vocabulary": 1024}
    if name == "llama":
        shape |= {"key_heads": draw(st.sampled_from([1, 2])), "intermediate": 64}
    return name, shape


teams = st.tuples(st.sampled_from([1, 2, 4]), st.booleans()).map(
    lambda team: (team[0], team[1] and team[0] > 1)
)


@given(
    shape=shapes(), first=teams, second=teams, num_parts=st.integers(1, 2), cut=st.integers(1, 5)
)
@settings(max_examples=40)
def test_random_parts_of_random_models_hold_what_they_need(
    shape: tuple[str, dict[str, Any]],
    first: tuple[int, bool],
    second: tuple[int, bool],
    num_parts: int,
    cut: int,
) -> None:
    graph = BUILDERS[shape[0]](**shape[1])
    stack = find_layers(graph)
    is_one = num_parts == 1 or stack.tied_bytes > 0 or cut >= stack.num_layers
    chosen = (first,) if is_one else (first, second)
    bounds = () if is_one else (cut,)
    assume(any(tensor > 1 for tensor, _ in chosen))
    assume(all(team_fits(stack, Team(tensor=t, sequence=s)) is None for t, s in chosen))
    plan = plan_of(graph, *chosen, bounds=bounds)
    expansion = sharded(graph, *chosen, bounds=bounds)
    check_held(graph, plan, expansion)
    for op in np.flatnonzero(expansion.cut != ProductCut.NONE).tolist():
        width = plan.parts[expansion.part_of_op[op]].tensor
        whole = graph.flops[expansion.origin[op]]
        assert isclose(expansion.graph.flops[op] * width, whole, rel_tol=1e-9)
