"""The layers that models are written with, as forward ops and their gradients on a `StepBuilder`.

A product of m x k by k x n takes 2 m n k FLOPs, and so does each of its two gradients. Elementwise
ops count the arithmetic of one element; biases ride along with their product, as kernels fuse them.
"""

from collections.abc import Sequence

from meshwright.graph.analytic import Gradient, StepBuilder, Value

FLOPS_PER_ELEMENT = {
    "relu": 1.0,
    "tanh": 6.0,
    "gelu": 8.0,  # tanh form: cube, 2 products, 2 sums, tanh as one, 2 products
    "softmax": 5.0,  # maximum, difference, exponential, sum, quotient
    "layernorm": 8.0,  # mean, difference, square, sum, root, quotient, scale, shift
    "batchnorm": 8.0,
}
"""Conventions: such ops are bound by memory, so their FLOPs seldom matter."""


def linear(
    step: StepBuilder,
    name: str,
    x: Value,
    rows: float,
    features: int,
    outputs: int,
) -> Value:
    """x W + b on `rows` rows."""
    weight = step.weight(name, outputs * (features + 1))
    flops = 2.0 * rows * features * outputs
    backward = (
        Gradient(into=(0,), kind="matmul", flops=flops, reads_weight=True),
        Gradient(kind="matmul", flops=flops, saved=(x,)),
    )
    return step.apply(name, "matmul", [x], rows * outputs, flops, backward, weight=weight)


def elementwise(
    step: StepBuilder, name: str, kind: str, x: Value, elements: float, *, saves_output: bool = True
) -> Value:
    """relu, tanh, softmax keep their output for backward, gelu its input (`saves_output=False`)."""
    flops = FLOPS_PER_ELEMENT[kind] * elements
    backward = Gradient(
        into=(0,),
        kind=f"{kind}_grad",
        flops=flops,
        saved=() if saves_output else (x,),
        saves_output=saves_output,
    )
    return step.apply(name, kind, [x], elements, flops, (backward,))


def add(step: StepBuilder, name: str, values: Sequence[Value], elements: float) -> Value:
    """A sum, such as a residual's; its gradient needs no op."""
    flops = (len(values) - 1.0) * elements
    return step.apply(name, "add", values, elements, flops, passes=range(len(values)))


def norm(
    step: StepBuilder, name: str, kind: str, x: Value, elements: float, features: int
) -> Value:
    """layernorm or batchnorm (statistics of the replica's own share) with scale and shift."""
    weight = step.weight(name, 2.0 * features)
    flops = FLOPS_PER_ELEMENT[kind] * elements
    backward = (
        Gradient(into=(0,), kind=f"{kind}_grad", flops=flops, saved=(x,), reads_weight=True),
        # Shift: a sum of gradients; scale: of their products with the normalised input.
        Gradient(kind=f"{kind}_grad", flops=5.0 * elements, saved=(x,)),
    )
    return step.apply(name, kind, [x], elements, flops, backward, weight=weight)


def cross_entropy(step: StepBuilder, name: str, logits: Value, rows: float, classes: int) -> Value:
    """A loss for each of `rows` rows; the labels, 8 bytes a row, are not modelled."""
    flops = FLOPS_PER_ELEMENT["softmax"] * rows * classes
    backward = (
        Gradient(into=(0,), kind="cross_entropy_grad", flops=2.0 * rows * classes, saved=(logits,)),
    )
    return step.apply(name, "cross_entropy", [logits], rows, flops, backward)
