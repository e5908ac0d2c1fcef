"""Small models of every family of the zoo: the captured step gives what eager PyTorch gives."""

import copy
from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the zoo needs the torch extra")

from torch import nn  # noqa: E402

from meshwright.capture.optimiser import (  # noqa: E402
    BETAS,
    EPSILON,
    LEARNING_RATE,
    WEIGHT_DECAY,
    Optimiser,
)
from meshwright.capture.trace import find_loss, trace_step  # noqa: E402
from meshwright.capture.zoo import language  # noqa: E402
from meshwright.capture.zoo.convnet import VGG, AlexNet  # noqa: E402
from meshwright.capture.zoo.fpn import SemanticFPN  # noqa: E402
from meshwright.capture.zoo.inception import InceptionV3  # noqa: E402
from meshwright.capture.zoo.resnet import ResNet  # noqa: E402
from meshwright.capture.zoo.seq2seq import Seq2SeqTransformer  # noqa: E402
from meshwright.capture.zoo.swin import Swin, SwinBackbone  # noqa: E402
from meshwright.capture.zoo.vit import VisionTransformer  # noqa: E402
from quick import few  # noqa: E402

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
CLASSES = 5
TOKENS = 32
TOLERANCE = 1e-6


def pictures(side: int, *, batch: int = 2) -> Arguments:
    return (torch.randn(batch, 3, side, side), torch.randint(CLASSES, (batch,))), {}


def labelled_pixels(side: int) -> Arguments:
    return (torch.randn(2, 3, side, side), torch.randint(CLASSES, (2, side, side))), {}


def sentences(count: int) -> Arguments:
    return tuple(torch.randint(TOKENS, (2, 6)) for _ in range(count)), {}


def small_swin(side: int) -> SwinBackbone:
    """Windows of 3 on maps of side / 4: padded, and shifted where they are larger."""
    return SwinBackbone(width=8, depths=(2, 2), heads=(2, 2), window=3, side=side, drop=0.0)


OWN: dict[str, tuple[Callable[[], nn.Module], Callable[[], Arguments]]] = {
    "alexnet": (
        lambda: AlexNet(is_small=True, channels=(4, 6, 8, 6, 6), hidden=16, classes=CLASSES),
        lambda: pictures(32),
    ),
    "vgg": (
        lambda: VGG(((4, 4), (6,)), side=8, hidden=16, classes=CLASSES),
        lambda: pictures(8),
    ),
    "resnet": (
        lambda: ResNet((1, 2, 1, 1), width=4, classes=CLASSES),
        lambda: pictures(64),
    ),
    "inception-v3": (
        lambda: InceptionV3(divide=16, classes=CLASSES),
        lambda: pictures(107),
    ),
    "semantic-fpn": (
        lambda: SemanticFPN((1, 1, 1, 1), width=4, pyramid=8, head=8, groups=2, classes=CLASSES),
        lambda: labelled_pixels(64),
    ),
    "swin": (lambda: Swin(small_swin(32), classes=CLASSES), lambda: pictures(32)),
    "vit": (
        lambda: VisionTransformer(
            layers=2, width=16, heads=2, inner=32, patch=4, side=16, classes=CLASSES
        ),
        lambda: pictures(16),
    ),
    "transformer": (
        lambda: Seq2SeqTransformer(
            layers=2, width=16, heads=2, inner=32, vocabulary=TOKENS, positions=8
        ),
        lambda: sentences(3),
    ),
}
SMALL_CONFIGS: dict[str, tuple[language.Family, dict[str, Any]]] = {
    "bert": (language.BERT, language.bert_config(2, 16, 2)),
    "fnet": (
        language.FNET,
        {
            **language.fnet_config(),
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "intermediate_size": 32,
        },
    ),
    "gpt2": (language.GPT, language.gpt_config(2, 16, 2, 8)),
    "llama": (language.LLAMA, language.llama_config(2, 16, 4, 2, 32, TOKENS, 8)),
    "mixtral": (
        # Grouped products are traced in bf16 only; batched ones give the same mixture in fp32.
        language.Family(
            model="MixtralForCausalLM",
            config="MixtralConfig",
            inputs=language.MIXTRAL.inputs,
            experts="batched_mm",
        ),
        language.mixtral_config(
            layers=2,
            hidden=16,
            heads=4,
            key_heads=2,
            intermediate=32,
            vocabulary=TOKENS,
            positions=8,
            experts=4,
            experts_per_token=2,
        ),
    ),
}


def switch_dropout_off(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout | nn.Dropout2d):
            module.p = 0.0
    return model


def run_eager(model: nn.Module, arguments: Arguments) -> tuple[Any, dict[str, Any]]:
    """One step in place; the loss and the gradients by name."""
    args, kwargs = arguments
    loss: Any = find_loss(model(*args, **kwargs), None)
    loss.backward()
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=LEARNING_RATE,
        betas=BETAS,
        eps=EPSILON,
        weight_decay=WEIGHT_DECAY,
        fused=True,
    )
    optimizer.step()
    named = model.named_parameters()
    return loss.detach(), {name: each.grad for name, each in named if each.grad is not None}


def run_traced(model: nn.Module, arguments: Arguments) -> tuple[Any, dict[str, Any], list[Any]]:
    """The captured step on copies: the loss, the gradients, and what the step started from."""
    args, kwargs = arguments
    trace = trace_step(model, args, kwargs, loss=None, optimizer=Optimiser.ADAMW)
    parameters = dict(model.named_parameters())
    held = [*parameters.values(), *dict(model.named_buffers()).values()]
    state = [
        torch.zeros(()) if kind == "step" else torch.zeros_like(each)
        for each in parameters.values()
        for kind in Optimiser.ADAMW.states
    ]
    flat = [each.detach().clone() for each in held]
    with torch.no_grad():
        loss, *gradients = trace.module(*flat, *state, *args, *kwargs.values())
    return loss, dict(zip(trace.gradient_names, gradients, strict=True)), flat


def check_step(model: nn.Module, arguments: Arguments) -> None:
    model = switch_dropout_off(model)
    loss, gradients, held = run_traced(copy.deepcopy(model), arguments)
    expected_loss, expected_gradients = run_eager(model, arguments)
    expected = [*dict(model.named_parameters()).values(), *dict(model.named_buffers()).values()]
    torch.testing.assert_close(loss, expected_loss, rtol=TOLERANCE, atol=TOLERANCE)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(
            gradient, expected_gradients[name], rtol=TOLERANCE, atol=TOLERANCE
        )
    for tensor, wanted in zip(held, expected, strict=True):
        torch.testing.assert_close(tensor, wanted.detach(), rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.parametrize("name", few(OWN, "alexnet", "resnet", "swin"))
def test_captured_step_equals_eager(name: str) -> None:
    torch.manual_seed(0)
    make, inputs = OWN[name]
    check_step(make(), inputs())


@pytest.mark.slow
def test_captured_step_with_auxiliary_head_equals_eager() -> None:
    torch.manual_seed(0)
    model = InceptionV3(divide=16, classes=CLASSES, has_auxiliary=True)
    check_step(model, pictures(299))


@pytest.mark.parametrize("name", few(SMALL_CONFIGS, "bert", "mixtral"))
def test_captured_step_of_transformers_equals_eager(name: str) -> None:
    pytest.importorskip("transformers", reason="these models need the zoo extra")
    torch.manual_seed(0)
    family, config = SMALL_CONFIGS[name]
    changed = {key: 0.0 for key in config if "dropout" in key}
    if family is language.GPT:
        changed = {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    small = {**config, **changed, "vocab_size": TOKENS, "pad_token_id": 0}
    check_step(language.build_transformer(family, small), family.inputs(2, 6, TOKENS))


def test_stochastic_depth_is_traced_as_a_random_mask() -> None:
    backbone = SwinBackbone(width=8, depths=(2, 2), heads=(2, 2), window=3, side=32, drop=0.5)
    args, kwargs = pictures(32)
    trace = trace_step(
        Swin(backbone, classes=CLASSES), args, kwargs, loss=None, optimizer=Optimiser.SGD
    )
    targets = [str(node.target) for node in trace.graph.nodes]
    # Rates rise from 0: three of the four blocks drop, each on two branches.
    assert targets.count("aten.bernoulli_.float") == 3 * 2
