"""Mixtral (Jiang et al. 2024) as a training step, by formulas: Llama with a mixture of experts.

Op for op what `capture` records of transformers' MixtralForCausalLM with grouped products: tokens
are sorted by expert, every expert computes its own, and they are put back and added up. Experts
get equally many tokens, as far as sizes tell.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from meshwright.graph.architecture.architecture import build_model
from meshwright.graph.architecture.llama import Decoder
from meshwright.graph.architecture.op import (
    Linear,
    activation,
    alignment,
    cast,
    split_columns,
    sum_inner,
)
from meshwright.graph.architecture.value import FP32, INT32, INT64, ProductSize, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixtral(Decoder):
    """A Mixtral; grouped products know bf16 weights only."""

    PRECISIONS: ClassVar[tuple[str, ...]] = ("mixed", "bf16")
    PRECISION: ClassVar[str] = "bf16"
    experts: int = 8
    experts_per_token: int = 2

    def perceptron(self, name: str) -> Callable[[Value], Value]:
        """Make the weights of a mixture of experts and return what computes it."""
        return _Mixture(self, name).compute


mixtral = partial(build_model, Mixtral)


class _Mixture:
    """The perceptron of one layer."""

    def __init__(self, model: Mixtral, name: str) -> None:
        experts, chosen = model.experts, model.experts_per_token
        self.model, self.tape, self.name = model, model.tape, name
        self.experts, self.chosen = experts, chosen
        self.tokens = model.samples * model.sequence
        self.copies = self.tokens * chosen
        """Rows of all experts: every token is with several."""
        hidden, wide = model.hidden, model.intermediate
        self.router = self.tape.weight(f"{name}.gate", experts * hidden)
        self.wide = self.tape.weight(f"{name}.experts", experts * 2 * wide * hidden)
        self.narrow = self.tape.weight(f"{name}.experts", experts * hidden * wide)
        self.name_experts = f"{name}.experts"
        self.strided = "strided_" if chosen > 1 else ""
        """Before the kind of an op that has a number a token and reads one a copy."""

    def compute(self, x: Value) -> Value:
        """Route, sort, compute, put back, add up."""
        tape = self.tape
        x = tape.view(x)
        shares, indices = self._route(x)
        tape.count_views(1)
        shares = tape.view(shares)
        order, owners, sorted_experts = self._sort(indices)
        rows = self._index(x, owners, self.copies * self.model.hidden)
        shares = self._index(shares, order, self.copies)
        ends = self._find_ends(sorted_experts)
        y = self._apply_experts(rows, ends)
        y = self._weigh(y, tape.view(shares))
        y = self._index(y, self._invert(order), self.copies * self.model.hidden)
        y = cast(tape, self.name_experts, self._add_up(y), x.type)
        return tape.view(y)

    def _route(self, x: Value) -> tuple[Value, Value]:
        """The share of every chosen expert in a token's result, and which they are."""
        tape, name, hidden = self.tape, f"{self.name}.gate", self.model.hidden
        scores = Linear(tape, name, hidden, self.experts).plain(
            tape.view(x), self.router, shaped=False
        )
        scores = cast(tape, name, scores, FP32)
        weights = tape.make(name, "_softmax", (scores,))

        def normalise(gradient: Value) -> list[Value]:
            back = "_softmax_backward_data"
            return [tape.make("", back, (gradient, weights), workspace=gradient.bytes)]

        tape.record(weights, (scores,), normalise)
        sizes = [(self.copies, FP32), (self.copies, INT64)]
        best, indices = tape.run(name, "topk", (weights,), sizes)

        def backward(gradient: Value) -> list[Value]:
            zeros = tape.make("", "new_zeros", (), (scores.elements, FP32))
            return [tape.make("", "scatter", (zeros, indices, gradient))]

        tape.record(best, (weights,), backward)
        return self._normalise(best), indices

    def _normalise(self, best: Value) -> Value:
        """By their sum, in place; what was there before is copied for the gradient."""
        tape, name = self.tape, f"{self.name}.gate"
        product = ProductSize(self.tokens, 1, 1, 1, 0)
        total = tape.make(name, "sum", (best,), (self.tokens, FP32), product=product)

        def spread(gradient: Value) -> list[Value]:
            tape.count_views(1)
            return [Value(gradient.storage, gradient.elements, FP32, layout=self.strided)]

        tape.record(total, (best,), spread)
        kept = tape.make(name, "clone", (best,))
        made = tape.make(name, "div_", (best, total), kind=f"{self.strided}div_")

        def backward(gradient: Value) -> list[Value]:
            ratio = tape.make("", "div", (kept, total), kind=f"{self.strided}div")
            ratio = tape.make("", "div", (ratio, total), kind=f"{self.strided}div")
            turned = tape.make("", "neg", (gradient,))
            slope = tape.make("", "mul", (turned, ratio))
            into = tape.make("", "div", (gradient, total), kind=f"{self.strided}div")
            return [into, sum_inner(tape, slope, self.tokens) if self.chosen > 1 else slope]

        return tape.record(made, (best, total), backward, known=False)

    def _sort(self, indices: Value) -> tuple[Value, Value, Value]:
        """The order of copies by expert, the token of each, and the experts in that order."""
        tape, name, size = self.tape, self.name_experts, (self.copies, INT64)
        ranked, order = tape.run(name, "sort", (indices,), [size] * 2, plain=True)
        return order, tape.make_plain(name, "floor_divide", (order,)), ranked

    def _find_ends(self, ranked: Value) -> Value:
        """Where the rows of each expert end."""
        tape, name = self.tape, self.name_experts
        short = tape.make_plain(name, "_to_copy", (ranked,), (self.copies, INT32))
        counted = tape.make_plain(name, "histc", (short,), (self.experts, INT32))
        return tape.make_plain(name, "cumsum", (counted,))

    def _index(self, x: Value, rows: Value, elements: int) -> Value:
        """Rows of x; as much of it is read as is made."""
        tape, name = self.tape, self.name_experts
        moved = elements * x.type.size + rows.bytes
        made = tape.make(name, "index", (x, rows), (elements, x.type), moved=moved)

        def backward(gradient: Value) -> list[Value]:
            zeros = tape.make("", "new_zeros", (), (x.elements, x.type))
            return [tape.make("", "index_put", (zeros, rows, gradient))]

        return tape.record(made, (x,), backward)

    def _apply_experts(self, rows: Value, ends: Value) -> Value:
        tape, wide = self.tape, self.model.intermediate
        both = self._multiply(rows, self.wide, ends, self.model.hidden, 2 * wide)
        gate, up = split_columns(tape, both, 2, wide)
        gate = activation(tape, f"{self.name_experts}.act_fn", "silu", gate, strided=True)
        y = self._gate(gate, up)
        return self._multiply(y, self.narrow, ends, wide, self.model.hidden)

    def _gate(self, gate: Value, up: Value) -> Value:
        """The product of both; `up` is half of each row of something wider."""
        tape = self.tape
        made = tape.make(self.name_experts, "mul", (gate, up), kind="strided_mul")

        def backward(gradient: Value) -> list[Value]:
            into_up = tape.make("", "mul", (gradient, gate))
            return [tape.make("", "mul", (gradient, up), kind="strided_mul"), into_up]

        return tape.record(made, (gate, up), backward)

    def _multiply(self, x: Value, weight: Value, ends: Value, inputs: int, outputs: int) -> Value:
        """Every expert's rows by its own weights: one grouped product."""
        tape, experts = self.tape, self.experts
        rows = self.copies / experts
        flops = 2 * self.copies * inputs * outputs
        aligned = alignment(x.type.size, inputs, outputs)
        read = tape.view(weight)

        def run(
            reads: tuple[Value, ...], elements: int, rows: float, columns: float, depth: float
        ) -> Value:
            name, size = self.name_experts, (elements, x.type)
            product = ProductSize(rows, columns, depth, experts, aligned)
            return tape.make(
                name, "_grouped_mm", (*reads, ends), size, flops=flops, product=product
            )

        def backward(gradient: Value) -> list[Value]:
            tape.count_views(1)
            of_weight = run((gradient, x), weight.elements, outputs, inputs, rows)
            tape.count_views(2)
            into = run((gradient, weight), x.elements, rows, inputs, outputs)
            return [into, of_weight]

        made = run((x, read), self.copies * outputs, rows, outputs, inputs)
        return tape.record(made, (x, read), backward)

    def _weigh(self, y: Value, shares: Value) -> Value:
        """Every row by its share, in fp32."""
        tape, size = self.tape, (y.elements, FP32)
        made = tape.make(self.name_experts, "mul", (y, shares), size, kind="strided_mul")

        def backward(gradient: Value) -> list[Value]:
            products = tape.make("", "mul", (gradient, y))
            into = tape.make("", "mul", (gradient, shares), kind="strided_mul")
            into = tape.make("", "_to_copy", (into,), (y.elements, y.type))
            return [into, sum_inner(tape, products, self.copies)]

        return tape.record(made, (y, shares), backward)

    def _invert(self, order: Value) -> Value:
        """Where each copy has gone."""
        tape, name, size = self.tape, self.name_experts, (self.copies, INT64)
        empty = tape.make_plain(name, "empty_like", (), size, written=0)
        numbers = tape.make_plain(name, "arange", (), size)
        return tape.make_plain(name, "index_put_", (empty, order, numbers))

    def _add_up(self, y: Value) -> Value:
        """The copies of each token."""
        tape, hidden = self.tape, self.model.hidden
        tape.count_views(1)
        grouped = Value(y.storage, y.elements, y.type)

        def spread(gradient: Value) -> list[Value]:
            if self.chosen > 1:
                back = y.elements, y.type
                gradient = tape.make("", "clone", (gradient,), back, kind="strided_clone")
            tape.count_views(1)
            return [gradient]

        tape.record(grouped, (y,), spread)
        product = ProductSize(self.tokens, hidden, self.chosen, 1, 0)
        size = self.tokens * hidden, y.type
        made = tape.make(self.name_experts, "sum", (grouped,), size, product=product)

        def backward(gradient: Value) -> list[Value]:
            tape.count_views(2)
            return [gradient]

        return tape.record(made, (grouped,), backward)
