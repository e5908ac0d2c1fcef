"""Known totals of known models, and the structure every step of the zoo must have."""

import time

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.graph.transformer import TransformerShape, build_transformer, synthetic_transformer
from meshwright.graph.zoo import build_mlp, build_model, zoo_models

NAMES = [entry.name for entry in zoo_models()]


def product_flops(graph: Graph, phase: Phase) -> float:
    is_product = np.array([kind in ("matmul", "conv") for kind in graph.kind])
    return float(graph.flops[is_product & (graph.phase == phase)].sum())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # transformers' BertForPreTraining: 109,482,240 with pooler + 624,188 of heads.
        ("bert-base", 110_106_428),
        ("bert-large", 336_226_108),
        # bert-large + 24 x 12,596,224; Chimera's 669,790,012 counts an untied decoder.
        ("bert-48", 638_535_484),
        # transformers' GPT2LMHeadModel, head tied.
        ("gpt2", 124_439_808),
        ("gpt2-medium", 354_823_168),
        ("gpt2-large", 774_030_080),
        ("gpt2-xl", 1_557_611_200),
        # torchvision's models; inception_v3 with aux_logits=False.
        ("vgg16", 138_357_544),
        ("resnet50", 25_557_032),
        ("inception-v3", 23_834_568),
        # 14,714,688 of convolutions + 513 x 4096 + 4097 x 4096 + 4097 x 10.
        ("vgg16-32", 33_638_218),
        # 31,037,633 with one class; a second has 64 weights and a bias.
        ("unet", 31_037_698),
    ],
)
def test_parameter_counts(name: str, parameters: int) -> None:
    assert build_model(name, batch=1).parameter_bytes.sum() / 4 == parameters


@pytest.mark.parametrize(
    ("name", "giga_products"),
    # Multiply-accumulates of convolutions and linear layers of one picture, as torchvision has it.
    [("resnet50", 4.089), ("vgg16", 15.470), ("inception-v3", 5.713)],
)
def test_forward_products(name: str, giga_products: float) -> None:
    graph = build_model(name, batch=1)
    assert product_flops(graph, Phase.FORWARD) / 2e9 == pytest.approx(giga_products, abs=1e-3)


def test_gpt2_forward_flops_by_formula() -> None:
    # Tokens s = 1024; a layer: 2 s 12 h^2 of matmuls + 2 x 2 s^2 h of attention; head 2 s h v.
    s, h, v = 1024, 768, 50257
    expected = 12 * (24 * s * h * h + 4 * s * s * h) + 2 * s * h * v
    assert product_flops(build_model("gpt2", batch=1), Phase.FORWARD) == expected


@pytest.mark.parametrize("name", NAMES)
def test_backward_takes_two_products_for_one(name: str) -> None:
    graph = build_model(name, batch=2)
    forward, backward = (product_flops(graph, each) for each in (Phase.FORWARD, Phase.BACKWARD))
    # All but the input gradient of a first layer that reads the data.
    assert 1.9 * forward < backward <= 2 * forward


@pytest.mark.parametrize("name", NAMES)
def test_ops_that_share_weights_share_a_group(name: str) -> None:
    graph = build_model(name, batch=2)
    is_adam = np.array(graph.kind) == "adam"
    updates = np.flatnonzero((graph.phase == Phase.UPDATE) & is_adam)
    weighted = np.flatnonzero(graph.parameter_bytes)
    assert sorted(graph.group[updates]) == sorted(graph.group[weighted])
    copied = [op for op in graph.op_names if op + ".refresh" in graph.index]
    for update in updates.tolist():
        gradients = graph.inputs[update]
        assert len(gradients)
        for tensor in gradients:
            source = graph.tensor_source[tensor]
            assert graph.tensor_partial[tensor]
            assert graph.fixed_tensor_bytes[tensor] == graph.tensor_bytes[tensor]
            assert graph.split[source] == Split.SUM
            forward = graph.partner[source]
            assert graph.group[forward] == graph.group[source]
            if graph.op_names[forward] not in copied:
                assert graph.group[source] == graph.group[update]
    assert np.all(graph.split[updates] == Split.NONE)
    # Weights in fp32 and Adam's two fp32 moments: three times the weights; and tied copies.
    copies = sum(graph.state_bytes[graph.index[op]] for op in copied)
    assert graph.state_bytes.sum() == 3 * graph.parameter_bytes.sum() + copies


@pytest.mark.parametrize("name", NAMES)
def test_every_backward_op_has_a_forward_partner_before_it(name: str) -> None:
    graph = build_model(name, batch=2)
    backward = np.flatnonzero(graph.phase == Phase.BACKWARD)
    partners = graph.partner[backward]
    assert np.all(partners >= 0)
    assert np.all(partners < backward)
    assert np.all(graph.phase[partners] == Phase.FORWARD)


@pytest.mark.parametrize("name", NAMES)
def test_building_at_a_batch_is_scaling_to_it(name: str) -> None:
    built, scaled = build_model(name, batch=6), build_model(name, batch=2).at_batch(6)
    assert built.op_names == scaled.op_names
    for quantity in ("flops", "bytes_read", "bytes_written", "tensor_bytes"):
        np.testing.assert_allclose(getattr(built, quantity), getattr(scaled, quantity), rtol=1e-12)


def test_tied_weights_have_one_update_with_two_gradients() -> None:
    graph = build_model("gpt2", batch=1)
    update = graph.index["wte.update"]
    sources = {graph.op_names[graph.tensor_source[t]] for t in graph.inputs[update]}
    assert sources == {"wte.grad_weight", "lm_head.grad_weight"}
    assert graph.parameter_bytes[graph.index["lm_head"]] == 0
    # The head is a copy on its own, so that it may be on another device: new weights travel to it.
    assert graph.group[graph.index["lm_head"]] != graph.group[graph.index["wte"]]
    refresh = graph.index["lm_head.refresh"]
    (tensor,) = graph.inputs[refresh]
    assert graph.tensor_source[tensor] == update
    assert graph.tensor_bytes[tensor] == 50257 * 768 * 4


def test_mlp_by_hand() -> None:
    graph = build_mlp("tiny", batch=2, widths=(3, 5, 7))
    assert graph.op_names == (
        "input", "layer.0", "relu.0", "layer.1", "loss", "loss.grad", "layer.1.grad",
        "layer.1.grad_weight", "layer.1.update", "relu.0.grad", "layer.0.grad_weight",
        "layer.0.update",
    )  # fmt: skip
    at = graph.index
    # 2 rows x 5 x 7 products; weights (5 + 1) x 7 = 42 numbers of 4 bytes, 2 x 5 read, 2 x 7 made.
    layer = at["layer.1"]
    assert graph.flops[layer] == 2 * 2 * 5 * 7
    assert graph.parameter_bytes[layer] == graph.fixed_bytes_read[layer] == 168
    assert graph.bytes_read[layer] == 168 + 40
    assert graph.bytes_written[layer] == 56
    # The weight gradient reads 2 x 7 gradients and the 2 x 5 saved inputs; 42 numbers come out.
    gradient = at["layer.1.grad_weight"]
    assert graph.bytes_read[gradient] == 56 + 40
    assert graph.bytes_written[gradient] == graph.fixed_bytes_written[gradient] == 168
    predecessors = {graph.op_names[i] for i in graph.predecessors[gradient]}
    assert predecessors == {"loss.grad", "relu.0"}
    # Adam: weights, gradients and two moments in, weights and moments out.
    update = at["layer.1.update"]
    assert graph.bytes_read[update] == 168 * 4
    assert graph.bytes_written[update] == 168 * 3
    assert graph.state_bytes[update] == 168 * 2


def test_half_precision_keeps_a_master_copy() -> None:
    shape = TransformerShape(
        layers=1, hidden=8, heads=2, vocabulary=10, positions=4, is_decoder=True
    )
    graph = build_transformer("half", shape, batch=1, sequence=4, precision="bf16")
    # 2 bytes of weight; 8 of moments and 4 of master copy with the update.
    copy = graph.state_bytes[graph.index["lm_head"]]
    assert graph.state_bytes.sum() == 7 * graph.parameter_bytes.sum() + copy


@pytest.mark.parametrize("wanted", [26_000, 100_000])
def test_a_synthetic_transformer_has_about_the_wanted_ops(wanted: int) -> None:
    start = time.perf_counter()
    graph = synthetic_transformer(wanted)
    assert abs(graph.num_ops - wanted) < 50
    # 0.6 s for 26,000 ops on one server core (2026-11); the slack is for busy machines.
    assert time.perf_counter() - start < 12.0


@pytest.mark.parametrize("entry", zoo_models(), ids=lambda entry: entry.name)
def test_defaults_are_as_listed(entry) -> None:  # type: ignore[no-untyped-def]
    graph = build_model(entry.name)
    assert graph.name == entry.name
    assert graph.batch == entry.batch


def test_sequence_and_batch_can_be_chosen() -> None:
    graph = build_model("bert-base", batch=4, sequence=128)
    assert graph.tensor_bytes[graph.outputs[graph.index["ids"]][0]] == 4 * 128 * 8


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="no model is called 'gpt2-x1'; did you mean gpt2-xl"):
        build_model("gpt2-x1")
    with pytest.raises(InputError, match="known: bert-base"):
        build_model("zzz")
    with pytest.raises(InputError, match="resnet50: has no sequence, got sequence = 3"):
        build_model("resnet50", sequence=3)
    with pytest.raises(InputError, match="gpt2: sequence must be from 1 to 1024, got 2000"):
        build_model("gpt2", sequence=2000)
    with pytest.raises(InputError, match="batch must be positive, got 0"):
        build_model("gpt2", batch=0)
    with pytest.raises(InputError, match="num_ops must be at least"):
        synthetic_transformer(3)
    with pytest.raises(InputError, match="precision must be one of fp32, bf16, fp16, got 'int4'"):
        synthetic_transformer(100, precision="int4")
    with pytest.raises(InputError, match="two positive widths"):
        build_mlp("mlp", 1, widths=(3,))
    with pytest.raises(InputError, match="multiple of heads, got 8 and 3"):
        TransformerShape(layers=1, hidden=8, heads=3, vocabulary=1, positions=1, is_decoder=True)
