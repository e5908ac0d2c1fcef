"""Steps from formulas: equal to captured ones that come with the package, and right by hand."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.graph.architecture import step
from meshwright.graph.architecture.bert import bert
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.architecture.llama import llama
from meshwright.graph.architecture.mixtral import mixtral
from meshwright.graph.architecture.vit import vit
from meshwright.graph.graph import Graph, Phase, Split, read_graph
from meshwright.zoo.shape import find_shape
from meshwright.zoo.shipped import FOLDER
from same_graph import assert_same
from work import count_lines

SIZES: dict[Callable[..., Graph], dict[str, int]] = {
    gpt: {"hidden": 24, "heads": 3, "sequence": 6, "vocabulary": 50},
    bert: {"hidden": 24, "heads": 3, "sequence": 6, "vocabulary": 50},
    vit: {"hidden": 24, "heads": 3, "patch": 4, "side": 12, "classes": 7},
    llama: {"hidden": 24, "heads": 3, "sequence": 6, "vocabulary": 50, "intermediate": 40},
    mixtral: {
        "hidden": 32, "heads": 4, "sequence": 6, "vocabulary": 50, "key_heads": 2,
        "intermediate": 40, "experts": 4,
    },
}  # fmt: skip
ALL = pytest.mark.parametrize("build", SIZES, ids=lambda build: build.args[0].__name__)
WEIGHTED: dict[Callable[..., Graph], int] = {
    # Of one layer, biases and norms included.
    gpt: 12 * 24**2 + 13 * 24,
    bert: 12 * 24**2 + 13 * 24,
    vit: 12 * 24**2 + 13 * 24,
    # Queries, keys, values and output 4 h^2, three of h x 40, two norms.
    llama: 4 * 24**2 + 3 * 24 * 40 + 2 * 24,
    # Half as many keys and values: 3 h^2; the router; four experts of three of h x 40; norms.
    mixtral: 3 * 32**2 + 4 * 32 + 4 * 3 * 32 * 40 + 2 * 32,
}


def make(build: Callable[..., Graph], layers: int = 2, **more: Any) -> Graph:
    return build(**SIZES[build], layers=layers, **{"batch": 4, **more})


@pytest.mark.parametrize("name", ["gpt2", "bert-small"])
def test_formulas_give_the_captured_graphs_that_are_shipped(name: str) -> None:
    captured = read_graph(FOLDER / f"{name}.json.gz")
    shape = find_shape(name, {"gpt2": 1024, "bert-small": 128}[name])
    assert shape is not None
    assert_same(shape.build(batch=captured.batch, precision="mixed"), captured)


@ALL
@pytest.mark.parametrize("layers", [4, 5, 9])
def test_copied_layers_are_as_recorded_ones(
    build: Callable[..., Graph], layers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = make(build, layers)
    monkeypatch.setattr(step, "RECORDED_LAYERS", layers)
    assert_same(copied, make(build, layers))


@pytest.mark.parametrize("build", [gpt, bert])
def test_copied_layers_may_stand_between_copied_weights(
    build: Callable[..., Graph], monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = make(build, 6, untie=True)
    monkeypatch.setattr(step, "RECORDED_LAYERS", 6)
    assert_same(copied, make(build, 6, untie=True))


@ALL
def test_every_layer_adds_the_same(build: Callable[..., Graph]) -> None:
    graphs = [make(build, layers) for layers in (1, 2, 3, 4, 5)]
    size = 2 if "bf16" in graphs[0].precision else 4
    parameters = np.diff([graph.parameter_bytes.sum() for graph in graphs]) / size
    assert np.all(parameters == WEIGHTED[build])
    for quantity in ("flops", "bytes_read", "bytes_written", "calls", "saved_bytes"):
        assert len(set(np.diff([getattr(graph, quantity).sum() for graph in graphs]))) == 1
    assert len(set(np.diff([graph.num_ops for graph in graphs]))) == 1


def test_flops_of_a_gpt_by_hand() -> None:
    graph = make(gpt, 3)
    # 4 samples of 6 tokens, width 24: a layer's products 24 t h^2 and attention 4 t s h, head
    # 2 t h v; backward two products for each, and five for attention's two.
    t, s, h, v = 24, 6, 24, 50
    products, attended, head = 24 * t * h * h, 4 * t * s * h, 2 * t * h * v
    assert graph.flops[graph.phase == Phase.FORWARD].sum() == 3 * (products + attended) + head
    backward = 3 * (2 * products + 2.5 * attended) + 2 * head
    assert graph.flops[graph.phase == Phase.BACKWARD].sum() == backward


def test_products_of_grouped_heads_and_experts_by_hand() -> None:
    graph = make(mixtral, 1)
    at = graph.index
    # 4 x 6 tokens with two experts each make 48 rows, 12 an expert; gate and up are one product.
    wide = at["model.layers.0.mlp.experts/_grouped_mm"]
    sides = (graph.product_rows, graph.product_columns, graph.product_depth, graph.product_count)
    assert [side[wide] for side in sides] == [12, 80, 32, 4]
    assert graph.flops[wide] == 2 * 48 * 80 * 32
    # 16 numbers of keys (two of four heads) from 32 for each token.
    keys = at["model.layers.0.self_attn.k_proj/mm_1"]
    assert [side[keys] for side in sides] == [24, 16, 32, 1]


@ALL
@pytest.mark.parametrize(
    ("optimizer", "moments", "step_bytes"),
    [("sgd", 0, 0), ("momentum", 1, 0), ("adam", 2, 4), ("adamw", 2, 4)],
)
def test_optimisers_keep_their_moments(
    build: Callable[..., Graph], optimizer: str, moments: int, step_bytes: int
) -> None:
    graph = make(build, 2, optimizer=optimizer)
    updates = graph.phase == Phase.UPDATE
    state = moments * graph.parameter_bytes.sum() + step_bytes * updates.sum()
    assert graph.state_bytes[updates].sum() == state
    assert np.all(graph.split[updates] == Split.NONE)


@ALL
def test_backward_ops_come_after_their_partners(build: Callable[..., Graph]) -> None:
    graph = make(build, 6)
    backward = np.flatnonzero(graph.phase == Phase.BACKWARD)
    assert np.all(graph.partner[backward] >= 0)
    assert np.all(graph.phase[graph.partner[backward]] == Phase.FORWARD)
    assert np.all(graph.partner[graph.phase != Phase.BACKWARD] == -1)


@ALL
def test_gradients_that_updates_read_are_sums_over_the_batch(build: Callable[..., Graph]) -> None:
    graph = make(build, 6)
    read = graph.use_tensor[graph.phase[graph.use_op] == Phase.UPDATE]
    assert len(read) == (graph.phase == Phase.UPDATE).sum()
    assert graph.tensor_partial[read].all()


@ALL
@settings(max_examples=10, deadline=None)
@given(batch=st.integers(2, 40), other=st.integers(1, 40))
def test_a_step_is_a_line_in_the_batch(build: Callable[..., Graph], batch: int, other: int) -> None:
    graph, scaled = make(build, batch=other), make(build, batch=batch).at_batch(other)
    for quantity in ("flops", "bytes_read", "bytes_written", "product_rows", "product_depth"):
        np.testing.assert_allclose(
            getattr(graph, quantity), getattr(scaled, quantity), rtol=1e-12, atol=1e-9
        )
    np.testing.assert_allclose(graph.tensor_bytes, scaled.tensor_bytes, rtol=1e-12, atol=1e-9)


def test_copies_of_tied_weights_are_updated_with_the_sum_of_their_gradients() -> None:
    tied, copied = make(gpt), make(gpt, untie=True)
    words = 50 * 24 * 4
    assert copied.parameter_bytes.sum() - tied.parameter_bytes.sum() == words
    assert (
        tied.group[tied.index["lm_head/mm"]] == tied.group[tied.index["transformer.wte/embedding"]]
    )
    one, two = (copied.index[name] for name in ("lm_head/mm", "transformer.wte/embedding"))
    assert copied.group[one] != copied.group[two]
    (total,) = (
        op for op in np.flatnonzero(copied.phase == Phase.UPDATE) if copied.kind[op] == "add"
    )
    readers = [copied.module[op] for op in copied.successors[int(total)]]
    assert readers == ["transformer.wte", "lm_head"]


def test_parts_of_samples_scale() -> None:
    assert make(gpt, batch=0.5).flops.sum() == make(gpt, batch=2).flops.sum() / 4
    with pytest.raises(InputError, match="mine: batch must be positive, got 0"):
        make(gpt, batch=0, name="mine")


def test_a_trillion_parameters_take_a_moment() -> None:
    graph, lines = count_lines(
        lambda: gpt(
            hidden=25_600, heads=160, layers=128, sequence=2048, vocabulary=51_200, precision="bf16"
        )
    )
    # 205,962 when counted (2026-11); of 8,000 ops some 20 lines each, and 50,000 for any model.
    assert lines < 300_000
    # Narayanan et al. (2021), table 1: 1008.0 billion.
    assert graph.parameter_bytes.sum() / 2e9 == pytest.approx(1008.0, abs=0.05)


def test_a_gpt_may_run_without_dropout_and_with_one_op_for_gelu() -> None:
    kinds = set(make(gpt, dropout="no", activation="gelu").kind)
    assert {"causal_attention", "gelu", "gelu_backward"} < kinds
    assert not {"native_dropout", "tanh", "pow"} & kinds


def test_stored_scores_are_products_and_passes_over_them() -> None:
    # Per layer 2 products forward and 4 backward, each of 2 * 3 heads * 6 * 6 * 8 FLOPs a sample.
    stored = make(gpt, 3, attention="stored")
    products = np.array([kind == "bmm" for kind in stored.kind])
    assert products.sum() == 3 * (2 + 4)
    assert stored.flops[products].sum() == 3 * 6 * 2 * 3 * 6 * 6 * 8 * stored.batch
    assert not {kind for kind in stored.kind if "attention" in kind}
