"""ZeRO on hand-worked steps, on captured ones against what stages cost, and on random ones."""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.cost.group_price import group_prices
from meshwright.cost.layer.price import price_layer
from meshwright.cost.layer.team import Team
from meshwright.cost.stage import Stage, stage_cost
from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.column import OP_SIZES
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.graph.stack.find import find_layers
from meshwright.plan.check import resolve
from meshwright.plan.part import Recompute
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind, Sync
from meshwright.program.bucket import fill_buckets
from meshwright.program.expand.expansion import Axis, Expansion, unexpanded
from meshwright.program.expand.rewrite import Rewrite
from meshwright.program.expand.zero import divide_state, find_spans
from meshwright.program.program import Kind
from meshwright.program.work import expand
from meshwright.units import MIB
from meshwright.zoo.shipped import read_shipped
from small import connected

W = 25.0 * MIB
"""Fills a bundle."""


def step(
    sizes: Sequence[float],
    *,
    is_grouped: bool = True,
    state_with: Phase = Phase.FORWARD,
    updates_early: bool = False,
    is_copy: bool = False,
) -> Graph:
    """Layers f0, f1, ..., backward from the last, updates u0, u1, ..., of weights of these sizes.

    Optimiser state is twice the weights. `updates_early`: each update right after its gradient.
    `is_copy`: weights 0 are a copy of weights 1, whose update reads what that of weights 0 sums.
    """
    builder = GraphBuilder("step", batch=8.0)
    count = len(sizes)
    forward, backward = [], {}
    for i, size in enumerate(sizes):
        group = i if is_grouped else -1
        extra = 2 * size if state_with is Phase.FORWARD else 0.0
        forward.append(
            builder.add_op(
                f"f{i}", group=group, flops=8.0, parameter_bytes=size, state_bytes=size + extra
            )
        )

    def update(i: int) -> int:
        size = sizes[i]
        return builder.add_op(
            f"u{i}",
            phase=Phase.UPDATE,
            split=Split.NONE,
            group=i if is_grouped else -1,
            flops=6.0,
            fixed_flops=6.0,
            bytes_read=4 * size,
            fixed_bytes_read=4 * size,
            state_bytes=2 * size if state_with is Phase.UPDATE else 0.0,
            seconds={"unit": 3.0},
        )

    made = {}
    for i in reversed(range(count)):
        group = i if is_grouped else -1
        backward[i] = builder.add_op(
            f"b{i}", phase=Phase.BACKWARD, group=group, partner=forward[i], flops=16.0
        )
        if updates_early:
            made[i] = update(i)
    for i in range(count):
        if not updates_early:
            made[i] = update(i)
        output = builder.add_tensor(forward[i], 64.0, [backward[i]])
        if i + 1 < count:
            builder.add_use(output, forward[i + 1])
            builder.add_tensor(backward[i + 1], 64.0, [backward[i]])
        builder.add_tensor(backward[i], sizes[i], [made[i]], fixed_bytes=sizes[i], partial=True)
    if is_copy:
        builder.add_tensor(made[0], sizes[0], [made[1]], fixed_bytes=sizes[0])
    return builder.finish()


def plan_of(graph: Graph, holders: int, zero: int, microbatches: int = 1, **more: Any) -> Plan:
    devices = tuple(f"d{k}" for k in range(holders))
    part = Part(ops=graph.op_names, devices=devices, zero=zero, **more)
    schedule = Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=microbatches)
    return Plan(parts=(part,), schedule=schedule if microbatches > 1 else None)


def divided(graph: Graph, plan: Plan) -> Expansion:
    count = len({each for part in plan.parts for each in part.devices})
    return divide_state(unexpanded(graph, resolve(graph, connected(count), plan)), graph, plan)


def by_name(found: Expansion, name: str) -> int:
    return found.graph.index[name]


def read_bytes(found: Expansion, name: str) -> list[float]:
    graph = found.graph
    return [float(graph.tensor_bytes[each]) for each in graph.inputs[by_name(found, name)]]


def sources(found: Expansion, name: str) -> list[str]:
    graph = found.graph
    return [graph.op_names[graph.tensor_source[t]] for t in graph.inputs[by_name(found, name)]]


def test_zero_1_scatters_accumulated_gradients_and_gathers_what_was_updated() -> None:
    found = divided(step([W, W]), plan_of(step([W, W]), 2, 1))
    graph = found.graph
    assert graph.op_names == (
        "f0", "f1", "b1", "u1.reduce_scatter", "b0", "u0.reduce_scatter",
        "u1", "u1.all_gather", "u0", "u0.all_gather",
    )  # fmt: skip
    collectives = ["u1.reduce_scatter", "u0.reduce_scatter", "u1.all_gather", "u0.all_gather"]
    for name in collectives:
        op = by_name(found, name)
        assert graph.phase[op] == Phase.UPDATE
        assert graph.split[op] == Split.SUM
        assert found.axis[op] == Axis.HOLDERS
        assert found.origin[op] == -1
        assert graph.group[op] == -1
        assert graph.flops[op] == graph.state_bytes[op] == graph.seconds["unit"][op] == 0.0
    assert [Kind(found.collective[by_name(found, each)]).name.lower() for each in collectives] == [
        "reduce_scatter", "reduce_scatter", "all_gather", "all_gather",
    ]  # fmt: skip
    assert read_bytes(found, "u1.reduce_scatter") == [W]
    assert sources(found, "u1") == ["u1.reduce_scatter"]
    assert read_bytes(found, "u1") == [W / 2]
    assert sources(found, "u1.all_gather") == ["u1"]
    assert read_bytes(found, "u1.all_gather") == [W / 2]
    # u1, whose gradient comes first, is op 5 of the step, u0 op 4
    assert found.bundles == ((5,), (4,))
    assert found.bundle[[by_name(found, each) for each in collectives]].tolist() == [0, 1, 0, 1]
    shard = int(graph.inputs[by_name(found, "u1")][0])
    assert not graph.tensor_partial[shard]
    assert graph.fixed_tensor_bytes[shard] == W / 2
    planned = step([W, W])
    assert found.tensor_origin[shard] == planned.inputs[planned.index["u1"]][0]


def test_an_update_does_its_share_and_state_is_divided_but_weights_are_not() -> None:
    graph = divided(step([W]), plan_of(step([W]), 4, 1)).graph
    update, forward = graph.index["u0"], graph.index["f0"]
    assert (graph.flops[update], graph.fixed_flops[update]) == (1.5, 1.5)
    assert (graph.bytes_read[update], graph.fixed_bytes_read[update]) == (W, W)
    assert graph.seconds["unit"][update] == 0.75
    assert (graph.parameter_bytes[forward], graph.state_bytes[forward]) == (W, W + 2 * W / 4)
    assert graph.flops[forward] == 8.0


def test_frozen_weights_of_an_op_do_not_travel() -> None:
    planned = step([W])
    for more, gathered in ((1 / 3, W), (1.0, 2 * W)):  # twice the bytes are twice the precision
        graph = replace(planned, parameter_bytes=planned.parameter_bytes * (1 + more))
        assert read_bytes(divided(graph, plan_of(graph, 4, 1)), "u0.all_gather") == [gathered / 4]


def test_state_that_a_capture_saw_with_the_update_is_divided_there() -> None:
    planned = step([W], state_with=Phase.UPDATE)
    graph = divided(planned, plan_of(planned, 4, 3)).graph
    assert graph.state_bytes[graph.index["u0"]] == 2 * W / 4
    assert graph.state_bytes[graph.index["f0"]] == W / 4


def test_zero_2_scatters_in_every_backward() -> None:
    found = divided(step([W, W]), plan_of(step([W, W]), 2, 2))
    graph = found.graph
    assert graph.op_names == (
        "f0", "f1", "b1", "u1.reduce_scatter", "b0", "u0.reduce_scatter",
        "u1", "u1.all_gather", "u0", "u0.all_gather",
    )  # fmt: skip
    scatters = [by_name(found, each) for each in ("u1.reduce_scatter", "u0.reduce_scatter")]
    gathers = [by_name(found, each) for each in ("u1.all_gather", "u0.all_gather")]
    assert graph.phase[scatters].tolist() == [Phase.BACKWARD, Phase.BACKWARD]
    assert graph.phase[gathers].tolist() == [Phase.UPDATE, Phase.UPDATE]


def test_small_gradients_travel_together_once_the_last_is_made() -> None:
    planned = step([8.0, 16.0, 24.0])
    found = divided(planned, plan_of(planned, 2, 2))
    assert found.graph.op_names == (
        "f0", "f1", "f2", "b2", "b1", "b0", "u2.reduce_scatter",
        "u2", "u1", "u0", "u2.all_gather",
    )  # fmt: skip
    assert read_bytes(found, "u2.reduce_scatter") == [24.0, 16.0, 8.0]
    assert read_bytes(found, "u2.all_gather") == [12.0, 8.0, 4.0]
    assert found.bundles == ((8, 7, 6),)


def test_updates_between_backward_ops_move_behind_their_bundle() -> None:
    planned = step([8.0, 16.0], updates_early=True)
    assert planned.op_names == ("f0", "f1", "b1", "u1", "b0", "u0")
    found = divided(planned, plan_of(planned, 2, 1))
    assert found.graph.op_names == (
        "f0", "f1", "b1", "b0", "u1.reduce_scatter", "u1", "u0", "u1.all_gather"
    )  # fmt: skip


def test_zero_3_gathers_the_next_bundle_while_one_runs_and_keeps_the_last() -> None:
    planned = step([W, W, W])
    found = divided(planned, plan_of(planned, 2, 3))
    graph = found.graph
    # The bundle of u2 is used by f2 and then by b2: gathered once. That of u1 is gathered for
    # backward when f1 is done with it, that of u0 when b2 is done with u2's.
    assert graph.op_names == (
        "u0.all_gather.forward", "u1.all_gather.forward", "f0", "u2.all_gather.forward",
        "f1", "u1.all_gather.backward", "f2", "b2", "u0.all_gather.backward", "u2.reduce_scatter",
        "b1", "u1.reduce_scatter", "b0", "u0.reduce_scatter", "u2", "u1", "u0",
    )  # fmt: skip
    assert sources(found, "u0.all_gather.forward") == []
    assert sources(found, "u1.all_gather.forward") == []
    assert sources(found, "u2.all_gather.forward") == ["f0"]
    assert sources(found, "u1.all_gather.backward") == ["f1"]
    assert sources(found, "u0.all_gather.backward") == ["b2"]
    assert read_bytes(found, "u0.all_gather.backward") == [0.0]
    assert set(sources(found, "b2")) == {"f2", "u2.all_gather.forward"}
    assert set(sources(found, "b1")) == {"f1", "b2", "u1.all_gather.backward"}
    gathered = graph.outputs[by_name(found, "u1.all_gather.backward")]
    assert graph.tensor_bytes[gathered].tolist() == [W]
    assert graph.fixed_tensor_bytes[gathered].tolist() == [W]
    assert found.tensor_origin[gathered].tolist() == [-1]
    forward = by_name(found, "f1")
    assert (graph.parameter_bytes[forward], graph.state_bytes[forward]) == (W / 2, 3 * W / 2)


def test_microbatches_gather_every_bundle_for_backward_again() -> None:
    planned = step([W, W, W])
    found = divided(planned, plan_of(planned, 2, 3, microbatches=2))
    assert found.graph.op_names == (
        "u0.all_gather.forward", "u1.all_gather.forward", "f0", "u2.all_gather.forward",
        "f1", "u2.all_gather.backward", "f2", "u1.all_gather.backward", "b2",
        "u0.all_gather.backward", "u2.reduce_scatter", "b1", "u1.reduce_scatter", "b0",
        "u0.reduce_scatter", "u2", "u1", "u0",
    )  # fmt: skip


def test_ops_that_run_again_read_what_is_gathered_for_backward() -> None:
    planned = step([W, W, W])
    plan = plan_of(planned, 2, 3)
    rewrite = Rewrite(unexpanded(planned, resolve(planned, connected(2), plan)))
    f1, b1 = planned.index["f1"], planned.index["b1"]
    rewrite.copy_op(f1, b1 - 0.5, "again", phase=int(Phase.BACKWARD))
    found = divide_state(rewrite.done(), planned, plan)
    assert set(sources(found, "f1.again")) == {"f0", "u1.all_gather.backward"}
    assert set(sources(found, "f1")) == {"f0", "u1.all_gather.forward"}
    assert found.bundles == ((8,), (7,), (6,))  # as the planned step numbers them


def test_ops_without_groups_share_weights_with_their_partners() -> None:
    planned = step([W, W, W], is_grouped=False)
    grouped = step([W, W, W])
    found, same = (divided(each, plan_of(each, 2, 3)) for each in (planned, grouped))
    assert found.graph.op_names == same.graph.op_names
    assert found.graph.use_tensor.tolist() == same.graph.use_tensor.tolist()
    assert found.graph.use_op.tolist() == same.graph.use_op.tolist()


def test_weights_used_at_both_ends_are_gathered_for_each() -> None:
    # a b c a: two bundles lie between the uses of a; b and c alternate and stay
    uses = [(0, 7, 0), (1, 8, 0), (2, 9, 0), (3, 8, 0), (4, 9, 0), (5, 7, 0)]
    spans = find_spans(uses, keeps=True)
    assert [(each.bundle, each.ops, each.after) for each in spans] == [
        (7, [0], -1),
        (8, [1, 3], -1),
        (9, [2, 4], 0),
        (7, [5], 3),
    ]


def test_context_members_hold_the_same_weights() -> None:
    planned = step([W])
    found = divided(planned, plan_of(planned, 4, 1, context=2))
    assert read_bytes(found, "u0") == [W / 4]
    assert divided(planned, plan_of(planned, 4, 1, tensor=4)).graph is planned


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_copies_of_tied_weights_stay_whole(zero: int) -> None:
    graph = step([W, W], is_copy=True)
    found = divided(graph, plan_of(graph, 2, zero))
    assert sources(found, "u0") == ["b0"]
    assert read_bytes(found, "u0") == [W]
    assert sources(found, "u1") == ["u1.reduce_scatter", "u0"]


def test_a_step_without_zero_stays_as_it_was() -> None:
    planned = step([W])
    assert divided(planned, plan_of(planned, 4, 0)).graph is planned
    assert divided(planned, plan_of(planned, 1, 3)).graph is planned


def test_other_parts_stay_as_they_were() -> None:
    planned = step([W, W])
    first, second = (tuple(f"{each}{k}" for each in "fbu") for k in range(2))
    plan = Plan(
        parts=(
            Part(ops=first, devices=("d0", "d1"), zero=2),
            Part(ops=second, devices=("d2", "d3")),
        )
    )
    found = divided(planned, plan)
    assert [found.graph.op_names[op] for op in np.flatnonzero(found.is_collective)] == [
        "u0.reduce_scatter",
        "u0.all_gather",
    ]
    assert read_bytes(found, "u1") == [W]
    assert found.part_of_op[by_name(found, "u0.reduce_scatter")] == 0


def test_scattered_gradients_are_in_no_bucket() -> None:
    planned = step([W, W])
    plan = plan_of(planned, 2, 1)
    found = divided(planned, plan)
    placement = resolve(planned, connected(2), plan)
    expanded = resolve(found.graph, connected(2), plan_of(found.graph, 2, 1))
    assert (fill_buckets(planned, placement, plan).of_tensor >= 0).sum() == 2
    buckets = fill_buckets(found.graph, expanded, plan, found.is_collective)
    assert (buckets.of_tensor >= 0).sum() == 0


def test_weights_of_two_parts_are_refused() -> None:
    planned = step([W, W])
    parts = (
        Part(ops=("f0", "b0", "u0", "u1", "f1"), devices=("d0", "d1"), zero=1),
        Part(ops=("b1",), devices=("d2", "d3")),
    )
    plan = Plan(parts=parts)
    before = unexpanded(planned, resolve(planned, connected(4), plan))
    with pytest.raises(InputError, match="op 'b1': must be in part 0, which divides the weights"):
        divide_state(before, planned, plan)


@pytest.mark.parametrize(
    ("more", "text"),
    [({"sync": Sync.DUPLICATE}, "zero must be 0")],
)
def test_parts_whose_holders_are_others_are_refused(more: dict[str, Any], text: str) -> None:
    planned = step([W])
    with pytest.raises(InputError, match=text):
        divided(planned, plan_of(planned, 2, 1, **more))


def test_zero_3_refuses_updates_of_unknown_weights() -> None:
    builder = GraphBuilder("bare")
    back = builder.add_op("b", phase=Phase.BACKWARD)
    update = builder.add_op("u", phase=Phase.UPDATE, split=Split.NONE)
    builder.add_tensor(back, 8.0, [update], partial=True, fixed_bytes=8.0)
    graph = builder.finish()
    assert read_bytes(divided(graph, plan_of(graph, 2, 2)), "u.all_gather") == [4.0]
    with pytest.raises(InputError, match="op 'u': ZeRO 3 must know who reads the weights"):
        divided(graph, plan_of(graph, 2, 3))


def test_a_plan_is_expanded() -> None:
    planned = step([W])
    plan = plan_of(planned, 2, 1)
    found = expand(planned, resolve(planned, connected(2), plan), plan)
    assert "u0.reduce_scatter" in found.graph.index


# captured steps


@cache
def captured(name: str) -> Graph:
    return read_shipped(name)


def moved(found: Expansion, kind: Kind, phase: Phase, holders: int) -> float:
    """Bytes of all collectives of a kind, as a full message each."""
    graph = found.graph
    total = 0.0
    for op in np.flatnonzero((found.collective == kind) & (graph.phase == phase)).tolist():
        made = graph.tensor_bytes[graph.outputs[op]].sum()
        read = graph.tensor_bytes[graph.inputs[op]].sum()
        total += read if kind is Kind.REDUCE_SCATTER else made or read * holders
    return float(total)


def buffers(graph: Graph) -> float:
    """What forward ops hold beyond weights: of a capture no optimiser state."""
    forward = graph.phase == Phase.FORWARD
    return float((graph.state_bytes - graph.parameter_bytes)[forward].sum())


@pytest.mark.parametrize("name", ["gpt2", "resnet50"])
@pytest.mark.parametrize("holders", [2, 4, 8])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_captured_steps_hold_and_move_what_stages_do(name: str, holders: int, zero: int) -> None:
    graph = captured(name)
    stack = find_layers(graph)
    cluster = connected(holders)
    stage = Stage(
        layers=range(stack.num_layers),
        devices=tuple(range(holders)),
        team=Team(),
        zero=zero,
        samples=graph.batch / holders,
    )
    cost = stage_cost(stack, group_prices(cluster), stage)
    found = divided(graph, plan_of(graph, holders, zero))
    # A stage counts a copy of weights that embedding and head share, in 16 bits, with that of the
    # optimiser and two moments in 32, and a step; it divides buffers as if they were such state.
    tied = stack.tied_bytes
    copy = tied / (holders if zero == 3 else 1) + (6 * tied + 4 * (tied > 0)) / holders
    held = cost.memory.parameter_bytes + cost.memory.optimiser_bytes - copy
    held += buffers(graph) * (1 - 1 / holders)
    assert np.isclose(found.graph.state_bytes.sum(), held, rtol=1e-12)

    kind = cluster.types["unit"]
    layers = [
        price_layer(stack.kind_of(each), Team(), Recompute.NONE, kind, 1.0)
        for each in range(stack.num_layers)
    ]
    gradients = sum(each.gradient_bytes for each in layers) - tied
    parameters = sum(each.parameter_bytes for each in layers)
    when = Phase.UPDATE if zero == 1 else Phase.BACKWARD
    assert np.isclose(moved(found, Kind.REDUCE_SCATTER, when, holders), gradients)
    if zero < 3:
        assert np.isclose(moved(found, Kind.ALL_GATHER, Phase.UPDATE, holders), parameters - tied)
        return
    assert moved(found, Kind.ALL_GATHER, Phase.UPDATE, holders) == 0.0
    # The tied weights are gathered for the head, too, and with them all of their bundle; what
    # forward used last backward uses first.
    spans = [
        op
        for op in np.flatnonzero(found.collective == Kind.ALL_GATHER).tolist()
        if found.graph.op_names[op].endswith(".forward.2")
    ]
    again = sum(float(found.graph.tensor_bytes[found.graph.outputs[op]].sum()) for op in spans)
    forward = moved(found, Kind.ALL_GATHER, Phase.FORWARD, holders)
    assert np.isclose(forward, parameters - tied + again)


@pytest.mark.parametrize("name", ["gpt2", "resnet50", "bert-small", "transformer"])
@pytest.mark.parametrize("microbatches", [1, 2])
def test_at_most_two_bundles_are_gathered_at_once(name: str, microbatches: int) -> None:
    graph = captured(name)
    check_alive(divided(graph, plan_of(graph, 2, 3, microbatches)))


def check_alive(found: Expansion) -> None:
    """Gathered weights live from the gathering to the last op that reads them."""
    graph = found.graph
    alive = np.zeros((len(found.part_of_op), int(found.part_of_op.max()) + 1), dtype=int)
    for op in np.flatnonzero(found.collective == Kind.ALL_GATHER).tolist():
        for tensor in graph.outputs[op].tolist():
            last = int(graph.readers[tensor].max())
            alive[op : last + 1, found.part_of_op[op]] += 1
    assert alive.max() <= 2


def check_waits(found: Expansion) -> None:
    """In the order of ops every collective stands right after what it waits for, but for others."""
    graph = found.graph
    for op in np.flatnonzero(found.is_collective).tolist():
        last = max(graph.predecessors[op].tolist(), default=-1)
        if last < 0 or graph.phase[last] == Phase.UPDATE:
            continue
        between = np.arange(last + 1, op)
        is_other = found.is_collective[between] | (graph.phase[between] == Phase.UPDATE)
        assert is_other.all()


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_a_captured_step_scatters_each_gradient_once(zero: int) -> None:
    graph = captured("gpt2")
    found = divided(graph, plan_of(graph, 4, zero))
    check_same(graph, found, {0: 4}, {0: zero})
    check_waits(found)


# random steps


@st.composite
def random_plans(draw: st.DrawFn) -> tuple[Graph, Plan]:
    """Weights that several ops use, updates of several gradients, and one or two parts."""
    num_weights = draw(st.integers(1, 6))
    is_grouped = draw(st.booleans())
    homes = [draw(st.integers(0, 1)) for _ in range(num_weights)]
    used = [*range(num_weights)]
    if is_grouped:
        used += draw(st.lists(st.integers(0, num_weights - 1), max_size=6))
    used = draw(st.permutations(used))
    builder = GraphBuilder("random", batch=4.0)
    sizes = [draw(st.sampled_from([8.0, W / 2, W, 3 * W])) for _ in range(num_weights)]
    first = {weight: place for place, weight in reversed(list(enumerate(used)))}
    forward, outputs = [], []
    for place, weight in enumerate(used):
        size = sizes[weight] if first[weight] == place else 0.0
        op = builder.add_op(
            f"f{place}",
            group=weight if is_grouped else -1,
            parameter_bytes=size,
            state_bytes=size * draw(st.sampled_from([1.0, 3.0])),
            flops=1.0,
        )
        forward.append(op)
        outputs.append(builder.add_tensor(op, 16.0))
        if place:
            builder.add_use(outputs[draw(st.integers(0, place - 1))], op)
    gradients: dict[int, list[int]] = {}
    early = draw(st.booleans())
    updated: list[int] = []
    flow = outputs[-1]

    def update(weight: int) -> None:
        op = builder.add_op(
            f"u{weight}",
            phase=Phase.UPDATE,
            split=Split.NONE,
            group=weight if is_grouped else -1,
            flops=2.0,
            fixed_flops=2.0,
            state_bytes=draw(st.sampled_from([0.0, 8.0])),
            seconds={"unit": 1.0},
        )
        for tensor in gradients[weight]:
            builder.add_use(tensor, op)
        updated.append(op)

    for place in reversed(range(len(used))):
        weight = used[place]
        op = builder.add_op(
            f"b{place}",
            phase=Phase.BACKWARD,
            group=weight if is_grouped else -1,
            partner=forward[place],
            flops=2.0,
        )
        builder.add_use(flow, op)
        flow = builder.add_tensor(op, 16.0)
        builder.add_use(outputs[place], op)
        if updated and draw(st.integers(0, 9)) == 0:
            builder.add_tensor(updated[-1], 8.0, [op])
        if weight not in gradients or draw(st.booleans()):
            size = sizes[weight]
            tensor = builder.add_tensor(op, size, partial=True, fixed_bytes=size)
            gradients.setdefault(weight, []).append(tensor)
        if early and first[weight] == place:
            update(weight)
    for weight in range(num_weights):
        if not early:
            update(weight)
    graph = builder.finish()
    home = {f"{kind}{place}": homes[w] for place, w in enumerate(used) for kind in "fb"}
    home |= {f"u{weight}": homes[weight] for weight in range(num_weights)}
    parts = []
    for part in sorted(set(homes)):
        ops = tuple(name for name in graph.op_names if home[name] == part)
        devices = tuple(f"d{4 * part + k}" for k in range(draw(st.sampled_from([1, 2, 4]))))
        parts.append(Part(ops=ops, devices=devices, zero=draw(st.integers(0, 3))))
    return graph, Plan(parts=tuple(parts))


def check_same(
    planned: Graph, found: Expansion, holders: dict[int, int], zero: dict[int, int]
) -> None:
    """Every op is there once and reads what it did, gradients as shards, weights where gathered."""
    graph = found.graph
    own = np.flatnonzero(~found.is_collective)
    assert sorted(found.origin[own].tolist()) == list(range(planned.num_ops))
    assert set(found.origin[found.is_collective].tolist()) <= {-1}
    for op in own.tolist():
        origin = int(found.origin[op])
        part = int(found.part_of_op[op])
        count = holders[part] if zero[part] else 1
        assert graph.op_names[op] == planned.op_names[origin]
        reads = graph.inputs[op]
        known = found.tensor_origin[reads]
        assert sorted(known[known >= 0].tolist()) == planned.inputs[origin].tolist()
        gathered = reads[known < 0]
        for tensor in reads[known >= 0].tolist():
            before = int(found.tensor_origin[tensor])
            is_gradient = planned.tensor_partial[before] and planned.phase[origin] == Phase.UPDATE
            is_divided = bool(is_gradient and count > 1)
            source = int(graph.tensor_source[tensor])
            assert (found.collective[source] == Kind.REDUCE_SCATTER) == is_divided
            share = count if is_divided else 1
            assert graph.tensor_bytes[tensor] == planned.tensor_bytes[before] / share
            assert graph.tensor_partial[tensor] == (planned.tensor_partial[before] and share == 1)
        is_user = planned.phase[origin] != Phase.UPDATE and zero[part] == 3 and count > 1
        if not is_user:
            assert not len(gathered)
        is_update = planned.phase[origin] == Phase.UPDATE
        for name in set(OP_SIZES) - {"parameter_bytes", "state_bytes"}:
            size = getattr(planned, name)[origin] / (count if is_update and name != "calls" else 1)
            assert getattr(graph, name)[op] == size
    scattered = graph.use_tensor[found.collective[graph.use_op] == Kind.REDUCE_SCATTER]
    assert len(set(scattered.tolist())) == len(scattered)


@settings(max_examples=150, deadline=None)
@given(random_plans())
def test_random_steps_keep_all_they_did(drawn: tuple[Graph, Plan]) -> None:
    graph, plan = drawn
    before = unexpanded(graph, resolve(graph, connected(8), plan))
    found = divide_state(before, graph, plan)
    holders = {number: len(part.devices) for number, part in enumerate(plan.parts)}
    zero = {number: part.zero for number, part in enumerate(plan.parts)}
    check_same(graph, found, holders, zero)
    check_alive(found)
    check_waits(found)
    check_gathered(graph, found, [n for n in zero if zero[n] == 3 and holders[n] > 1])


def check_gathered(planned: Graph, found: Expansion, parts: list[int]) -> None:
    """Where ZeRO 3 divides weights, every op that uses some reads one gathering of them."""
    graph = found.graph
    for op in np.flatnonzero(~found.is_collective & np.isin(found.part_of_op, parts)).tolist():
        if graph.phase[op] == Phase.UPDATE:
            continue
        sources = graph.predecessors[op]
        gathers = sources[found.collective[sources] == Kind.ALL_GATHER]
        assert len(gathers) == 1
        members = list(found.bundles[found.bundle[gathers[0]]])
        if graph.group[op] >= 0:
            moved_with = planned.group[members]
            assert graph.group[op] in moved_with
            held = planned.parameter_bytes[np.isin(planned.group, moved_with)].sum()
            size = graph.tensor_bytes[graph.outputs[int(gathers[0])]].sum()
            assert np.isclose(size, held)
