"""Times of captured ops: which model counts, and what holds whatever was fitted."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cost.compute import host_seconds, op_seconds, roofline_seconds
from meshwright.cost.fitted import fitted_seconds
from meshwright.cost.stream import USUAL
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import ANY_TYPE, Graph, Phase, Split

H200, CPU = DEVICE_TYPES["h200"], DEVICE_TYPES["cpu"]
BATCH = 64
FLOAT = 4
NAN = float("nan")


def stream(kind: str, **more: Any) -> dict[str, Any]:
    """An op that reads and writes 2^20 numbers, all of which grow with the batch."""
    moved = FLOAT * 2.0**20
    return {"kind": kind, "bytes_read": moved, "bytes_written": moved, "calls": 1} | more


def product(
    kind: str, rows: float, columns: float, depth: float, grows: str, **more: Any
) -> dict[str, Any]:
    """One product in fp32, of which one dimension grows with the batch."""
    sizes = {"rows": rows, "columns": columns, "depth": depth, "count": more.pop("count", 1.0)}
    item = FLOAT * sizes["count"]
    left, right, made = rows * depth * item, depth * columns * item, rows * columns * item
    return {
        "kind": kind,
        "calls": 1,
        "precision": "tf32",
        "flops": 2 * rows * columns * depth * sizes["count"] * more.pop("products", 1),
        "bytes_read": left + right,
        "fixed_bytes_read": right if grows == "rows" else 0.0,
        "bytes_written": made,
        "fixed_bytes_written": made if grows == "depth" else 0.0,
        "product_alignment": 16.0,
        **{f"product_{name}": size for name, size in sizes.items()},
        **{f"fixed_product_{name}": 0 if name == grows else size for name, size in sizes.items()},
        **more,
    }


def convolution(kind: str, columns: float, channels: float, taps: int) -> dict[str, Any]:
    """64 images of 28 x 28 points."""
    rows, depth = 64.0 * 28 * 28, channels * taps
    values, weight, made = (FLOAT * n for n in (rows * channels, depth * columns, rows * columns))
    is_biased, is_backward = kind.startswith("biased_"), kind.endswith("_backward")
    read, written = values + weight + made * is_biased, made * (1 + is_biased)
    if is_backward:
        read, written = values + weight + made * (1 + is_biased), values + weight
    return product(kind, rows, columns, depth, "rows", products=1 + is_backward) | {
        "bytes_read": read,
        "fixed_bytes_read": weight,
        "bytes_written": written,
        "fixed_bytes_written": weight * is_backward,
    }


def halves(columns: float, channels: float, taps: int) -> tuple[dict[str, Any], dict[str, Any]]:
    """The gradient of the input of such a convolution, and those of its weight and bias."""
    rows, depth = 64.0 * 28 * 28, channels * taps
    values, weight, made = (FLOAT * n for n in (rows * channels, depth * columns, rows * columns))
    first = product("input_convolution_backward", rows, columns, depth, "rows") | {
        "bytes_read": made + weight,
        "fixed_bytes_read": weight,
        "bytes_written": values,
        "fixed_bytes_written": 0.0,
    }
    second = product("biased_convolution_backward", rows, columns, depth, "rows") | {
        "bytes_read": 2 * made + values,
        "fixed_bytes_read": 0.0,
        "bytes_written": weight,
        "fixed_bytes_written": weight,
        "split": Split.SUM,
    }
    return first, second


def build(*ops: dict[str, Any]) -> Graph:
    builder = GraphBuilder("ops", batch=BATCH)
    for number, each in enumerate(ops):
        builder.add_op(f"o{number}", **each)
    return builder.finish()


def capture_like() -> Graph:
    """An op of each way to grow."""
    return build(
        product("mm", 8192.0, 1000.0, 768.0, "rows"),
        product("mm", 768.0, 1000.0, 8192.0, "depth", split=Split.SUM),
        product("bmm", 100.0, 120.0, 64.0, "count", count=256.0),
        convolution("convolution", 256.0, 128.0, 9),
        convolution("biased_convolution", 256.0, 64.0, 1),
        convolution("convolution_backward", 256.0, 128.0, 9),
        convolution("biased_convolution_backward", 100.0, 3.0, 49),
        *halves(256.0, 128.0, 9),
        *halves(64.0, 256.0, 1),
        product("causal_attention", 512.0, 512.0, 64.0, "count", count=256.0, products=2),
        product("dropout_attention_backward", 512.0, 512.0, 64.0, "count", count=256.0, products=5),
        stream("add"),
        stream("sum", product_depth=8192.0, product_columns=128.0, split=Split.SUM),
        stream("_fused_adamw_", phase=Phase.UPDATE, split=Split.NONE),
        stream("nobody knows"),
    )


GRAPH = capture_like()


def test_measured_comes_before_any_before_fitted_before_roofline() -> None:
    graph = replace(
        build(*(stream("add", calls=calls) for calls in (1, 1, 1, 0))),
        seconds={"h200": np.array([1.0, NAN, NAN, NAN]), ANY_TYPE: np.array([2.0, 2.0, NAN, NAN])},
    )
    seconds = op_seconds(graph, H200, BATCH)
    fitted, roofline = fitted_seconds(graph, H200, BATCH), roofline_seconds(graph, H200, BATCH)
    assert seconds.tolist() == [1.0, 2.0, fitted[2], roofline[3]]
    assert fitted[2] > roofline[2]
    assert np.isnan(fitted[3])


def test_graphs_that_were_not_captured_get_the_roofline() -> None:
    graph = build(*(stream("add", calls=0) for _ in range(3)))
    assert np.isnan(fitted_seconds(graph, H200, BATCH)).all()
    np.testing.assert_array_equal(op_seconds(graph, H200, 7), roofline_seconds(graph, H200, 7))


def test_devices_that_run_kernels_themselves_take_time_for_each_call() -> None:
    slow = replace(CPU, call_seconds=1e-5)
    added = op_seconds(GRAPH, slow, BATCH) - op_seconds(GRAPH, CPU, BATCH)
    np.testing.assert_allclose(added, 1e-5 * GRAPH.calls)
    # Bounds rely on it: a share of the batch takes at least that share of the time, and less.
    share, whole = op_seconds(GRAPH, slow, BATCH / 4), op_seconds(GRAPH, slow, BATCH)
    assert (share >= whole / 4).all()
    assert (share <= whole).all()


def test_devices_that_run_kernels_themselves_get_the_roofline() -> None:
    assert not CPU.is_asynchronous
    np.testing.assert_array_equal(
        op_seconds(GRAPH, CPU, BATCH), roofline_seconds(GRAPH, CPU, BATCH)
    )


def test_an_unknown_kind_moves_bytes_at_the_usual_share_after_a_launch() -> None:
    graph = build(stream("nobody knows"), stream("nobody knows", phase=Phase.UPDATE))
    moving = 2 * FLOAT * 2.0**20 / (USUAL.share * H200.memory_bytes_per_second)
    # All parameters are updated by one launch.
    expected = [moving + USUAL.launch_seconds, moving]
    assert fitted_seconds(graph, H200, BATCH) == pytest.approx(expected)


def test_broadcasts_that_were_not_measured_take_as_long_as_those_that_were() -> None:
    graph = build(stream("strided_mul"), stream("strided_nobody_knows"), stream("mul"))
    strided, unknown, dense = fitted_seconds(graph, H200, BATCH)
    assert strided == unknown > dense


def test_what_moves_and_computes_nothing_takes_no_time() -> None:
    graph = build(stream("empty", bytes_read=0.0, bytes_written=0.0))
    assert fitted_seconds(graph, H200, BATCH).tolist() == [0.0]


@pytest.mark.parametrize(("direction", "times"), [("", 2), ("_backward", 1)])
def test_a_bias_adds_a_launch_and_what_it_moves(direction: str, times: int) -> None:
    # What was made is read and written once more; of its gradient it is read.
    kinds = (f"convolution{direction}", f"biased_convolution{direction}")
    graph = build(*(convolution(kind, 256.0, 128.0, 9) for kind in kinds))
    without, with_bias = fitted_seconds(graph, H200, BATCH)
    moved = times * 64 * 28 * 28 * 256 * FLOAT
    moving = moved / (USUAL.share * H200.memory_bytes_per_second)
    assert with_bias - without == pytest.approx(USUAL.launch_seconds + moving)


@pytest.mark.parametrize(("columns", "channels", "taps"), [(256, 128, 9), (64, 256, 1), (8, 3, 49)])
def test_gradients_apart_take_as_long_as_both_in_one_op(
    columns: float, channels: float, taps: int
) -> None:
    whole = convolution("biased_convolution_backward", columns, channels, taps)
    both, first, second = fitted_seconds(
        build(whole, *halves(columns, channels, taps)), H200, BATCH
    )
    assert first + second == pytest.approx(both)
    assert min(first, second) > 0


def test_a_bias_whose_gradient_is_one_number_expanded_takes_a_time() -> None:
    backward = convolution("biased_convolution_backward", 256.0, 8.0, 9)
    small = {"bytes_read": 1e6, "fixed_bytes_read": 0.0}
    assert (fitted_seconds(build(backward | small), H200, BATCH) > 0).all()


def test_dropout_and_masks_slow_attention_down() -> None:
    kinds = ("attention", "dropout_attention", "causal_attention", "causal_dropout_attention")
    graph = build(
        *(
            product(kind, 2048.0, 2048.0, 64.0, "count", count=256.0, products=2, precision="bf16")
            for kind in kinds
        )
    )
    plain, drops, causal, causal_drops = fitted_seconds(graph, H200, BATCH)
    assert causal < plain < drops
    assert causal < causal_drops < drops


@given(st.floats(1e-3, 1.0), st.floats(1e-3, 1.0))
def test_more_samples_take_longer_and_a_share_no_less_than_its_share(
    one: float, other: float
) -> None:
    low, high = sorted((one, other))
    whole = op_seconds(GRAPH, H200, BATCH)
    fewer, more = (op_seconds(GRAPH, H200, BATCH * share) for share in (low, high))
    rounding = 1 + 1e-9
    assert (fewer <= more * rounding).all()
    assert (more <= whole * rounding).all()
    assert (fewer * rounding >= low * whole).all()


@given(st.floats(1e-3, 4.0))
def test_measured_times_at_another_share_follow_the_fitted_ratio(share: float) -> None:
    fitted, there = (fitted_seconds(GRAPH, H200, BATCH * each) for each in (1.0, share))
    graph = replace(GRAPH, seconds={"h200": 3 * fitted})
    expected = np.where(graph.split == Split.NONE, 3 * fitted, 3 * there)
    np.testing.assert_allclose(op_seconds(graph, H200, BATCH * share), expected)


def test_measured_times_of_a_device_without_a_fit_are_in_proportion() -> None:
    graph = replace(GRAPH, seconds={"cpu": np.full(GRAPH.num_ops, 8.0)})
    expected = np.where(graph.split == Split.NONE, 8.0, 2.0)
    assert op_seconds(graph, CPU, BATCH / 4).tolist() == expected.tolist()


def test_hosts_pay_for_calls_and_for_their_views() -> None:
    graph = build(
        *(stream("add", phase=phase, calls=calls) for phase in Phase for calls in (0, 1, 3))
    )
    forward, backward, update = host_seconds(graph).reshape(3, 3).tolist()
    # A call, and two views of 2 us in backward; in forward they are too short to tell.
    assert forward == pytest.approx([0, 20e-6, 20e-6])
    assert backward == pytest.approx([0, 14e-6, 18e-6])
    assert update == pytest.approx([0, 17e-6, 17e-6])


def test_hosts_pay_by_the_kind_of_a_call() -> None:
    kinds = ("add", "addmm", "biased_convolution", "causal_dropout_attention", "_grouped_mm")
    graph = build(*(stream(kind, calls=1) for kind in kinds))
    assert host_seconds(graph).tolist() == [20e-6, 39e-6, 48e-6, 136e-6, 81e-6]
    backward = np.full(graph.num_ops, Phase.BACKWARD, dtype=np.int8)
    assert host_seconds(graph, backward).tolist() == [14e-6, 31e-6, 51e-6, 155e-6, 60e-6]


def test_twenty_thousand_ops_take_what_each_takes_alone() -> None:
    times = 20_000 // GRAPH.num_ops + 1
    count = times * GRAPH.num_ops
    columns: dict[str, Any] = {
        name: np.tile(each, times) if isinstance(each, np.ndarray) else each * times
        for name, each in GRAPH.columns().items()
        if isinstance(each, np.ndarray | tuple) and len(each) == GRAPH.num_ops
    }
    names = tuple(f"o{number}" for number in range(count))
    graph = replace(GRAPH, **columns | {"op_names": names})
    seconds = op_seconds(graph, H200, BATCH / 2)
    assert seconds[: GRAPH.num_ops] == pytest.approx(op_seconds(GRAPH, H200, BATCH / 2))
