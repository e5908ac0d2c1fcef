"""A GPT training step as Megatron-DeepSpeed runs it: kernels, sizes and what gradients read.

Differs from `meshwright.graph.architecture.gpt` as that library does: scores of attention are
written out, softmax with scale and mask is one kernel, and so are bias with GELU and bias with
dropout and the residual sum. Knows no devices and no times.
"""

from dataclasses import dataclass
from functools import partial

from meshwright.graph.architecture.loss import causal_loss
from meshwright.graph.architecture.op import (
    Linear,
    add_broadcast,
    dropout,
    embedding,
    layer_norm,
    sum_rows,
)
from meshwright.graph.architecture.score import SOFTMAX, multiply_heads
from meshwright.graph.architecture.step import build_step
from meshwright.graph.architecture.tape import StepTape
from meshwright.graph.architecture.value import BOOL, FP32, INT64, ProductSize, Value
from meshwright.graph.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What tells one step from another."""

    hidden: int
    heads: int
    layers: int
    sequence: int
    vocabulary: int
    batch: int
    is_fused: bool
    """Whether softmax is one kernel."""


def megatron_step(shape: Shape) -> Graph:
    """The whole step of `shape.batch` sequences in 16-bit numbers."""

    def record(samples: int, layers: int) -> StepTape:
        tape = StepTape("bf16")
        model = _Model(tape, shape, samples)
        return tape.finish(_forward(model, layers), "adamw")

    return build_step("megatron", shape.batch, shape.layers, record)


@dataclass(frozen=True, slots=True)
class _Model:
    tape: StepTape
    shape: Shape
    samples: int


def _forward(model: _Model, layers: int) -> Value:
    tape, shape = model.tape, model.shape
    tokens, hidden = model.samples * shape.sequence, shape.hidden
    words = tape.weight("embedding.word", shape.vocabulary * hidden)
    places = tape.weight("embedding.position", shape.sequence * hidden)
    ids = tape.input(tokens, INT64)
    x = embedding(tape, "embedding.word", words, ids, tokens * hidden)
    order = tape.make_plain("embedding", "arange", (), (shape.sequence, INT64))
    y = embedding(tape, "embedding.position", places, order, shape.sequence * hidden)
    x = dropout(tape, "embedding", add_broadcast(tape, "embedding", x, y))
    x = tape.repeat("layers", layers, partial(_layer, model), x)
    x = layer_norm(tape, "final_norm", x, *tape.pair("final_norm", hidden, hidden))
    own = tape.weight("logits", shape.vocabulary * hidden)  # a pipeline's last stage has a copy
    logits = Linear(tape, "logits", hidden, shape.vocabulary).plain(x, own)
    return causal_loss(tape, logits, model.samples, shape.sequence, shape.vocabulary)


def _layer(model: _Model, name: str, x: Value) -> Value:
    tape, hidden = model.tape, model.shape.hidden
    norm = tape.pair(f"{name}.input_norm", hidden, hidden)
    y = _attention(model, f"{name}.attention", layer_norm(tape, f"{name}.input_norm", x, *norm))
    x = _bias_dropout_add(tape, name, y, tape.weight(f"{name}.attention.dense", hidden), x)
    norm = tape.pair(f"{name}.norm", hidden, hidden)
    y = layer_norm(tape, f"{name}.norm", x, *norm)
    wide = 4 * hidden
    weight, bias = tape.pair(f"{name}.mlp.up", hidden * wide, wide)
    y = _bias_gelu(
        tape, f"{name}.mlp", Linear(tape, f"{name}.mlp.up", hidden, wide).plain(y, weight), bias
    )
    weight, bias = tape.pair(f"{name}.mlp.down", hidden * wide, hidden)
    y = Linear(tape, f"{name}.mlp.down", wide, hidden).plain(y, weight)
    return _bias_dropout_add(tape, name, y, bias, x)


def _attention(model: _Model, name: str, x: Value) -> Value:
    tape, shape = model.tape, model.shape
    hidden, heads, length = shape.hidden, shape.heads, shape.sequence
    width, count = hidden // heads, model.samples * heads
    weights = tape.pair(f"{name}.qkv", 3 * hidden * hidden, 3 * hidden)
    mixed = Linear(tape, f"{name}.qkv", hidden, 3 * hidden).biased(x, *weights)
    query, key, value = _split(tape, mixed)
    scores = multiply_heads(tape, name, query, key, ProductSize(length, length, width, count, 16))
    scores = _softmax(tape, name, scores, shape.is_fused)
    scores = dropout(tape, name, scores)
    context = multiply_heads(
        tape, name, scores, value, ProductSize(length, width, length, count, 16)
    )
    context = _copy(tape, name, context)
    weight = tape.weight(f"{name}.dense", hidden * hidden)
    return Linear(tape, f"{name}.dense", hidden, hidden).plain(context, weight)


def _split(tape: StepTape, x: Value) -> list[Value]:
    parts = [Value(x.storage, x.elements // 3, x.type) for _ in range(3)]
    tape.record_all(parts, (x,), lambda *given: tape.run("", "cat", given, [(x.elements, x.type)]))
    return parts


def _softmax(tape: StepTape, module: str, x: Value, is_fused: bool) -> Value:
    """Of scaled and masked scores: one kernel, or in fp32 with a kernel a step."""
    size, wide = [(x.elements, x.type)], [(x.elements, FP32)]
    steps = () if is_fused else ("_to_copy", "mul", "masked_fill")
    y = x
    for step in steps:
        (y,) = tape.run(module, step, (y,), wide)
    (made,) = tape.run(module, "_softmax", (y,), size if is_fused else wide, kind=SOFTMAX)
    after = made if is_fused else tape.run(module, "_to_copy", (made,), size)[0]

    def backward(gradient: Value) -> list[Value]:
        if not is_fused:
            (gradient,) = tape.run(module, "_to_copy", (gradient,), wide)
        (into,) = tape.run(
            module, "_softmax_backward_data", (gradient, made), size if is_fused else wide,
            kind=SOFTMAX,
        )  # fmt: skip
        for step in reversed(steps):
            (into,) = tape.run(module, step, (into,), size if step == "_to_copy" else wide)
        return [into]

    return tape.record(after, (x,), backward)


def _copy(tape: StepTape, module: str, x: Value) -> Value:
    size = [(x.elements, x.type)]
    (made,) = tape.run(module, "clone", (x,), size)
    return tape.record(made, (x,), lambda gradient: tape.run(module, "clone", (gradient,), size))


def _bias_gelu(tape: StepTape, module: str, x: Value, bias: Value) -> Value:
    size = [(x.elements, x.type)]
    (made,) = tape.run(module, "gelu", (x, bias), size, kind="bias_gelu")

    def backward(gradient: Value) -> list[Value]:
        (into,) = tape.run(module, "gelu_backward", (gradient, x, bias), size, kind="bias_gelu")
        return [into, sum_rows(tape, into, bias.elements)]

    return tape.record(made, (x, bias), backward)


def _bias_dropout_add(tape: StepTape, module: str, x: Value, bias: Value, residual: Value) -> Value:
    made, mask = tape.run(
        module, "native_dropout", (x, bias, residual), [(x.elements, x.type), (x.elements, BOOL)]
    )

    def backward(gradient: Value) -> list[Value]:
        (into,) = tape.run(
            module, "native_dropout_backward", (gradient, mask), [(x.elements, x.type)]
        )
        return [into, sum_rows(tape, into, bias.elements), gradient]

    return tape.record(made, (x, bias, residual), backward)
