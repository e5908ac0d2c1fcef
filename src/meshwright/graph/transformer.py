"""Transformers at op level as training steps: the BERT and GPT-2 families, and any size for tests.

Attention is the plain one (scores, softmax, context as separate ops), without dropout; a causal
mask saves nothing there. The head is tied to the word embeddings by a copy of their weights, so
that the two may be on different devices.
"""

from dataclasses import dataclass

from meshwright.errors import InputError
from meshwright.graph.analytic import StepBuilder, Value
from meshwright.graph.graph import Graph
from meshwright.graph.layer import (
    ID_BYTES,
    add,
    add_weight,
    cross_entropy,
    elementwise,
    embedding,
    linear,
    norm,
    product,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """What tells one transformer from another."""

    layers: int
    hidden: int
    heads: int
    vocabulary: int
    positions: int
    """Rows of the position table; the longest sequence."""
    is_decoder: bool
    """GPT-2: norms before the blocks, a language head. Else BERT: norms after, two heads."""

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise InputError(
                f"transformer: hidden must be a multiple of heads, got {self.hidden} and "
                f"{self.heads}"
            )


@dataclass(frozen=True, slots=True)
class _Model:
    step: StepBuilder
    shape: TransformerShape
    sequence: int

    @property
    def tokens(self) -> float:
        return self.step.batch * self.sequence

    @property
    def elements(self) -> float:
        return self.tokens * self.shape.hidden


def build_transformer(
    name: str, shape: TransformerShape, batch: float, sequence: int, precision: str = "fp32"
) -> Graph:
    """A training step on `batch` sequences of `sequence` tokens."""
    if not 0 < sequence <= shape.positions:
        raise InputError(f"{name}: sequence must be from 1 to {shape.positions}, got {sequence}")
    model = _Model(StepBuilder(name, batch, precision), shape, sequence)
    return _build_decoder(model) if shape.is_decoder else _build_encoder(model)


def _build_decoder(model: _Model) -> Graph:
    step, shape = model.step, model.shape
    words = step.weight("wte", shape.vocabulary * shape.hidden)
    ids = step.input("ids", ID_BYTES * model.tokens)
    x = embedding(step, "wte", ids, model.tokens, words, shape.hidden)
    x = _add_positions(model, "wpe", x)
    for number in range(shape.layers):
        name = f"h.{number}"
        y = _attention(model, f"{name}.attn", _norm(model, f"{name}.ln_1", x))
        x = add(step, f"{name}.add_1", [x, y], model.elements)
        y = _feed_forward(model, f"{name}.mlp", _norm(model, f"{name}.ln_2", x))
        x = add(step, f"{name}.add_2", [x, y], model.elements)
    x = _norm(model, "ln_f", x)
    head = step.tie("lm_head", words)
    logits = linear(step, "lm_head", x, model.tokens, shape.hidden, shape.vocabulary, weight=head)
    return step.finish(cross_entropy(step, "loss", logits, model.tokens, shape.vocabulary))


def _build_encoder(model: _Model) -> Graph:
    step, shape = model.step, model.shape
    # One more column: the bias of the language head, which is tied to these weights.
    words = step.weight("embeddings.word", shape.vocabulary * (shape.hidden + 1))
    ids = step.input("ids", ID_BYTES * model.tokens)
    x = embedding(step, "embeddings.word", ids, model.tokens, words, shape.hidden)
    x = _add_positions(model, "embeddings.position", x)
    segments = 2 * shape.hidden
    x = add_weight(step, "embeddings.segment", x, model.elements, segments, segments)
    x = _norm(model, "embeddings.norm", x)
    for number in range(shape.layers):
        name = f"encoder.{number}"
        y = _attention(model, f"{name}.attention", x)
        x = add(step, f"{name}.attention.add", [x, y], model.elements)
        x = _norm(model, f"{name}.attention.norm", x)
        y = _feed_forward(model, f"{name}.mlp", x)
        x = add(step, f"{name}.mlp.add", [x, y], model.elements)
        x = _norm(model, f"{name}.mlp.norm", x)
    y = linear(step, "cls.transform", x, model.tokens, shape.hidden, shape.hidden)
    y = elementwise(step, "cls.gelu", "gelu", y, model.elements, saves_output=False)
    y = _norm(model, "cls.norm", y)
    head = step.tie("cls.decoder", words)
    logits = linear(
        step, "cls.decoder", y, model.tokens, shape.hidden, shape.vocabulary, weight=head
    )
    loss = cross_entropy(step, "cls.loss", logits, model.tokens, shape.vocabulary)
    return step.finish(add(step, "loss", [loss, _next_sentence_loss(model, x)], model.tokens))


def _next_sentence_loss(model: _Model, x: Value) -> Value:
    """The pooler on the first token of each sequence and the classifier of sentence pairs."""
    step, hidden = model.step, model.shape.hidden
    pooled = linear(step, "pooler", x, step.batch, hidden, hidden)
    pooled = elementwise(step, "pooler.tanh", "tanh", pooled, step.batch * hidden)
    logits = linear(step, "cls.pair", pooled, step.batch, hidden, 2)
    return cross_entropy(step, "cls.pair.loss", logits, step.batch, 2)


def _norm(model: _Model, name: str, x: Value) -> Value:
    return norm(model.step, name, "layernorm", x, model.elements, model.shape.hidden)


def _add_positions(model: _Model, name: str, x: Value) -> Value:
    hidden = model.shape.hidden
    table, read = model.shape.positions * hidden, model.sequence * hidden
    return add_weight(model.step, name, x, model.elements, table, read)


def _attention(model: _Model, name: str, x: Value) -> Value:
    step, hidden, heads = model.step, model.shape.hidden, model.shape.heads
    length, width = model.sequence, hidden // heads
    query, key, value = (
        linear(step, f"{name}.{each}", x, model.tokens, hidden, hidden) for each in "qkv"
    )
    count = step.batch * heads
    scores = product(step, f"{name}.scores", query, key, count, length, length, width)
    weights = elementwise(step, f"{name}.softmax", "softmax", scores, count * length * length)
    context = product(step, f"{name}.context", weights, value, count, length, width, length)
    return linear(step, f"{name}.projection", context, model.tokens, hidden, hidden)


def _feed_forward(model: _Model, name: str, x: Value) -> Value:
    step, hidden = model.step, model.shape.hidden
    wide = 4 * hidden  # in every model of both families
    y = linear(step, f"{name}.up", x, model.tokens, hidden, wide)
    y = elementwise(step, f"{name}.gelu", "gelu", y, model.tokens * wide, saves_output=False)
    return linear(step, f"{name}.down", y, model.tokens, wide, hidden)


def synthetic_transformer(
    num_ops: int,
    *,
    hidden: int = 1024,
    heads: int = 16,
    vocabulary: int = 50257,
    sequence: int = 512,
    batch: float = 8,
    precision: str = "bf16",
) -> Graph:
    """A GPT-2-like step of about `num_ops` ops (within one layer's), for benchmarks."""

    def build(layers: int) -> Graph:
        shape = TransformerShape(
            layers=layers,
            hidden=hidden,
            heads=heads,
            vocabulary=vocabulary,
            positions=sequence,
            is_decoder=True,
        )
        return build_transformer(f"transformer-{layers}", shape, batch, sequence, precision)

    one, two = build(1).num_ops, build(2).num_ops
    if num_ops < one:
        raise InputError(f"synthetic transformer: num_ops must be at least {one}, got {num_ops}")
    return build(1 + round((num_ops - one) / (two - one)))
