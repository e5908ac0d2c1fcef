"""Training steps of named models, built from formulas: where there is no torch, and in benchmarks.

`meshwright.zoo` has the names that users see; the batches here are those of this module alone.
Transformers are in `meshwright.graph.architecture`.
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

MLP_WIDTHS = (1024, 4096, 4096, 4096, 4096, 1000)
CIFAR_CLASSES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class FormulaModel:
    """One model that formulas exist for."""

    name: str
    batch: int
    """Samples a step unless said otherwise."""
    build: Callable[[str, float], Graph]
    """(name, batch) to the step."""


def formula_models() -> tuple[FormulaModel, ...]:
    """What `build_model` can build."""
    vgg16_32 = partial(build_vgg16, side=32, classes=CIFAR_CLASSES)
    return (
        FormulaModel(name="mlp", batch=256, build=build_mlp),
        FormulaModel(name="vgg16", batch=64, build=build_vgg16),
        FormulaModel(name="vgg16-32", batch=64, build=vgg16_32),
        FormulaModel(name="resnet50", batch=64, build=build_resnet50),
        FormulaModel(name="inception-v3", batch=64, build=build_inception_v3),
        FormulaModel(name="unet", batch=16, build=build_unet),
    )


def build_model(name: str, batch: float | None = None) -> Graph:
    """The training step of a model that formulas exist for."""
    models = {model.name: model for model in formula_models()}
    if name not in models:
        near = difflib.get_close_matches(name.lower(), models, n=3)
        hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(models)}"
        raise InputError(f"zoo: no formulas exist for {quoted(name)}; {hint}")
    samples = models[name].batch if batch is None else batch
    if not 0 < samples < float("inf"):
        raise InputError(f"{name}: batch must be positive, got {samples}")
    return models[name].build(name, samples)


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
