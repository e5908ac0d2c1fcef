"""Known totals of known models, and the structure every step of the zoo must have."""

import numpy as np
import pytest

from meshwright.errors import InputError
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.graph.zoo import FormulaModel, build_mlp, build_model, formula_models

NAMES = [model.name for model in formula_models()]


def product_flops(graph: Graph, phase: Phase) -> float:
    is_product = np.array([kind in ("matmul", "conv") for kind in graph.kind])
    return float(graph.flops[is_product & (graph.phase == phase)].sum())


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
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
            assert graph.group[source] == graph.group[update]
    assert np.all(graph.split[updates] == Split.NONE)
    # Weights in fp32 and Adam's two fp32 moments: three times the weights.
    assert graph.state_bytes.sum() == 3 * graph.parameter_bytes.sum()


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


@pytest.mark.parametrize("model", formula_models(), ids=lambda model: model.name)
def test_defaults_are_as_listed(model: FormulaModel) -> None:
    graph = build_model(model.name)
    assert graph.name == model.name
    assert graph.batch == model.batch


def test_mistakes_are_named() -> None:
    with pytest.raises(InputError, match="no formulas exist for 'resnet5'; did you mean resnet50"):
        build_model("resnet5")
    with pytest.raises(InputError, match="known: mlp, vgg16"):
        build_model("zzz")
    with pytest.raises(InputError, match="unet: batch must be positive, got 0"):
        build_model("unet", batch=0)
    with pytest.raises(InputError, match="two positive widths"):
        build_mlp("mlp", 1, widths=(3,))
