"""The A100's own curve, by hand, and where it is used."""

from dataclasses import replace

import numpy as np
import pytest

from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.cost.a100 import A100
from meshwright.cost.curve import Math
from meshwright.cost.fitted import fitted_seconds
from meshwright.cost.h200 import H200
from meshwright.cost.multiplication import Products
from meshwright.cost.product import product_seconds
from meshwright.graph.architecture.gpt import gpt

PEAK, BANDWIDTH = 312e12, 2039e9


def seconds(rows: float, columns: float, depth: float, alignment: float = 16.0) -> float:
    sizes = {"rows": rows, "columns": columns, "depth": depth, "count": 1.0}
    products = Products(
        kind=np.array([Math.MATMUL], dtype=np.int8),
        **{name: np.array([value]) for name, value in sizes.items()},
        flops=np.array([2 * rows * columns * depth]),
        bytes_moved=np.array([2 * (rows * depth + depth * columns + rows * columns)]),
        alignment=np.array([alignment]),
        precision=np.zeros(1, dtype=np.int64),
        precisions=("fp16",),
        drops=np.zeros(1, dtype=np.bool_),
        is_last=np.zeros(1, dtype=np.bool_),
    )
    return float(product_seconds(products, np.array([PEAK]), BANDWIDTH, A100)[0])


def test_a_large_product_fills_whole_waves_at_the_fitted_share() -> None:
    # 32 x 64 tiles of 256 x 128 are 18.96 waves of 108, paid as 19; a tile sums 8192 + 32 terms:
    # 19 * 2 * 256 * 128 * 8224 / (312e12 / 108 * 0.7515) = 4.717 ms, and 5 us to start.
    assert seconds(8192, 8192, 8192) == pytest.approx(4.722e-3, rel=1e-3)


def test_an_odd_vocabulary_makes_logits_nearly_three_times_as_long() -> None:
    aligned, odd = seconds(8192, 50256, 1024), seconds(8192, 50257, 1024, alignment=2)
    assert 2.6 < odd / aligned < 2.9


@pytest.mark.parametrize(
    ("rows", "columns", "depth", "measured"),
    [
        (8192, 12288, 4096, 241.6e12),
        (8192, 4096, 4096, 234.9e12),
        (8192, 16384, 4096, 241.1e12),
        (8192, 4096, 16384, 252.8e12),
        (8192, 51200, 4096, 255.4e12),
    ],
)
def test_published_products_of_a_layer_are_met_at_the_full_clock(
    rows: float, columns: float, depth: float, measured: float
) -> None:
    # FLOP/s in EleutherAI/cookbook, benchmarks/sizing/sample_results/transformer.out.
    flops = 2 * rows * columns * depth
    at_full_clock = seconds(rows, columns, depth) * 1305 / 1410
    assert flops / at_full_clock == pytest.approx(measured, rel=0.06)


def test_only_products_and_attention_in_16_bits_have_curves_of_their_own() -> None:
    differing = {key for key, curve in A100.matmul.items() if curve != H200.matmul[key]}
    assert differing == {("bf16", False), ("bf16", True)}
    own = {key[0] for key, curve in A100.attention.items() if curve != H200.attention[key]}
    assert own == {"bf16"}


def test_a_score_costs_an_a100_two_thirds_of_an_h200s_products_forward() -> None:
    # 1/16 + 4/64 clocks of 2048 FLOPs for 1/16 + 4/128 clocks of 4096: 256 for 384.
    key = "bf16", Math.CAUSAL_ATTENTION
    ratio = A100.attention[key].score_terms / H200.attention[key].score_terms
    assert ratio == pytest.approx(256 / 384)


def test_graphs_on_an_a100_are_timed_by_its_curve_and_the_h200s_streams() -> None:
    graph = gpt(hidden=1024, heads=16, layers=2, sequence=512, batch=4, precision="bf16")
    own = DEVICE_TYPES["a100-80"]
    unknown = replace(own, name="chip")  # the same peaks, without a curve
    one, other = (fitted_seconds(graph, kind, graph.batch) for kind in (own, unknown))
    is_product = np.array([kind.endswith("mm") for kind in graph.kind])
    assert (one[is_product] != other[is_product]).all()
    is_stream = (graph.flops == 0) & ~np.isnan(one)
    assert (one[is_stream] == other[is_stream]).all()
