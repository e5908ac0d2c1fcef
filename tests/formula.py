"""Training steps in fp32 from the formulas of their layers, for tests that need a made-up model.

`StepBuilder` records forward ops on a tape and, like autograd, walks it backwards: each recorded op
says which gradient ops it needs and which tensors they read. Weights get an update op each (Adam).
A product of m x k by k x n takes 2 m n k FLOPs, and so does each of its two gradients. Elementwise
ops count the arithmetic of one element; biases ride along with their product, as kernels fuse them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from meshwright.graph.build import GraphBuilder
from meshwright.graph.column import Phase, Split
from meshwright.graph.graph import Graph

ELEMENT_BYTES = 4.0
"""Of a number in fp32."""
MOMENT_BYTES = 8.0
"""Adam's two moments of one weight in fp32 (Kingma and Ba, 2015, algorithm 1)."""
UPDATE_FLOPS = 12.0
"""Of Adam for one weight: 3 for each moment, 2 bias corrections, root, epsilon, quotient, step."""
MLP_WIDTHS = (1024, 4096, 4096, 4096, 4096, 1000)
"""The widths of the zoo's mlp."""
FLOPS_PER_ELEMENT = {
    "relu": 1.0,
    "tanh": 6.0,
    "gelu": 8.0,  # tanh form: cube, 2 products, 2 sums, tanh as one, 2 products
    "softmax": 5.0,  # maximum, difference, exponential, sum, quotient
    "layernorm": 8.0,  # mean, difference, square, sum, root, quotient, scale, shift
    "batchnorm": 8.0,
}
"""Conventions: such ops are bound by memory, so their FLOPs seldom matter."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor on the forward path."""

    tensor: int
    bytes: float
    needs_gradient: bool


@dataclass(frozen=True, slots=True)
class Weight:
    """Parameters that one op reads; one group, one update op."""

    name: str
    elements: float
    group: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradient:
    """One backward op of a forward op; it always reads the gradient of the output."""

    into: tuple[int, ...] = ()
    """The inputs whose gradients it makes, one tensor each; none: the weight's."""
    kind: str
    flops: float = 0.0
    saved: tuple[Value, ...] = ()
    """What it reads of the forward path."""
    saves_output: bool = False
    """Whether it reads the op's own output, too."""
    reads_weight: bool = False


@dataclass(frozen=True, slots=True)
class _Record:
    name: str
    op: int
    inputs: tuple[Value, ...]
    output: Value
    weight: Weight | None
    backward: tuple[Gradient, ...]
    passes: tuple[int, ...]


class StepBuilder:
    """Forward ops in, a whole training step out."""

    def __init__(self, name: str, batch: float) -> None:
        self.batch = batch
        self._builder = GraphBuilder(name, batch)
        self._tape: list[_Record] = []
        self._num_weights = 0

    def input(self, name: str, size: float) -> Value:
        """The step's input of `size` bytes, which needs no gradient."""
        op = self._builder.add_op(name, kind="input", precision="fp32", bytes_written=size)
        return Value(self._builder.add_tensor(op, size), size, False)

    def weight(self, name: str, elements: float) -> Weight:
        """New parameters, for one op to read."""
        self._num_weights += 1
        return Weight(name, elements, self._num_weights - 1)

    def apply(
        self,
        name: str,
        kind: str,
        inputs: Sequence[Value],
        elements: float,
        flops: float,
        backward: Sequence[Gradient] = (),
        *,
        weight: Weight | None = None,
        passes: Sequence[int] = (),
    ) -> Value:
        """Add a forward op that makes a tensor of `elements` numbers.

        Weights are read whatever the batch. The output's gradient is that of the inputs `passes`,
        without an op.
        """
        size = elements * ELEMENT_BYTES
        weight_bytes = weight.elements * ELEMENT_BYTES if weight else 0.0
        op = self._builder.add_op(
            name,
            kind=kind,
            group=weight.group if weight else -1,
            module=name if weight else name.rpartition(".")[0],
            precision="fp32",
            flops=flops,
            bytes_read=sum(each.bytes for each in inputs) + weight_bytes,
            fixed_bytes_read=weight_bytes,
            bytes_written=size,
            parameter_bytes=weight_bytes,
            state_bytes=weight_bytes,
        )
        for each in inputs:
            self._builder.add_use(each.tensor, op)
        needs_gradient = weight is not None or any(each.needs_gradient for each in inputs)
        output = Value(self._builder.add_tensor(op, size), size, needs_gradient)
        self._tape.append(
            _Record(name, op, tuple(inputs), output, weight, tuple(backward), tuple(passes))
        )
        return output

    def finish(self, loss: Value) -> Graph:
        """The whole step: the backward ops from `loss` on and the updates, then the graph."""
        # The gradient of the loss is one, so the loss itself stands for it.
        gradients = {loss.tensor: [loss.tensor]}
        for record in reversed(self._tape):
            arriving = gradients.pop(record.output.tensor, [])
            if arriving and record.output.needs_gradient:
                self._differentiate(record, self._sum(record, arriving), gradients)
        return self._builder.finish()

    def _sum(self, record: _Record, arriving: list[int]) -> int:
        """One gradient of a value that several ops read: autograd adds them up."""
        if len(arriving) == 1:
            return arriving[0]
        size = record.output.bytes
        op = self._add_backward(
            f"{record.name}.grad_sum",
            "add",
            record,
            group=-1,  # it reads no weight, so it may run elsewhere
            flops=(len(arriving) - 1) * size / ELEMENT_BYTES,
            bytes_read=len(arriving) * size,
            bytes_written=size,
        )
        for tensor in arriving:
            self._builder.add_use(tensor, op)
        return self._builder.add_tensor(op, size)

    def _differentiate(
        self, record: _Record, arriving: int, gradients: dict[int, list[int]]
    ) -> None:
        for i in record.passes:
            if record.inputs[i].needs_gradient:
                gradients.setdefault(record.inputs[i].tensor, []).append(arriving)
        for number, each in enumerate(record.backward):
            wanted = [i for i in each.into if record.inputs[i].needs_gradient]
            if each.into and not wanted:
                continue
            if each.into:
                suffix = "grad" if number == 0 else f"grad{number}"
                op = self._input_gradient(f"{record.name}.{suffix}", record, each, wanted)
                for i in wanted:
                    made = self._builder.add_tensor(op, record.inputs[i].bytes)
                    gradients.setdefault(record.inputs[i].tensor, []).append(made)
            else:
                op = self._weight_gradient(record, each)
            for tensor in (arriving, *(value.tensor for value in _saved(record, each))):
                self._builder.add_use(tensor, op)
            if not each.into:
                self._update(record, op)

    def _input_gradient(
        self, name: str, record: _Record, gradient: Gradient, wanted: list[int]
    ) -> int:
        weights = record.weight.elements if record.weight and gradient.reads_weight else 0.0
        fixed = weights * ELEMENT_BYTES
        return self._add_backward(
            name,
            gradient.kind,
            record,
            flops=gradient.flops,
            bytes_read=_activation_bytes(record, gradient) + fixed,
            fixed_bytes_read=fixed,
            bytes_written=sum(record.inputs[i].bytes for i in wanted),
        )

    def _weight_gradient(self, record: _Record, gradient: Gradient) -> int:
        assert record.weight is not None, f"{record.name} has no weight"
        size = record.weight.elements * ELEMENT_BYTES
        return self._add_backward(
            f"{record.name}.grad_weight",
            gradient.kind,
            record,
            split=Split.SUM,
            flops=gradient.flops,
            bytes_read=_activation_bytes(record, gradient),
            bytes_written=size,
            fixed_bytes_written=size,
        )

    def _add_backward(
        self,
        name: str,
        kind: str,
        record: _Record,
        *,
        group: int | None = None,
        split: Split = Split.BATCH,
        **sizes: Any,
    ) -> int:
        if group is None:
            group = record.weight.group if record.weight else -1
        return self._builder.add_op(
            name,
            kind=kind,
            phase=Phase.BACKWARD,
            split=split,
            group=group,
            partner=record.op,
            module=record.name if record.weight else record.name.rpartition(".")[0],
            precision="fp32",
            **sizes,
        )

    def _update(self, record: _Record, gradient: int) -> None:
        """Adam reads weights, their gradients and moments and writes weights and moments."""
        weight = record.weight
        assert weight is not None, f"{record.name} has no weight"
        size, state = weight.elements * ELEMENT_BYTES, weight.elements * MOMENT_BYTES
        op = self._builder.add_op(
            f"{weight.name}.update",
            kind="adam",
            phase=Phase.UPDATE,
            split=Split.NONE,
            group=weight.group,
            module=weight.name,
            precision="fp32",
            flops=UPDATE_FLOPS * weight.elements,
            fixed_flops=UPDATE_FLOPS * weight.elements,
            bytes_read=2 * size + state,
            fixed_bytes_read=2 * size + state,
            bytes_written=size + state,
            fixed_bytes_written=size + state,
            state_bytes=state,
        )
        self._builder.add_tensor(gradient, size, [op])


def _saved(record: _Record, gradient: Gradient) -> tuple[Value, ...]:
    return (*gradient.saved, record.output) if gradient.saves_output else gradient.saved


def _activation_bytes(record: _Record, gradient: Gradient) -> float:
    """What a backward op reads besides weights: the output's gradient and saved values."""
    return record.output.bytes + sum(value.bytes for value in _saved(record, gradient))


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


def mlp(name: str, batch: float, widths: Sequence[int] = MLP_WIDTHS) -> Graph:
    """Linear layers with relu between them; the last width is the number of classes."""
    step = StepBuilder(name, batch)
    x = step.input("input", 4.0 * batch * widths[0])
    for number, (features, outputs) in enumerate(pairwise(widths)):
        x = linear(step, f"layer.{number}", x, batch, features, outputs)
        if number < len(widths) - 2:
            x = elementwise(step, f"relu.{number}", "relu", x, batch * outputs)
    return step.finish(cross_entropy(step, "loss", x, batch, widths[-1]))
