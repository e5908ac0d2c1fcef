"""Merging element-wise ops: which become one, and what that one costs."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graph_strategies import ARRAYS, assert_identical
from hypothesis import given
from hypothesis import strategies as st

from meshwright.graph.build import GraphBuilder
from meshwright.graph.fuse import (
    MAX_OPS,
    call_as_fused,
    find_sets,
    fuse_elementwise,
    is_replayed_alone,
)
from meshwright.graph.graph import OP_LINES, Graph, Phase, Split, read_graph
from meshwright.source import load_graph
from meshwright.zoo.shipped import FOLDER, SUFFIX, shipped_names

WRITTEN = ("mlp", "unet")
"""The shipped graphs that are from formulas, whose ops have names of their own."""


class Step(GraphBuilder):
    """Ops that each make one tensor; what they read and write is that of their tensors."""

    def __init__(self) -> None:
        super().__init__("step", batch=2)
        self.tensor: dict[str, int] = {}

    def op(
        self, name: str, kind: str, reads: Sequence[str] = (), *, size: float = 100, **columns: Any
    ) -> int:
        """Add an op whose tensor has `size` bytes; those without readers come from a product."""
        read = sum(self._tensors[self.tensor[each]][1] for each in reads)
        columns = {"bytes_read": read, "bytes_written": size, "flops": 7, "calls": 2} | columns
        number = self.add_op(name, kind=kind, **columns)
        for each in reads:
            self.add_use(self.tensor[each], number)
        self.tensor[name] = self.add_tensor(number, size)
        return number


def sets(graph: Graph) -> list[list[str]]:
    """The names of the ops that become one."""
    label = find_sets(graph)
    members = ([graph.op_names[op] for op in np.flatnonzero(label == k)] for k in np.unique(label))
    return [each for each in members if len(each) > 1]


def costs(graph: Graph, name: str) -> tuple[float, float]:
    """Bytes read and written."""
    op = graph.index[name]
    return float(graph.bytes_read[op]), float(graph.bytes_written[op])


def edges(graph: Graph) -> set[tuple[str, str]]:
    source, target = graph.edges
    return {
        (graph.op_names[a], graph.op_names[b])
        for a, b in zip(source.tolist(), target.tolist(), strict=True)
    }


def test_a_chain_reads_its_first_input_and_writes_its_last_output() -> None:
    step = Step()
    step.op("before", "mm")
    step.op("scale", "mul", ["before"])
    step.op("squash", "strided_tanh", ["scale"], precision="fp32")
    step.op("shift", "add_", ["squash"], precision="bf16", module="layer")
    step.op("after", "mm", ["shift"])
    fused = fuse_elementwise(step.finish())
    assert fused.op_names == ("before", "shift", "after")
    assert fused.kind == ("mm", "fused", "mm")
    assert fused.precision[1] == "bf16"
    assert fused.module[1] == "layer"
    assert costs(fused, "shift") == (100, 100)  # each of three read and wrote 100
    assert fused.flops.tolist() == [7, 21, 7]
    assert fused.calls.tolist() == [1, 1, 1]
    assert edges(fused) == {("before", "shift"), ("shift", "after")}
    assert fused.tensor_bytes.tolist() == [100, 100, 100]


def test_what_others_read_is_written_once_and_not_read_inside() -> None:
    step = Step()
    step.op("before", "mm")
    step.op("top", "mul", ["before"])
    step.op("left", "exp", ["top"], size=30)
    step.op("right", "sqrt", ["top"], size=40)
    step.op("bottom", "add", ["left", "right"], size=50)
    step.op("outside", "mm", ["top"])
    graph = step.finish()
    assert sets(graph) == [["top", "left", "right", "bottom"]]
    fused = fuse_elementwise(graph)
    assert costs(fused, "bottom") == (100, 100 + 50)  # "before"; "top" for the product, "bottom"
    assert edges(fused) == {("before", "bottom"), ("bottom", "outside")}
    assert sorted(fused.tensor_bytes.tolist()) == [50, 100, 100, 100]


def test_what_several_read_is_read_once() -> None:
    step = Step()
    step.op("before", "mm")
    step.op("square", "pow", ["before"])
    step.op("norm", "mean", ["square"], size=4)
    step.op("scaled", "mul", ["before", "norm"])
    fused = fuse_elementwise(step.finish())
    assert fused.op_names == ("before", "scaled")
    assert costs(fused, "scaled") == (100, 100)


def test_weights_that_ops_read_beside_tensors_are_still_read() -> None:
    step = Step()
    step.op("before", "mm")
    step.op("scale", "mul", ["before"], bytes_read=100 + 8, parameter_bytes=8, state_bytes=8)
    step.op("shift", "add", ["scale"], bytes_read=100 + 6, parameter_bytes=6, state_bytes=7)
    fused = fuse_elementwise(step.finish())
    assert costs(fused, "shift") == (100 + 8 + 6, 100)
    assert fused.parameter_bytes[1] == 14
    assert fused.state_bytes[1] == 15


def test_an_op_on_a_part_of_a_tensor_reads_no_more_than_it_did() -> None:
    step = Step()
    step.op("before", "mm")
    step.op("wide", "mul", ["before"])
    step.op("narrow", "tanh", ["wide"], bytes_read=25, size=25)  # a quarter of it
    fused = fuse_elementwise(step.finish())
    assert costs(fused, "narrow") == (100, 25)


def test_a_result_that_nobody_reads_is_written() -> None:
    step = Step()
    step.op("before", "mm")
    step.op("dropped", "native_dropout", ["before"])
    step.add_tensor(1, 25)  # the mask
    step.op("after", "add", ["dropped"])
    step._sizes["bytes_written"][1] += 25
    fused = fuse_elementwise(step.finish())
    assert costs(fused, "after") == (100, 25 + 100)
    assert fused.num_tensors == 3


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"phase": Phase.FORWARD}, {"phase": Phase.BACKWARD}),
        ({"phase": Phase.UPDATE}, {"phase": Phase.UPDATE}),
        ({"split": Split.BATCH}, {"split": Split.SUM}),
        ({"split": Split.NONE}, {"split": Split.BATCH}),
        ({"group": 1}, {"group": 2}),
        ({"kind": "sum"}, {"kind": "native_layer_norm"}),
        ({"kind": "mm"}, {"kind": "relu"}),
        ({"kind": "native_batch_norm"}, {"kind": "relu"}),
        ({"kind": "relu"}, {"kind": "strided_cat"}),
        ({"kind": "relu"}, {"kind": "_fused_adamw_"}),
    ],
)
def test_some_stay_apart(first: dict[str, Any], second: dict[str, Any]) -> None:
    step = Step()
    step.op("first", **({"kind": "mul"} | first))
    step.op("second", reads=["first"], **({"kind": "mul"} | second))
    graph = step.finish()
    assert fuse_elementwise(graph) is graph


@pytest.mark.parametrize(("groups", "merged"), [((3, -1), 3), ((-1, 3), 3), ((3, 3), 3)])
def test_a_group_takes_in_ops_without_one(groups: tuple[int, int], merged: int) -> None:
    step = Step()
    step.op("first", "mul", group=groups[0])
    step.op("second", "add", ["first"], group=groups[1])
    assert fuse_elementwise(step.finish()).group.tolist() == [merged]


def test_ops_of_two_groups_are_not_joined_by_one_without() -> None:
    step = Step()
    step.op("first", "mul", group=1)
    step.op("middle", "mul", ["first"])
    step.op("last", "mul", ["middle"], group=2)
    assert sets(step.finish()) == [["first", "middle"]]


def test_no_cycle_arises() -> None:
    # start -> product -> end and start -> near -> end: the product would have to run in the middle.
    step = Step()
    step.op("start", "mul")
    step.op("near", "exp", ["start"])
    step.op("product", "mm", ["start"])
    step.op("end", "add", ["near", "product"])
    assert sets(step.finish()) == [["start", "near"]]


def test_an_op_waits_for_its_only_reader() -> None:
    # A mask made early, read late: with its reader, though that is deeper.
    step = Step()
    step.op("mask", "eq", size=10)
    step.op("first", "mm")
    step.op("second", "mm", ["first"])
    step.op("masked", "masked_fill", ["second", "mask"])
    fused = fuse_elementwise(step.finish())
    assert fused.op_names == ("first", "second", "masked")
    assert costs(fused, "masked") == (100, 100)


def test_branches_of_equal_depth_merge_where_they_meet() -> None:
    step = Step()
    step.op("one", "mm")
    step.op("two", "mm")
    step.op("left", "silu", ["one"])
    step.op("right", "sigmoid", ["two"])
    step.op("product", "mul", ["left", "right"])
    assert sets(step.finish()) == [["left", "right", "product"]]


def test_backward_ops_that_read_no_gradient_do_not_hold_up_forward() -> None:
    # "derivative" needs nothing but "early"; it must not count as the nearest reader of it.
    step = Step()
    step.op("early", "mul", size=10)
    step.op("first", "mm")
    step.op("second", "mm", ["first"])
    step.op("sum", "add", ["second", "early"])
    step.op("derivative", "pow", ["early"], phase=Phase.BACKWARD)
    assert sets(step.finish()) == [["early", "sum"]]


def test_a_norm_takes_in_the_residual_before_it_although_others_read_it() -> None:
    # TorchInductor makes one kernel of dropout, add and layer norm (torch 2.11, a block of a
    # transformer): it writes the sum for the next residual and for backward.
    step = Step()
    step.op("residual", "mm")
    step.op("projected", "mm", ["residual"])
    step.op("dropped", "native_dropout", ["projected"])
    step.op("sum", "add", ["residual", "dropped"])
    step.op(
        "norm", "native_layer_norm", ["sum"], product_depth=12, product_rows=3, product_alignment=16
    )
    step.op("cast", "_to_copy", ["norm"], size=50, product_rows=1)
    step.op("after", "mm", ["cast"])
    step.op("next", "add", ["sum", "after"])
    graph = step.finish()
    assert sets(graph) == [["dropped", "sum", "norm", "cast"]]
    fused = fuse_elementwise(graph)
    op = fused.index["cast"]
    assert fused.kind[op] == "fused"  # generated code moves its bytes as element-wise ops do
    assert costs(fused, "cast") == (100 + 100, 100 + 50)  # "residual", "projected"; "sum", "cast"
    assert fused.product_depth[op] == 12
    assert fused.product_rows[op] == 3
    assert fused.product_alignment[op] == 16


def test_a_kernel_has_one_reduction() -> None:
    step = Step()
    step.op("before", "mm")
    step.op("scores", "mul", ["before"])
    step.op("weights", "spatial__softmax", ["scores"])
    step.op("scaled", "mul", ["weights"])
    step.op("total", "sum", ["scaled"])
    step.op("root", "sqrt", ["total"])
    graph = step.finish()
    assert sets(graph) == [["scores", "weights", "scaled"], ["total", "root"]]
    assert fuse_elementwise(graph).kind == ("mm", "spatial__softmax", "sum")


def test_nothing_merges_across_a_sum_over_replicas() -> None:
    # Each replica has a part of "total" only, and "scaled" needs all of it.
    step = Step()
    step.op("values", "mul")
    total = step.op("total", "mean", ["values"], size=0)
    partial = step.add_tensor(total, 4, partial=True)
    scaled = step.op("scaled", "mul", ["values"])
    step.add_use(partial, scaled)
    assert sets(step.finish()) == [["values", "total"]]


def test_sums_of_partial_gradients_merge() -> None:
    step = Step()
    for name, reads in (("first", []), ("second", ["first"])):
        step.op(name, "add", reads, phase=Phase.BACKWARD, split=Split.SUM)
    graph = step.finish()
    assert graph.tensor_partial.all()
    assert sets(graph) == [["first", "second"]]


def test_kernels_are_bounded() -> None:
    step = Step()
    names = [f"op{k}" for k in range(MAX_OPS + 10)]
    for k, name in enumerate(names):
        step.op(name, "mul", names[k - 1 : k] if k else [])
    assert [len(each) for each in sets(step.finish())] == [MAX_OPS, 10]


def test_a_merged_backward_op_belongs_to_the_first_of_its_forward_ops() -> None:
    step = Step()
    step.op("first", "mm")
    step.op("squashed", "tanh", ["first"])
    step.op("scaled", "mul", ["squashed"])
    step.op("second", "mm", ["scaled"])
    backward = {"phase": Phase.BACKWARD}
    step.op("second'", "mm", ["second"], partner=3, **backward)
    step.op("sum'", "add", ["second'"], partner=3, **backward)
    step.op("scaled'", "mul", ["sum'"], partner=2, **backward)
    step.op("squashed'", "tanh_backward", ["scaled'"], partner=1, **backward)
    fused = fuse_elementwise(step.finish())
    assert fused.op_names == ("first", "scaled", "second", "second'", "squashed'")
    assert fused.partner.tolist() == [-1, -1, -1, 2, 1]


def test_memory_of_a_merged_op() -> None:
    step = Step()
    step.op("first", "mul", saved_bytes=3, workspace_bytes=5)
    step.op("second", "mul", ["first"], saved_bytes=4, workspace_bytes=2)
    fused = fuse_elementwise(step.finish())
    assert fused.saved_bytes.tolist() == [7]
    assert fused.workspace_bytes.tolist() == [5]


def test_a_merged_op_has_no_measured_time() -> None:
    step = Step()
    step.op("before", "mm", seconds={"h200": 1.0})
    step.op("first", "mul", ["before"], seconds={"h200": 2.0, "cpu": 3.0})
    step.op("second", "mul", ["first"], seconds={"h200": 2.0, "cpu": 4.0})
    seconds = fuse_elementwise(step.finish()).seconds
    assert list(seconds) == ["h200"]
    assert seconds["h200"][0] == 1.0
    assert math.isnan(seconds["h200"][1])


def test_ops_that_were_not_captured_stay_so() -> None:
    step = Step()
    step.op("first", "mul", calls=0)
    step.op("second", "mul", ["first"], calls=0)
    assert fuse_elementwise(step.finish()).calls.tolist() == [0]


KINDS = ("mm", "add", "strided_mul", "relu_", "native_dropout", "sum", "_softmax", "cat")
sizes = st.integers(0, 1000)


@st.composite
def steps(draw: st.DrawFn, max_ops: int = 14) -> Graph:
    """Graphs of few kinds, phases, splits and groups, so that much merges and much must not."""
    num_ops = draw(st.integers(1, max_ops))
    builder = GraphBuilder("step", draw(st.integers(1, 8)))
    for op in range(num_ops):
        others = ("parameter_bytes", "state_bytes", "saved_bytes", "workspace_bytes", "calls")
        quantities: dict[str, Any] = {name: draw(sizes) for name in (*OP_LINES, *others)}
        for name in OP_LINES:
            quantities[f"fixed_{name}"] = draw(st.integers(0, quantities[name]))
        builder.add_op(
            f"op{op}",
            kind=draw(st.sampled_from(KINDS)),
            phase=draw(st.sampled_from([Phase.FORWARD] * 4 + [Phase.BACKWARD, Phase.UPDATE])),
            split=draw(st.sampled_from([Split.BATCH] * 5 + [Split.SUM, Split.NONE])),
            group=draw(st.sampled_from([-1, -1, -1, 0, 1])),
            partner=draw(st.integers(-1, num_ops - 1)),
            seconds=draw(st.dictionaries(st.just("any"), st.floats(0, 1))),
            **quantities,
        )
    for _ in range(draw(st.integers(0, 2 * num_ops))):
        source = draw(st.integers(0, num_ops - 1))
        later = range(source + 1, num_ops)
        targets = draw(st.lists(st.sampled_from(later), max_size=3)) if later else []
        size = draw(sizes)
        builder.add_tensor(
            source,
            size,
            targets,
            fixed_bytes=draw(st.integers(0, size)),
            partial=draw(st.sampled_from([False, False, False, True])),
        )
    return builder.finish()


@given(steps())
def test_only_ops_that_may_share_a_kernel_do(graph: Graph) -> None:
    for names in sets(graph):
        ops = [graph.index[name] for name in names]
        kinds = [graph.kind[op] for op in ops]
        assert not {"mm", "cat"} & set(kinds)
        assert sum(kind in ("sum", "_softmax") for kind in kinds) <= 1
        assert len({(graph.phase[op], graph.split[op]) for op in ops}) == 1
        assert graph.phase[ops[0]] != Phase.UPDATE
        assert len({int(graph.group[op]) for op in ops} - {-1}) <= 1
        assert _is_connected(graph, ops)
        for tensor in np.flatnonzero(graph.tensor_partial).tolist():
            if graph.tensor_source[tensor] in ops and set(graph.readers[tensor]) & set(ops):
                assert graph.phase[ops[0]] == Phase.BACKWARD
                assert graph.split[ops[0]] == Split.SUM


def _is_connected(graph: Graph, ops: list[int]) -> bool:
    reached, waiting = {ops[0]}, [ops[0]]
    while waiting:
        op = waiting.pop()
        near = {*graph.successors[op].tolist(), *graph.predecessors[op].tolist()}
        fresh = (near & set(ops)) - reached
        reached |= fresh
        waiting.extend(fresh)
    return reached == set(ops)


@given(steps())
def test_totals_are_kept_and_bytes_never_grow(graph: Graph) -> None:
    fused = fuse_elementwise(graph)  # its checks, of cycles too, have passed
    for name in ("flops", "fixed_flops", "parameter_bytes", "state_bytes", "saved_bytes"):
        assert getattr(fused, name).sum() == pytest.approx(getattr(graph, name).sum())
    label = find_sets(graph)
    for last in np.unique(label).tolist():
        members = label == last
        op = fused.index[graph.op_names[last]]
        for name in ("bytes_read", "bytes_written"):
            whole, fixed = getattr(graph, name), getattr(graph, f"fixed_{name}")
            assert getattr(fused, name)[op] <= whole[members].sum() + 1e-9
            assert getattr(fused, f"fixed_{name}")[op] <= fixed[members].sum() + 1e-9
            if members.sum() == 1:
                assert getattr(fused, name)[op] == whole[last]
    assert fused.tensor_bytes.sum() <= graph.tensor_bytes.sum()


@given(steps())
def test_bytes_are_those_counted_tensor_by_tensor(graph: Graph) -> None:
    fused = fuse_elementwise(graph)
    label = find_sets(graph)
    for last in np.unique(label).tolist():
        members = np.flatnonzero(label == last).tolist()
        if len(members) > 1:
            op = fused.index[graph.op_names[last]]
            read, written = _count_moved(graph, set(members))
            assert fused.bytes_read[op] == pytest.approx(read, abs=1e-6)
            assert fused.bytes_written[op] == pytest.approx(written, abs=1e-6)


def _count_moved(graph: Graph, members: set[int]) -> tuple[float, float]:
    """The same bytes by the rule, in loops: the growing part and the fixed part for themselves."""
    read = written = 0.0
    fixed = graph.fixed_tensor_bytes
    for size, prefix in ((graph.tensor_bytes - fixed, ""), (fixed, "fixed_")):
        moved = {}
        for name in ("bytes_read", "bytes_written"):
            moved[name] = getattr(graph, f"fixed_{name}")
            if not prefix:
                moved[name] = getattr(graph, name) - moved[name]
        largest: dict[int, float] = {}
        for op in members:
            tensors = graph.inputs[op].tolist()
            total = size[tensors].sum()
            share = min(1.0, moved["bytes_read"][op] / total) if total else 0.0
            read += moved["bytes_read"][op] - share * total  # weights
            for tensor in tensors:
                if graph.tensor_source[tensor] not in members:
                    largest[tensor] = max(largest.get(tensor, 0.0), share * size[tensor])
            tensors = graph.outputs[op].tolist()
            total = size[tensors].sum()
            share = min(1.0, moved["bytes_written"][op] / total) if total else 0.0
            written += moved["bytes_written"][op] - share * total
            for tensor in tensors:
                readers = set(graph.readers[tensor].tolist())
                if not readers or readers - members:
                    written += share * size[tensor]
        read += sum(largest.values())
    return read, written


@given(steps())
def test_edges_between_merged_ops_are_those_of_their_members(graph: Graph) -> None:
    fused = fuse_elementwise(graph)
    owner = [graph.op_names[last] for last in find_sets(graph).tolist()]
    source, target = graph.edges
    expected = {(owner[a], owner[b]) for a, b in zip(source.tolist(), target.tolist(), strict=True)}
    assert edges(fused) == {(a, b) for a, b in expected if a != b}


@given(steps(), st.sampled_from([0.5, 1.0, 3.0, 16.0]))
def test_merging_and_another_batch_commute(graph: Graph, samples: float) -> None:
    first = fuse_elementwise(graph).at_batch(samples)
    second = fuse_elementwise(graph.at_batch(samples))
    assert first.op_names == second.op_names
    assert first.kind == second.kind
    for name in ARRAYS:
        np.testing.assert_allclose(
            getattr(first, name), getattr(second, name), rtol=1e-9, atol=1e-6, err_msg=name
        )


@given(steps())
def test_merging_is_the_same_every_time(graph: Graph) -> None:
    assert_identical(fuse_elementwise(graph), fuse_elementwise(graph))


@pytest.mark.parametrize("name", [name for name in shipped_names() if name not in WRITTEN])
def test_captured_steps_have_fewer_ops_and_bytes(name: str) -> None:
    graph = read_graph(FOLDER / f"{name}{SUFFIX}")
    fused = fuse_elementwise(graph)
    assert fused.num_ops < graph.num_ops
    assert fused.bytes_read.sum() < graph.bytes_read.sum()
    assert fused.bytes_written.sum() < graph.bytes_written.sum()
    assert fused.flops.sum() == pytest.approx(graph.flops.sum())
    updates = graph.phase == Phase.UPDATE
    assert np.sum(fused.phase == Phase.UPDATE) == np.sum(updates)


def test_ops_of_a_compiled_run_are_called_as_the_merged_ones() -> None:
    graph = load_graph("bert-small")
    merged = fuse_elementwise(graph)
    timed = replace(graph, seconds={"h100": np.ones(graph.num_ops)})
    called = call_as_fused(timed)
    assert {
        name for name, calls in zip(called.op_names, called.calls.tolist(), strict=True) if calls
    } == {name for name, calls in zip(merged.op_names, merged.calls.tolist(), strict=True) if calls}
    assert is_replayed_alone(called)
    assert is_replayed_alone(merged)
    assert not is_replayed_alone(graph)
    # What has no time in the run was in none of its regions.
    unknown = np.full(graph.num_ops, np.nan)
    for seconds in ({"h100": unknown}, {}):
        apart = call_as_fused(replace(graph, seconds=seconds))
        assert apart.calls.tolist() == np.minimum(graph.calls, 1.0).tolist()
