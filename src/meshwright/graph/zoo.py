"""Training steps of named models, built from formulas: where there is no torch, and in benchmarks.

`meshwright.zoo` has the names that users see; the batches here are those of this module alone. The
transformers here have plain attention and a head that is a copy, for tests and benchmarks; users
get those of `meshwright.graph.architecture`.
"""

import difflib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from meshwright.errors import InputError, quoted
from meshwright.graph.analytic import StepBuilder
from meshwright.graph.convnet import (
    build_inception_v3,
    build_resnet50,
    build_unet,
    build_vgg16,
)
from meshwright.graph.graph import Graph
from meshwright.graph.layer import cross_entropy, elementwise, linear
from meshwright.graph.transformer import TransformerShape, build_transformer

MLP_WIDTHS = (1024, 4096, 4096, 4096, 4096, 1000)
CIFAR_CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooEntry:
    """One model that formulas exist for."""

    name: str
    description: str
    batch: int
    """Samples a step unless said otherwise."""
    sequence: int | None = None
    """Tokens a sample unless said otherwise; None: the model has no sequence."""


@dataclass(frozen=True, slots=True)
class _Model:
    entry: ZooEntry
    build: Callable[[str, float, int], Graph]
    """(name, batch, sequence); models without a sequence ignore the last."""


def zoo_models() -> tuple[ZooEntry, ...]:
    """What `build_model` can build."""
    return tuple(model.entry for model in _models())


def build_model(name: str, batch: float | None = None, sequence: int | None = None) -> Graph:
    """The training step of a model of the zoo."""
    models = {model.entry.name: model for model in _models()}
    if name not in models:
        near = difflib.get_close_matches(name.lower(), models, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(models)}"
        raise InputError(f"zoo: no model is called {quoted(name)}; {hint}")
    entry = models[name].entry
    if sequence is not None and entry.sequence is None:
        raise InputError(f"{name}: has no sequence, got sequence = {sequence}")
    samples = entry.batch if batch is None else batch
    if not 0 < samples < float("inf"):
        raise InputError(f"{name}: batch must be positive, got {samples}")
    return models[name].build(
        name, samples, sequence if sequence is not None else entry.sequence or 0
    )


def build_mlp(name: str, batch: float, widths: Sequence[int] = MLP_WIDTHS) -> Graph:
    """Linear layers with relu between them; the last width is the number of classes."""
    if len(widths) < 2 or min(widths) < 1:
        raise InputError(f"{name}: must have two positive widths or more, got {list(widths)}")
    step = StepBuilder(name, batch)
    x = step.input("input", 4.0 * batch * widths[0])
    for number, (features, outputs) in enumerate(pairwise(widths)):
        x = linear(step, f"layer.{number}", x, batch, features, outputs)
        if number < len(widths) - 2:
            x = elementwise(step, f"relu.{number}", "relu", x, batch * outputs)
    return step.finish(cross_entropy(step, "loss", x, batch, widths[-1]))


def _models() -> tuple[_Model, ...]:
    return (*_transformers(), *_others())


def _transformers() -> list[_Model]:
    # Layers, hidden size, heads: Devlin et al. (2019), section 3; Radford et al. (2019), table 2,
    # with the heads of the released checkpoints; bert-48 is the deeper BERT-large of the pipeline
    # papers (DAPPLE, Chimera).
    bert = ("bert-base", 12, 768, 12), ("bert-large", 24, 1024, 16), ("bert-48", 48, 1024, 16)
    gpt2 = (
        ("gpt2", 12, 768, 12), ("gpt2-medium", 24, 1024, 16), ("gpt2-large", 36, 1280, 20),
        ("gpt2-xl", 48, 1600, 25),
    )  # fmt: skip
    bert_text = "BERT pre-training with pooler and both heads, decoder tied"
    models = [_transformer(*each, 30522, 512, False, 32, 512, bert_text) for each in bert]
    gpt2_text = "GPT-2, head tied to the embeddings"
    models += [_transformer(*each, 50257, 1024, True, 8, 1024, gpt2_text) for each in gpt2]
    return models


def _transformer(
    name: str,
    layers: int,
    hidden: int,
    heads: int,
    vocabulary: int,
    positions: int,
    is_decoder: bool,
    batch: int,
    sequence: int,
    text: str,
) -> _Model:
    shape = TransformerShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        vocabulary=vocabulary,
        positions=positions,
        is_decoder=is_decoder,
    )
    description = f"{text}; {layers} layers of {hidden}"
    entry = ZooEntry(name=name, description=description, batch=batch, sequence=sequence)
    return _Model(
        entry, lambda name, batch, sequence: build_transformer(name, shape, batch, sequence)
    )


def _others() -> list[_Model]:
    mlp_text = f"linear layers of widths {', '.join(map(str, MLP_WIDTHS))}"
    vgg16_32 = partial(build_vgg16, side=32, classes=CIFAR_CLASSES)
    inception_text = "Inception-v3 on 299 x 299 pictures, no auxiliary head"
    return [
        _without_sequence("mlp", mlp_text, 256, build_mlp),
        _without_sequence("vgg16", "VGG-16 on 224 x 224 pictures", 64, build_vgg16),
        _without_sequence("vgg16-32", "VGG-16 on 32 x 32 pictures", 64, vgg16_32),
        _without_sequence("resnet50", "ResNet-50 (v1.5) on 224 x 224 pictures", 64, build_resnet50),
        _without_sequence("inception-v3", inception_text, 64, build_inception_v3),
        _without_sequence("unet", "U-Net on 256 x 256 pictures, two classes", 16, build_unet),
    ]


def _without_sequence(
    name: str, description: str, batch: int, build: Callable[[str, float], Graph]
) -> _Model:
    entry = ZooEntry(name=name, description=description, batch=batch)
    return _Model(entry, lambda name, batch, _sequence: build(name, batch))
