"""Vision Transformer (Dosovitskiy et al. 2021) as a training step, by formulas.

Op for op what `capture` records of the zoo's own: patches by a convolution, a class token,
learned positions, norms before the blocks, dropout, and a classifier on the class token.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from meshwright.graph.architecture.architecture import Architecture, build_model
from meshwright.graph.architecture.loss import cross_entropy
from meshwright.graph.architecture.op import (
    WIDEST,
    activation,
    add,
    add_broadcast,
    cat_kind,
    dropout,
    linear,
    norm,
    select_first,
    separate_attention,
    sum_rows,
)
from meshwright.graph.architecture.value import INT64, ProductSize, Value

CHANNELS = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Vit(Architecture):
    """A transformer on pictures of `side` pixels, cut into squares of `patch` pixels."""

    BATCH: ClassVar[float] = 256
    patch: int = 16
    side: int = 224
    classes: int = 1000
    intermediate: int = 0

    @staticmethod
    def usual(sizes: Mapping[str, Any]) -> dict[str, int]:
        """Perceptrons are four times as wide as `hidden` unless said."""
        return {"intermediate": 4 * sizes["hidden"]}

    @property
    def patches(self) -> int:
        """The patches of a picture."""
        return (self.side // self.patch) ** 2

    @property
    def tokens(self) -> int:
        """The patches of a picture and its class token."""
        return self.patches + 1

    def loss(self) -> Value:
        """From pictures to the cross-entropy of their classes."""
        tape, hidden = self.tape, self.hidden
        first = tape.weight("", hidden)
        places = tape.weight("", self.tokens * hidden)
        x = _prepend(self, first, _cut(self))
        x = dropout(tape, "dropout", add_broadcast(tape, "", x, places))
        x = tape.repeat("layers", self.layers, partial(_layer, self), x)
        x = norm(tape, "norm", x, hidden)
        x = select_first(tape, x, self.samples * hidden)
        x = linear(tape, "classifier", x, hidden, self.classes, shaped=False)
        return cross_entropy(tape, x, tape.input(self.samples, INT64), self.classes)


vit = partial(build_model, Vit)


def _cut(model: Vit) -> Value:
    """Patches by a convolution with windows that do not overlap; pictures need no gradient."""
    tape, hidden = model.tape, model.hidden
    depth = CHANNELS * model.patch**2
    weight, bias = tape.pair("patches", hidden * depth, hidden)
    pictures = tape.input(model.samples * CHANNELS * model.side**2, tape.weight_type)
    rows = model.samples * model.patches
    size = tape.weight_type.size
    aligned = math.gcd(WIDEST, math.gcd(CHANNELS, hidden) * size)
    work: dict[str, Any] = {
        "flops": 2 * rows * hidden * depth,
        "product": ProductSize(rows, hidden, depth, 1, aligned),
        # Tensor cores want channels side by side: pictures, weights and result are laid out anew.
        "workspace": pictures.bytes + weight.bytes + rows * hidden * size,
        "precision": "tf32" if size > 2 else tape.weight_type.precision,
    }
    made_bytes = rows * hidden * size
    made = tape.make(
        "patches", "convolution", (pictures, weight, bias), (rows * hidden, tape.weight_type),
        kind="biased_convolution",
        moved=pictures.bytes + weight.bytes + bias.bytes + made_bytes,
        written=2 * made_bytes,  # the bias is added by a kernel of its own
        **work,
    )  # fmt: skip

    def backward(gradient: Value) -> list[Value]:
        return tape.run(
            "", "convolution_backward", (gradient, pictures),
            [(weight.elements, tape.weight_type), (hidden, tape.weight_type)],
            kind="biased_convolution_backward",
            moved=2 * gradient.bytes + pictures.bytes,
            **work,
        )  # fmt: skip

    tape.record(made, (weight, bias), backward)
    return tape.view(tape.view(made))


def _prepend(model: Vit, first: Value, x: Value) -> Value:
    """The class token before the patches of every sample."""
    tape, hidden, samples = model.tape, model.hidden, model.samples
    tape.count_views(1)
    repeated = Value(first.storage, hidden, first.type)
    tape.record(
        repeated, (first,), lambda gradient: [sum_rows(tape, gradient, hidden)], known=False
    )
    size = samples * model.tokens * hidden, x.type
    made = tape.make("", "cat", (repeated, x), size, kind=cat_kind(hidden, x))

    def backward(gradient: Value) -> list[Value]:
        tape.count_views(2)
        sizes = (samples * hidden, x.elements)
        return [Value(gradient.storage, size, x.type) for size in sizes]

    return tape.record(made, (repeated, x), backward)


def _layer(model: Vit, name: str, x: Value) -> Value:
    tape, hidden, wide = model.tape, model.hidden, model.intermediate
    y = _attention(model, f"{name}.attention", norm(tape, f"{name}.norm1", x, hidden))
    x = add(tape, name, x, dropout(tape, f"{name}.dropout", y))
    y = norm(tape, f"{name}.norm2", x, hidden)
    name_inner = f"{name}.perceptron"
    y = linear(tape, f"{name_inner}.0", y, hidden, wide)
    y = activation(tape, f"{name_inner}.1", "gelu", y)
    y = dropout(tape, f"{name_inner}.2", y)
    y = linear(tape, f"{name_inner}.3", y, wide, hidden)
    return add(tape, name, x, dropout(tape, f"{name_inner}.4", y))


def _attention(model: Vit, name: str, x: Value) -> Value:
    tape, hidden = model.tape, model.hidden
    y = separate_attention(
        tape, name, "", x, hidden=hidden, heads=model.heads, sequence=model.tokens
    )
    return linear(tape, f"{name}.output", y, hidden, hidden)
