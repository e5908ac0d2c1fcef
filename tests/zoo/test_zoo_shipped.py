"""Known totals of known models, and the structure every shipped step must have."""

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from formula import mlp
from meshwright.graph.graph import Phase, Split
from meshwright.zoo.shipped import read_shipped, shipped_names
from meshwright.zoo.table import find_model

NAMES = shipped_names()


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
    assert read_shipped(name).parameter_bytes.sum() / 4 == parameters == find_model(name).parameters


@pytest.mark.parametrize(
    ("name", "giga_products"),
    # Multiply-accumulates of convolutions and linear layers of one picture, as torchvision has it.
    [("resnet50", 4.089), ("vgg16", 15.470), ("inception-v3", 5.713)],
)
def test_forward_products(name: str, giga_products: float) -> None:
    graph = read_shipped(name, 1)
    flops = graph.flops[graph.phase == Phase.FORWARD].sum()
    assert flops / 2e9 == pytest.approx(giga_products, abs=1e-3)


@pytest.mark.parametrize("name", NAMES)
def test_backward_takes_two_products_for_one(name: str) -> None:
    graph = read_shipped(name)
    forward, backward = (
        graph.flops[graph.phase == each].sum() for each in (Phase.FORWARD, Phase.BACKWARD)
    )
    # All but the input gradient of a first layer that reads the data; but fused attention computes
    # the scores again, which makes five products for its two.
    assert 1.9 * forward < backward <= 2.1 * forward


@pytest.mark.parametrize("name", NAMES)
def test_ops_that_share_weights_share_a_group(name: str) -> None:
    graph = read_shipped(name)
    updates = np.flatnonzero(graph.phase == Phase.UPDATE)
    weighted = np.flatnonzero(graph.parameter_bytes)
    assert set(graph.group[updates]) == set(graph.group[weighted])
    for update in updates.tolist():
        gradients = graph.inputs[update]
        assert len(gradients)
        for tensor in gradients:
            source = graph.tensor_source[tensor]
            assert graph.tensor_partial[tensor]
            assert graph.fixed_tensor_bytes[tensor] == graph.tensor_bytes[tensor]
            # A norm's backward makes both: partial sums, and rows of its input's gradient.
            assert graph.split[source] in (Split.SUM, Split.BATCH)
            assert graph.group[source] == graph.group[update]
    assert np.all(graph.split[updates] == Split.NONE)


@pytest.mark.parametrize("name", NAMES)
def test_a_step_holds_weights_and_the_moments_of_adam(name: str) -> None:
    graph = read_shipped(name)
    # Two moments in fp32 for weights in fp32: three times the weights; for those in 16 bits, with
    # the copies in fp32, 2 + 12 bytes: seven times. What PyTorch adds are counts of steps, and the
    # buffers of batch norm and of positions.
    times = 3 if find_model(name).precisions[0] == "fp32" else 7
    weights = graph.parameter_bytes.sum()
    assert times * weights <= graph.state_bytes.sum() <= (times + 0.02) * weights


@pytest.mark.parametrize("name", NAMES)
def test_every_backward_op_has_a_forward_partner_before_it(name: str) -> None:
    graph = read_shipped(name)
    backward = np.flatnonzero(graph.phase == Phase.BACKWARD)
    partners = graph.partner[backward]
    assert np.all(partners >= 0)
    assert np.all(partners < backward)
    assert np.all(graph.phase[partners] == Phase.FORWARD)


@pytest.mark.parametrize("batch", [256, 6])
def test_the_mlp_is_that_of_its_formulas(batch: int) -> None:
    built, shipped = mlp("mlp", batch), read_shipped("mlp", batch)
    assert built.op_names == shipped.op_names
    for quantity in ("flops", "bytes_read", "bytes_written", "tensor_bytes", "state_bytes"):
        assert_near(getattr(built, quantity), getattr(shipped, quantity))
    assert_near(built.use_op, shipped.use_op)


def assert_near(one: npt.NDArray[Any], other: npt.NDArray[Any]) -> None:
    np.testing.assert_allclose(one, other, rtol=1e-12)


def test_mlp_by_hand() -> None:
    graph = mlp("tiny", batch=2, widths=(3, 5, 7))
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
