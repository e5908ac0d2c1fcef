"""Times of ops by hand: rooflines, measurements and the order between them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from meshwright.cluster.cluster import DeviceType
from meshwright.cost import compute
from meshwright.cost.compute import copy_seconds, op_seconds, roofline_seconds
from meshwright.errors import InputError
from meshwright.graph.graph import ANY_TYPE, OP_SIZES, Graph, Split

CHIP = DeviceType(
    name="chip",
    flops_per_second={"fp32": 100.0, "bf16": 400.0},
    memory_bytes=1e9,
    memory_bytes_per_second=10.0,
)


def make_graph(num_ops: int, **changes: Any) -> Graph:
    """Ops without tensors at batch 8."""
    zeros, none = np.zeros(num_ops), np.zeros(0, dtype=np.int32)
    fields: dict[str, Any] = {name: zeros.copy() for name in OP_SIZES} | {
        "name": "ops",
        "batch": 8.0,
        "op_names": tuple(f"op{i}" for i in range(num_ops)),
        "kind": ("matmul",) * num_ops,
        "module": ("",) * num_ops,
        "precision": ("fp32",) * num_ops,
        "phase": np.zeros(num_ops, dtype=np.int8),
        "split": np.full(num_ops, Split.BATCH, dtype=np.int8),
        "group": np.full(num_ops, -1, dtype=np.int32),
        "partner": np.full(num_ops, -1, dtype=np.int32),
        "tensor_source": none,
        "tensor_bytes": np.zeros(0),
        "fixed_tensor_bytes": np.zeros(0),
        "tensor_partial": np.zeros(0, dtype=np.bool_),
        "use_tensor": none,
        "use_op": none,
    }
    return Graph(**(fields | changes))


def test_roofline_is_the_larger_of_computing_and_moving() -> None:
    graph = make_graph(
        3,
        flops=np.array([1000.0, 1000.0, 0.0]),
        bytes_read=np.array([20.0, 60.0, 0.0]),
        bytes_written=np.array([10.0, 90.0, 0.0]),
    )
    # 1000/100 = 10 s against 30/10 = 3 s and 150/10 = 15 s.
    assert roofline_seconds(graph, CHIP, 8).tolist() == [10.0, 15.0, 0.0]


def test_each_precision_has_its_own_peak_and_unknown_ones_run_as_fp32() -> None:
    graph = make_graph(3, flops=np.full(3, 1200.0), precision=("bf16", "fp32", "int4"))
    assert op_seconds(graph, CHIP, 8).tolist() == [3.0, 12.0, 12.0]


def test_only_the_part_that_grows_scales_with_samples() -> None:
    graph = make_graph(1, flops=np.array([1000.0]), fixed_flops=np.array([200.0]))
    assert op_seconds(graph, CHIP, 2).tolist() == [(200 + 800 / 4) / 100]


def test_measured_times_of_the_type_come_before_those_of_any_type_and_the_roofline() -> None:
    nan = float("nan")
    graph = make_graph(
        3,
        flops=np.full(3, 500.0),
        seconds={"chip": np.array([1.0, nan, nan]), ANY_TYPE: np.array([2.0, 2.0, nan])},
    )
    assert op_seconds(graph, CHIP, 8).tolist() == [1.0, 2.0, 5.0]


def test_a_measurement_of_another_type_does_not_count() -> None:
    graph = make_graph(1, flops=np.array([500.0]), seconds={"other": np.array([9.0])})
    assert op_seconds(graph, CHIP, 8).tolist() == [5.0]


def test_infinity_means_it_cannot_run_and_survives_scaling() -> None:
    graph = make_graph(
        2,
        seconds={"chip": np.array([np.inf, np.inf]), ANY_TYPE: np.array([1.0, 1.0])},
        split=np.array([Split.BATCH, Split.NONE], dtype=np.int8),
    )
    assert op_seconds(graph, CHIP, 1).tolist() == [np.inf, np.inf]


def test_measured_times_scale_only_for_ops_that_split() -> None:
    graph = make_graph(
        3,
        seconds={ANY_TYPE: np.full(3, 4.0)},
        split=np.array([Split.NONE, Split.BATCH, Split.SUM], dtype=np.int8),
    )
    assert op_seconds(graph, CHIP, 2).tolist() == [4.0, 1.0, 1.0]


def test_ladders_say_what_a_share_takes_of_ops_that_split() -> None:
    whole, rung = np.array([8.0, 8.0, 8.0, np.nan]), np.array([6.0, np.nan, 6.0, np.nan])
    graph = make_graph(
        4,
        split=np.array([Split.BATCH, Split.BATCH, Split.NONE, Split.SUM], dtype=np.int8),
        seconds={"chip": whole, ANY_TYPE: np.full(4, 16.0)},
        ladders={"chip": {4.0: rung}, ANY_TYPE: {2.0: np.full(4, 10.0)}},
    )
    # The first by its rung, the second in proportion, the third in full; the last has no time of
    # the type: 10 s on two samples, 16 s on eight.
    assert op_seconds(graph, CHIP, 4).tolist() == [6, 4, 8, 12]
    assert op_seconds(graph, CHIP, 2).tolist() == [5, 2, 8, 10]
    assert op_seconds(graph, CHIP, 8).tolist() == [8, 8, 8, 16]


def test_the_graph_is_left_as_it_was() -> None:
    measured = np.array([np.nan, 1.0])
    graph = make_graph(2, flops=np.full(2, 100.0), seconds={"chip": measured})
    with pytest.raises(ValueError, match="read-only"):
        op_seconds(graph, CHIP, 8)[:] = 7
    assert np.isnan(graph.seconds["chip"][0])
    assert op_seconds(graph, CHIP, 8).tolist() == [1.0, 1.0]


def test_times_are_remembered_by_graph_type_and_samples() -> None:
    one, other = (make_graph(1, flops=np.full(1, flops)) for flops in (100.0, 300.0))
    half = replace(CHIP, flops_per_second={"fp32": CHIP.flops_per_second["fp32"] / 2})
    first = op_seconds(one, CHIP, 8)
    assert op_seconds(one, CHIP, 8) is first
    for again in (op_seconds(other, CHIP, 8), op_seconds(one, half, 8), op_seconds(one, CHIP, 4)):
        assert again.tolist() != first.tolist()


def test_only_so_many_times_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute, "_MEMO_BYTES", 16)  # two of one op
    graph = make_graph(1, flops=np.full(1, 100.0))
    first, second = op_seconds(graph, CHIP, 8), op_seconds(graph, CHIP, 4)
    assert op_seconds(graph, CHIP, 8) is first
    op_seconds(graph, CHIP, 2)  # in the place of the one that was used longest ago
    assert op_seconds(graph, CHIP, 8) is first
    assert op_seconds(graph, CHIP, 4) is not second


@pytest.mark.parametrize("samples", [0, -1, float("nan"), float("inf")])
def test_bad_samples_are_refused(samples: float) -> None:
    with pytest.raises(InputError, match="samples must be positive"):
        op_seconds(make_graph(1), CHIP, samples)


def test_copying_reads_and_writes_every_byte() -> None:
    assert copy_seconds(50, CHIP) == 10.0
    assert copy_seconds(40, CHIP, bytes_written=10) == 5.0
