"""Every model of the zoo in our own code captures, with the FLOPs that are published for it."""

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the zoo needs the torch extra")

from meshwright.capture.capture import capture  # noqa: E402
from meshwright.capture.zoo import build, zoo_models  # noqa: E402
from meshwright.graph.graph import Graph, Phase  # noqa: E402

GIGA_PRODUCTS = {
    # Billions of multiply-adds of one sample's forward pass: torchvision's model pages.
    "alexnet": 0.71,
    "vgg16": 15.47,
    "vgg19": 19.63,
    "resnet50": 4.09,
    "resnet101": 7.80,
    "resnet152": 11.51,
    "inception-v3": 5.71,
    "vit-l": 61.55,
    # Liu et al. (2021), released checkpoints: 34.5 at 224 pixels.
    "swin-l": 34.5,
}
QUICK = ("alexnet", "vgg16-32")
SLOW = tuple(each.name for each in zoo_models() if each.source == "own" and each.name not in QUICK)
BATCH = 2


def capture_model(name: str) -> Graph:
    workload = build(name, batch=BATCH, precision="fp32")
    return capture(
        workload.model, workload.args, workload.kwargs, workload.loss, batch=workload.batch
    )


def check(name: str, graph: Graph) -> None:
    parameters = sum(
        each.numel() for each in build(name, batch=BATCH, precision="fp32").model.parameters()
    )
    forward = graph.flops[graph.phase == Phase.FORWARD].sum()
    backward = graph.flops[graph.phase == Phase.BACKWARD].sum()
    assert graph.parameter_bytes.sum() == 4 * parameters
    # Backward has two products for each of forward, one for the first layer; fused attention
    # computes the scores again, which makes five for its two.
    assert 1.5 < backward / forward <= 2.5
    assert (graph.phase == Phase.UPDATE).sum() > 0
    # Every gradient that an update reads is a sum over the batch, so replicas must add it up.
    is_updating = graph.phase[graph.use_op] == Phase.UPDATE
    read = np.unique(graph.use_tensor[is_updating])
    gradients = read[graph.phase[graph.tensor_source[read]] == Phase.BACKWARD]
    assert len(gradients) > 0
    assert graph.tensor_partial[gradients].all()
    if name in GIGA_PRODUCTS:
        assert forward / (2 * BATCH) / 1e9 == pytest.approx(GIGA_PRODUCTS[name], rel=0.02)


@pytest.mark.parametrize("name", QUICK)
def test_chains_capture(name: str) -> None:
    check(name, capture_model(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", SLOW)
def test_models_capture(name: str) -> None:
    check(name, capture_model(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert-small", "fnet-base", "gpt2"])
def test_language_models_capture(name: str) -> None:
    pytest.importorskip("transformers", reason="these models need the zoo extra")
    check(name, capture_model(name))
