"""The builder's order, and every rule that a Graph checks."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from graph_strategies import graphs
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import OP_LINES, Graph, Phase, Split


def diamond() -> Graph:
    """a -> b, c -> d; a's one tensor of 10 bytes is read by b and c."""
    builder = GraphBuilder("diamond", batch=4)
    a, b, c, d = (builder.add_op(name, flops=8.0) for name in "abcd")
    builder.add_tensor(a, 10.0, [b, c])
    builder.add_tensor(b, 20.0, [d])
    builder.add_tensor(c, 30.0, [d])
    return builder.finish()


def test_ops_added_backwards_end_up_in_topological_order() -> None:
    builder = GraphBuilder("chain")
    last, middle, first = (builder.add_op(name) for name in ("last", "middle", "first"))
    builder.add_tensor(first, 1.0, [middle])
    builder.add_tensor(middle, 2.0, [last])
    graph = builder.finish()
    assert graph.op_names == ("first", "middle", "last")
    assert graph.tensor_source.tolist() == [0, 1]
    assert graph.tensor_bytes.tolist() == [1.0, 2.0]
    assert graph.use_op.tolist() == [1, 2]


def test_the_order_keeps_to_the_order_of_adding_where_it_can() -> None:
    builder = GraphBuilder("two chains")
    a, b, c = (builder.add_op(name) for name in "abc")
    builder.add_tensor(c, 1.0, [a])
    assert builder.finish().op_names == ("b", "c", "a")
    assert b == 1


def test_partners_follow_the_new_order() -> None:
    builder = GraphBuilder("pair")
    backward = builder.add_op("backward", phase=Phase.BACKWARD, partner=1)
    forward = builder.add_op("forward")
    builder.add_tensor(forward, 1.0, [backward])
    graph = builder.finish()
    assert graph.partner.tolist() == [-1, 0]


@pytest.mark.parametrize("length", [1, 2, 9])
def test_a_cycle_is_named(length: int) -> None:
    builder = GraphBuilder("ring")
    ops = [builder.add_op(f"op{i}") for i in range(length)]
    for i in range(length):
        builder.add_tensor(ops[i], 1.0, [ops[(i + 1) % length]])
    with pytest.raises(InputError, match=r"graph ring: must have no cycle, found 'op\d' -> "):
        builder.finish()


def test_the_cycle_named_is_one_of_the_graph() -> None:
    builder = GraphBuilder("tail")  # a -> b -> c -> b, c -> d: only b and c are on the cycle
    a, b, c, d = (builder.add_op(name) for name in "abcd")
    for source, target in ((a, b), (b, c), (c, b), (c, d)):
        builder.add_tensor(source, 1.0, [target])
    with pytest.raises(InputError, match=r"'b' -> 'c' -> 'b'|'c' -> 'b' -> 'c'"):
        builder.finish()


def test_a_tensor_scales_as_its_op_splits_unless_said() -> None:
    builder = GraphBuilder("splits")
    for split in Split:
        builder.add_tensor(builder.add_op(split.name, split=split), 6.0)
    graph = builder.finish()
    assert graph.fixed_tensor_bytes.tolist() == [6.0, 0.0, 6.0]  # none, batch, sum
    assert graph.tensor_partial.tolist() == [False, False, True]


def test_adjacency_of_the_diamond() -> None:
    graph = diamond()
    assert [graph.successors[i].tolist() for i in range(4)] == [[1, 2], [3], [3], []]
    assert [graph.predecessors[i].tolist() for i in range(4)] == [[], [0], [0], [1, 2]]
    assert [graph.inputs[i].tolist() for i in range(4)] == [[], [0], [0], [1, 2]]
    assert [graph.outputs[i].tolist() for i in range(4)] == [[0], [1], [2], []]
    assert [graph.readers[i].tolist() for i in range(3)] == [[1, 2], [3], [3]]
    assert graph.index["c"] == 2
    assert len(graph.successors) == 4


def test_arrays_are_read_only() -> None:
    graph = diamond()
    with pytest.raises(ValueError, match="read-only"):
        graph.flops[0] = 1.0


def array(*values: float) -> Any:
    return np.array(values, dtype=np.float64)


def ints(*values: int) -> Any:
    return np.array(values, dtype=np.int32)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"batch": 0.0}, "batch must be positive, got 0"),
        ({"batch": float("nan")}, "batch must be positive, got nan"),
        ({"op_names": ("a", "b", "a", "d")}, "op names must be unique, 'a' stands twice"),
        ({"kind": ("x",)}, r"kind must have one entry an op \(4\), got 1"),
        ({"flops": array(1, 2)}, r"flops must have one entry an op \(4\), got 2"),
        ({"flops": array(1, -2, 0, 0)}, "op 'b': flops must be finite and not negative, got -2"),
        ({"state_bytes": array(0, 0, np.nan, 0)}, "op 'c': state_bytes must be finite"),
        ({"saved_bytes": array(0, 0, np.inf, 0)}, "op 'c': saved_bytes must be finite"),
        ({"fixed_flops": array(0, 9, 0, 0)}, "op 'b': fixed_flops must not exceed flops, got 9"),
        (
            {"fixed_tensor_bytes": array(0, 0, 31)},
            "tensor 2 of op 'c': fixed_tensor_bytes must not",
        ),
        ({"seconds": {"h200": array(0, 1, 2)}}, "seconds of 'h200' must have one entry an op"),
        ({"seconds": {"h200": array(0, -1, 2, 3)}}, "op 'b': seconds on 'h200' must not be neg"),
        ({"tensor_bytes": array(1, 2)}, r"tensor_bytes must have one entry a tensor \(3\)"),
        ({"tensor_bytes": array(1, 2, np.nan)}, "tensor 2 of op 'c': tensor_bytes must be finite"),
        ({"tensor_partial": np.zeros(2, dtype=np.bool_)}, "tensor_partial must have one entry"),
        (
            {"phase": np.array([0, 0, 3, 0], dtype=np.int8)},
            r"phase\[2\] must be from 0 to 2, got 3",
        ),
        (
            {"split": np.array([0, 0, 3, 0], dtype=np.int8)},
            r"split\[2\] must be from 0 to 2, got 3",
        ),
        ({"group": ints(0, -2, 0, 0)}, r"group\[1\] must be from -1"),
        ({"partner": ints(-1, -1, -1, 4)}, r"partner\[3\] must be from -1 to 3, got 4"),
        ({"tensor_source": ints(0, 1, 4)}, r"tensor_source\[2\] must be from 0 to 3, got 4"),
        ({"use_tensor": ints(0, 0, 1, 3)}, r"use_tensor\[3\] must be from 0 to 2, got 3"),
        ({"use_tensor": ints(0, 1, 0, 2)}, "use_tensor must be sorted"),
        ({"use_op": ints(1, 2, 3)}, "use_op and use_tensor must be equally long"),
        ({"use_op": ints(1, 2, 3, -1)}, r"use_op\[3\] must be from 0 to 3, got -1"),
        ({"use_op": ints(0, 2, 3, 3)}, "must stand in a topological order, but 'a' reads"),
    ],
)
def test_a_broken_rule_is_named_in_one_line(change: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        replace(diamond(), **change)
    assert "\n" not in str(caught.value)


def test_at_twice_the_batch_only_the_variable_part_doubles() -> None:
    builder = GraphBuilder("one", batch=4)
    op = builder.add_op(
        "op", flops=10.0, fixed_flops=2.0, saved_bytes=3.0, state_bytes=5.0, seconds={"any": 7.0}
    )
    none = builder.add_op("update", split=Split.NONE, workspace_bytes=9.0, seconds={"any": 1.0})
    builder.add_tensor(op, 100.0, [none], fixed_bytes=40.0)
    graph = builder.finish().at_batch(8)
    assert graph.batch == 8
    assert graph.flops.tolist() == [18.0, 0.0]  # 2 + 8 x 2
    assert graph.tensor_bytes.tolist() == [160.0]  # 40 + 60 x 2
    assert graph.saved_bytes.tolist() == [6.0, 0.0]
    assert graph.state_bytes.tolist() == [5.0, 0.0]
    assert graph.workspace_bytes.tolist() == [0.0, 9.0]
    assert graph.seconds["any"].tolist() == [14.0, 1.0]


@pytest.mark.parametrize("samples", [0.0, -1.0, float("nan"), float("inf")])
def test_the_batch_must_be_positive(samples: float) -> None:
    with pytest.raises(InputError, match="samples must be positive"):
        diamond().at_batch(samples)


def test_a_batch_too_large_for_numbers_is_refused_without_a_warning() -> None:
    with pytest.raises(InputError, match=r"batch must be from 1e-06 to 1e\+12, got 1e\+308"):
        diamond().at_batch(1e308)
    with pytest.raises(InputError, match=r"op 'a': flops must be at most 1e\+30, got "):
        replace(diamond(), flops=array(9e29, 0, 0, 0)).at_batch(1e12)


@settings(deadline=None)
@given(graph=graphs(), factor=st.sampled_from([0.25, 0.5, 1.0, 2.0, 8.0]))
def test_quantities_are_sums_of_powers_of_the_batch(graph: Graph, factor: float) -> None:
    other = graph.at_batch(graph.batch * factor)
    for name in (*OP_LINES, "tensor_bytes"):
        whole, fixed = getattr(graph, name), getattr(graph, f"fixed_{name}")
        # Factors are powers of two, so this is exact: no rounding but the one of the sum.
        parts = graph.parts_of(name)
        grown = sum(part * factor**power for power, part in parts.items())
        expected = whole if factor == 1 else grown
        assert np.array_equal(getattr(other, name), expected)
        assert np.allclose(sum(parts.values()), whole, rtol=1e-12)
        assert np.array_equal(getattr(other, f"fixed_{name}"), fixed)
        assert np.all(getattr(other, name) >= fixed)
    assert np.array_equal(other.parameter_bytes, graph.parameter_bytes)
    assert np.array_equal(other.use_op, graph.use_op)


@given(graph=graphs())
@settings(deadline=None)
def test_the_same_batch_gives_the_same_numbers(graph: Graph) -> None:
    same = graph.at_batch(graph.batch)
    for name in (*OP_LINES, "tensor_bytes"):
        assert getattr(same, name).tobytes() == getattr(graph, name).tobytes()


def test_times_too_large_to_add_up_are_refused_without_a_warning() -> None:
    with pytest.raises(InputError, match=r"op 'a': seconds on 'any' must be at most 1e\+36, of"):
        replace(diamond(), seconds={"any": array(1e308, 1e308, 0, 0)})
    with pytest.raises(InputError, match=r"of all ops together, got 9e\+35"):
        replace(diamond(), seconds={"any": array(9e35, 9e35, 0, 0)})
