"""Times of products: by hand on a toy device, by measurement on an H200, and what always holds."""

from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.array import Floats
from meshwright.cost.curve import (
    AttentionCurve,
    Calibration,
    ConvolutionCurve,
    DepthwiseCurve,
    Grid,
    Math,
    MatmulCurve,
    Roof,
    StoredCurve,
)
from meshwright.cost.multiplication import Products
from meshwright.cost.product import product_seconds
from meshwright.errors import InputError

PEAKS = {
    "fp64": 67e12, "fp32": 67e12, "tf32": 494.5e12, "bf16": 989.5e12, "fp16": 989.5e12,
    "fp8": 1979e12,
}  # fmt: skip
ITEM_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
MEMORY = 4.8e12
FLOAT = 4
MASKED = (Math.MASKED_ATTENTION, Math.MASKED_ATTENTION_BACKWARD)
CONVOLUTIONS = (
    Math.CONVOLUTION, Math.CONVOLUTION_BACKWARD, Math.INPUT_CONVOLUTION_BACKWARD
)  # fmt: skip


def one(
    kind: Math,
    precision: str,
    rows: float,
    columns: float,
    depth: float,
    count: float = 1,
    *,
    taps: float = 1,
    multiple: float | None = None,
    alignment: float = 16,
    drops: bool = False,
) -> Products:
    """One op whose bytes and FLOPs follow from its sizes; `depth` counts channels without taps."""
    item = ITEM_BYTES[precision]
    is_forward = kind <= Math.MASKED_ATTENTION or kind == Math.STORED_ATTENTION
    if multiple is None:
        multiple = 2 if is_forward else 5
        if kind in (Math.MATMUL, Math.CONVOLUTION, Math.INPUT_CONVOLUTION_BACKWARD):
            multiple = 1
    source = rows * depth
    depth *= taps
    if kind in CONVOLUTIONS:
        moved = multiple * (source + columns * depth) + rows * columns
    elif kind == Math.MATMUL:
        moved = source + columns * depth + rows * columns
    else:
        moved = (2 if is_forward else 4) * (rows + columns) * depth
    mask = rows * columns if kind in MASKED else 0.0
    sums = 4.0 * rows * count if kind >= Math.ATTENTION else 0.0
    return Products(
        kind=np.array([kind], dtype=np.int8),
        rows=np.array([float(rows)]),
        columns=np.array([float(columns)]),
        depth=np.array([float(depth)]),
        count=np.array([float(count)]),
        flops=np.array([2.0 * multiple * rows * columns * depth * count]),
        bytes_moved=np.array([float(moved * count * item + mask + sums)]),
        alignment=np.array([float(alignment)]),
        precision=np.array([0]),
        precisions=(precision,),
        drops=np.array([drops]),
        is_last=np.zeros(1, dtype=np.bool_),
    )


def join(ops: list[Products]) -> Products:
    """Many ops as one, precisions coded."""
    names = tuple(dict.fromkeys(each.precisions[0] for each in ops))
    columns = {
        field.name: np.concatenate([getattr(each, field.name) for each in ops])
        for field in fields(Products)
        if not field.name.startswith("precision")
    }
    codes = np.array([names.index(each.precisions[0]) for each in ops])
    return Products(precision=codes, precisions=names, **columns)


def peaks_of(products: Products) -> Floats:
    return np.array([PEAKS[name] for name in products.precisions])[products.precision]


SIZES = st.integers(1, 5000)


@st.composite
def ops(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(list(Math)))
    return {
        "kind": kind,
        "precision": draw(st.sampled_from(sorted(PEAKS))),
        "rows": draw(st.integers(1, 200_000)),
        "columns": draw(SIZES),
        "depth": draw(SIZES),
        "count": draw(st.integers(1, 2000)),
        "taps": draw(st.sampled_from([1, 2.25, 9, 25, 49])) if kind in CONVOLUTIONS else 1,
        "multiple": draw(st.sampled_from([1, 2])) if kind == Math.CONVOLUTION_BACKWARD else None,
        "alignment": draw(st.sampled_from([0, 2, 4, 8, 16])),
        "drops": draw(st.booleans()),
    }


def seconds_of(op: dict[str, Any]) -> float:
    products = one(**op)
    return float(product_seconds(products, peaks_of(products), MEMORY)[0])


@given(ops(), st.sampled_from(["rows", "columns", "depth", "count"]), st.integers(1, 3000))
@settings(max_examples=400, deadline=None)
def test_times_never_fall_as_a_size_grows(op: dict[str, Any], name: str, more: int) -> None:
    grown = {**op, name: op[name] + more}
    assert seconds_of(grown) >= seconds_of(op) * (1 - 1e-9)


@given(ops())
@settings(max_examples=300, deadline=None)
def test_times_lie_above_flops_over_peak(op: dict[str, Any]) -> None:
    products = one(**op)
    found = product_seconds(products, peaks_of(products), MEMORY)
    assert np.isfinite(found).all()
    least = products.flops / peaks_of(products)
    if op["kind"] in (Math.CAUSAL_ATTENTION, Math.CAUSAL_ATTENTION_BACKWARD):
        least = least / 2
    if op["kind"] in CONVOLUTIONS and op["precision"] in ("fp32", "fp64"):
        least = least / 4  # the most that Winograd's F(4 x 4, 3 x 3) saves
    if op["kind"] == Math.STORED_ATTENTION_BACKWARD:
        least = least * 4 / 5  # scores are not made anew
    assert found[0] >= least[0] * (1 - 1e-9)


@given(st.lists(ops(), min_size=1, max_size=12))
@settings(max_examples=50, deadline=None)
def test_ops_together_take_what_each_takes(many: list[dict[str, Any]]) -> None:
    products = join([one(**op) for op in many])
    together = product_seconds(products, peaks_of(products), MEMORY)
    assert together == pytest.approx([seconds_of(op) for op in many], rel=1e-12)


# Four multiprocessors of 1 TFLOP/s, tiles of 10 x 10 at full rate, memory of 1 GB/s, all exact.
GRID = Grid(tiles=((10, 10),), shares=(1.0,), rounding=1.0, prologue=0.0, split_bytes=0.0)
ROOF = Roof(memory=1.0, sharpness=1.0, launch_seconds=0.0)
ATTENTION = AttentionCurve(
    tile=(10, 10, 10), share=1.0, rounding=1.0, score_terms=10.0, dropout_terms=20.0,
    prologue_keys=0.0, mask_memory=3.0, roof=ROOF,
)  # fmt: skip
MATMUL = MatmulCurve(grid=GRID, roof=ROOF, misaligned=(2.0, 3.0, 4.0))
CONVOLUTION = ConvolutionCurve(
    grid=GRID, roof=ROOF, misaligned=2.0, misaligned_memory=5.0, taps_power=0.5
)
TOY = Calibration(
    multiprocessors=4,
    matmul={("fp32", True): MATMUL, ("fp32", False): MATMUL},
    convolution={
        ("fp32", kind, direct): CONVOLUTION for kind in CONVOLUTIONS for direct in (True, False)
    },
    depthwise={
        ("fp32", kind, last): DepthwiseCurve(share=1e-6, memory=0.0, launch_seconds=0.0)
        for kind in CONVOLUTIONS
        for last in (True, False)
    },
    attention={("fp32", kind): ATTENTION for kind in Math if kind >= Math.ATTENTION},
    stored={
        Math.STORED_ATTENTION: StoredCurve(
            products=2, memory=8.0, dropout_memory=3.0, launch_seconds=1e-6
        ),
    },
)
PEAK = np.array([4e12])


def toy_seconds(products: Products, memory: float = 1e30, calibration: Calibration = TOY) -> float:
    return float(product_seconds(products, PEAK, memory, calibration)[0])


def test_a_fifth_tile_takes_a_second_wave() -> None:
    # splits in two, three, ... parts are free here; a depth of 1 in 64 parts hides the rounding,
    # so parts cost their weight in memory: 5 x 100 results x 2 parts x 1e9 bytes / 1e9 = far more
    calibration = replace(
        TOY, matmul={("fp32", True): replace(MATMUL, grid=replace(GRID, split_bytes=1e9))}
    )
    four = one(Math.MATMUL, "fp32", 40, 10, 50)
    five = one(Math.MATMUL, "fp32", 41, 10, 50)
    # one tile: 2 x 10 x 10 x 50 FLOPs at 1 TFLOP/s; the bytes of the product take none of the time
    wave = 2 * 10 * 10 * 50 / 1e12
    fast = 1e15
    assert toy_seconds(four, fast, calibration) == pytest.approx(wave, rel=1e-2)
    assert toy_seconds(five, fast, calibration) == pytest.approx(2 * wave, rel=1e-2)


def test_sums_of_a_single_tile_are_split_among_the_multiprocessors() -> None:
    # 1 tile, 4 multiprocessors: four parts of 25 terms each, in one wave
    single = one(Math.MATMUL, "fp32", 10, 10, 100)
    assert toy_seconds(single) == pytest.approx(2 * 10 * 10 * 25 / 1e12)


def test_arithmetic_and_memory_add_up_at_a_sharpness_of_one() -> None:
    square = one(Math.MATMUL, "fp32", 20, 20, 10)
    # 4 tiles at once: 2 x 100 x 10 FLOPs; 4 bytes x (200 + 200 + 400) elements at 1 GB/s
    expected = 2 * 100 * 10 / 1e12 + 4 * 800 / 1e9
    assert toy_seconds(square, 1e9) == pytest.approx(expected)


@pytest.mark.parametrize(("alignment", "times"), [(0, 1), (16, 1), (8, 2), (4, 3), (2, 4)])
def test_misaligned_rows_lengthen_the_sums(alignment: int, times: int) -> None:
    whole = toy_seconds(one(Math.MATMUL, "fp32", 20, 20, 10))
    found = toy_seconds(one(Math.MATMUL, "fp32", 20, 20, 10, alignment=alignment))
    assert found == pytest.approx(times * whole)


def test_a_window_of_nine_taps_takes_the_root_longer() -> None:
    # 4 tiles at once: 2 x 100 x 90 FLOPs, times 9 ** 0.5
    windowed = one(Math.CONVOLUTION, "fp32", 20, 20, 10, taps=9)
    assert toy_seconds(windowed) == pytest.approx(3 * 2 * 100 * 90 / 1e12)


def test_channels_that_do_not_fill_sixteen_bytes_lengthen_windows_only() -> None:
    for taps, alignment, times in ((9, 4, 2), (1, 8, 1), (1, 4, 2)):
        whole = toy_seconds(one(Math.CONVOLUTION, "fp32", 20, 20, 10, taps=taps))
        thin = one(Math.CONVOLUTION, "fp32", 20, 20, 10, taps=taps, alignment=alignment)
        assert toy_seconds(thin) == pytest.approx(times * whole)


def test_the_gradient_of_the_weight_sums_over_the_pixels() -> None:
    # weight: 20 columns x 20 channels, 4 tiles at once, 80 terms; input: 80 x 20, 16 tiles in four
    # waves, 20 terms: as many FLOPs
    weight = one(Math.CONVOLUTION_BACKWARD, "fp32", 80, 20, 20, multiple=1)
    both = one(Math.CONVOLUTION_BACKWARD, "fp32", 80, 20, 20)
    assert toy_seconds(weight) == pytest.approx(2 * 100 * 80 / 1e12)
    assert toy_seconds(both) == pytest.approx(2 * 2 * 100 * 80 / 1e12)


def test_the_gradient_of_the_input_has_a_column_for_each_of_its_channels() -> None:
    # 80 x 10 results, 8 tiles in two waves, sums over 20 columns and 9 taps
    op = one(Math.INPUT_CONVOLUTION_BACKWARD, "fp32", 80, 20, 10, taps=9)
    assert toy_seconds(op) == pytest.approx(2 * 2 * 100 * 20 * 9 / 1e12)


def test_the_gradient_of_the_input_moves_its_own_share() -> None:
    halved = {key: replace(CONVOLUTION, data_memory=0.5) for key in TOY.convolution}
    calibration = replace(TOY, convolution=halved)
    weight = one(Math.CONVOLUTION_BACKWARD, "fp32", 80, 20, 10, multiple=1)
    data = one(Math.INPUT_CONVOLUTION_BACKWARD, "fp32", 80, 20, 10)
    moving = FLOAT * (80 * 10 + 20 * 10 + 80 * 20) / 1e9
    for op, share in ((weight, 1), (data, 0.5)):
        arithmetic = toy_seconds(op, calibration=calibration)
        found = toy_seconds(op, 1e9, calibration)
        assert found == pytest.approx(arithmetic + share * moving)


@given(ops(), st.sampled_from([None, 3.0]))
@settings(max_examples=200, deadline=None)
def test_both_gradients_take_what_each_takes(op: dict[str, Any], more: float | None) -> None:
    op |= {"taps": 9, "multiple": 1}
    weight = seconds_of({**op, "kind": Math.CONVOLUTION_BACKWARD})
    data = seconds_of({**op, "kind": Math.INPUT_CONVOLUTION_BACKWARD})
    both = one(**{**op, "kind": Math.CONVOLUTION_BACKWARD, "multiple": 2})
    if more is not None:  # FLOPs of graphs that count pairs of channels of different groups
        both = replace(both, flops=both.flops * more)
    found = float(product_seconds(both, peaks_of(both), MEMORY)[0])
    assert found == pytest.approx(weight + data, rel=1e-9)


def test_attention_pays_for_softmax_dropout_and_padding() -> None:
    # 4 tiles of queries at once, 20 keys, heads of 10 and 10 terms for the softmax, two products
    plain = 2 * 2 * 10 * 20 * (10 + 10) / 1e12
    assert toy_seconds(one(Math.ATTENTION, "fp32", 40, 20, 10)) == pytest.approx(plain)
    # sizes round up to the tile: 35 queries, 15 keys, heads of 7
    assert toy_seconds(one(Math.ATTENTION, "fp32", 35, 15, 7)) == pytest.approx(plain)
    drops = one(Math.ATTENTION, "fp32", 40, 20, 10, drops=True)
    assert toy_seconds(drops) == pytest.approx(2 * plain)  # 20 terms more


def test_causal_attention_visits_half_the_keys_and_half_a_tile() -> None:
    # 20 keys: (20 + 10) / 2 = 15 on average
    causal = one(Math.CAUSAL_ATTENTION, "fp32", 40, 20, 10)
    assert toy_seconds(causal) == pytest.approx(2 * 2 * 10 * 15 * 20 / 1e12)


def test_a_mask_is_moved_thrice() -> None:
    plain = toy_seconds(one(Math.ATTENTION, "fp32", 40, 20, 10), 1e9)
    masked = toy_seconds(one(Math.MASKED_ATTENTION, "fp32", 40, 20, 10), 1e9)
    assert masked - plain == pytest.approx(3 * 40 * 20 / 1e9)


def test_unknown_precisions_follow_fp32_at_their_own_peak() -> None:
    known = one(Math.MATMUL, "fp32", 4096, 4096, 4096)
    other = replace(known, precisions=("fp4",))
    peak = np.array([1e14])
    assert product_seconds(other, peak, MEMORY) == product_seconds(known, peak, MEMORY)


def test_a_device_of_twice_the_peaks_takes_half_the_time_above_its_launch() -> None:
    op = one(Math.MATMUL, "bf16", 4096, 4096, 4096)
    peak = peaks_of(op)
    times = [float(product_seconds(op, peak * by, MEMORY * by)[0]) for by in (1, 2, 4)]
    assert times[0] - times[1] == pytest.approx(2 * (times[1] - times[2]))
    assert times[1] < 0.52 * times[0]  # the launch is a fortieth of so long an op


# Measured on an H200 with torch 2.11, 2026-11-15 (benchmarks/results/2026-11-15-fidelity-h200).
MEASURED = [
    (one(Math.MATMUL, "bf16", 2048, 14336, 4096), 307.0e-6),
    (one(Math.MATMUL, "bf16", 4096, 14336, 2048), 341.2e-6),
    (one(Math.MATMUL, "fp32", 4096, 1024, 4096), 678.6e-6),
    (one(Math.MATMUL, "fp32", 768, 3072, 8192), 777.1e-6),
    (one(Math.CONVOLUTION, "bf16", 256 * 56 * 56, 64, 64, taps=9), 310.3e-6),
    (one(Math.CONVOLUTION, "bf16", 256 * 28 * 28, 512, 128), 73.8e-6),
    (one(Math.ATTENTION, "bf16", 197, 197, 64, 1024), 60.5e-6),
    (one(Math.ATTENTION_BACKWARD, "bf16", 197, 197, 64, 1024), 209.9e-6),
]


@pytest.mark.parametrize(("op", "measured"), MEASURED)
def test_an_h200_is_met_within_a_fifth(op: Products, measured: float) -> None:
    found = float(product_seconds(op, peaks_of(op), MEMORY)[0])
    assert found == pytest.approx(measured, rel=0.2)


def test_sizes_must_be_positive_and_finite() -> None:
    op = one(Math.MATMUL, "fp32", 10, 10, 10)
    with pytest.raises(InputError, match=r"depth of op 0 must be positive and finite, got 0\.0"):
        replace(op, depth=np.array([0.0]))


def test_every_op_needs_an_entry() -> None:
    op = one(Math.MATMUL, "fp32", 10, 10, 10)
    with pytest.raises(InputError, match=r"count must have an entry for each of 1 ops, got .*2"):
        replace(op, count=np.array([1.0, 1.0]))


def test_stored_scores_take_two_products_and_their_passes() -> None:
    # 2 products of 20 x 20 x 10, each 4 tiles at once: 2 x 100 x 10 FLOPs at 1 TFLOP/s; 400 scores
    # of 4 bytes, and 400 numbers of queries and keys beside them, at 1 GB/s; 8 passes over the
    # scores, with dropout 11; 1 us to start.
    stored = one(Math.STORED_ATTENTION, "fp32", 20, 20, 10)
    products = 2 * (2 * 100 * 10 / 1e12 + (4 * 400 + 4 * 400) / 1e9)
    expected = products + 8 * 4 * 400 / 1e9 + 1e-6
    assert toy_seconds(stored, 1e9) == pytest.approx(expected)
    dropping = one(Math.STORED_ATTENTION, "fp32", 20, 20, 10, drops=True)
    assert toy_seconds(dropping, 1e9) == pytest.approx(expected + 3 * 4 * 400 / 1e9)
