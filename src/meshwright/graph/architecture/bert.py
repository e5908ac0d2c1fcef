"""BERT (Devlin et al. 2019) as a pre-training step with both heads, by formulas.

Op for op what `capture` records of transformers' BertForPreTraining: norms after the blocks,
dropout, and a language head that is tied to the word embeddings.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from meshwright.graph.architecture.architecture import Architecture, build_model
from meshwright.graph.architecture.loss import cross_entropy
from meshwright.graph.architecture.op import (
    Linear,
    activation,
    add,
    add_broadcast,
    dropout,
    embedding,
    layer_norm,
    linear,
    select_first,
    separate_attention,
)
from meshwright.graph.architecture.tape import StepTape
from meshwright.graph.architecture.value import INT64, Value

SEGMENTS = 2
"""Sentences of a sample; also the classes of whether the second follows the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bert(Architecture):
    """A BERT; perceptrons are four times as wide as `hidden` unless said."""

    BATCH: ClassVar[float] = 32
    sequence: int
    vocabulary: int = 30_522
    intermediate: int = 0
    positions: int = 512
    untie: bool = False
    """The head has a copy of the word embeddings, so that a pipeline may hold the two apart."""

    @staticmethod
    def usual(sizes: Mapping[str, Any]) -> dict[str, int]:
        """Perceptrons are four times as wide as `hidden` (Devlin et al. 2019, section 3)."""
        return {"intermediate": 4 * sizes["hidden"]}

    def loss(self) -> Value:
        """From tokens to the sum of both heads' losses."""
        tape, hidden = self.tape, self.hidden
        words = tape.weight("bert.embeddings.word_embeddings", self.vocabulary * hidden)
        x = _embed(self, words)
        x = tape.repeat("bert.encoder.layer", self.layers, partial(_layer, self), x)
        first = select_first(tape, x, self.samples * hidden)
        pooled = linear(tape, "bert.pooler.dense", first, hidden, hidden, shaped=False)
        pooled = activation(tape, "bert.pooler.activation", "tanh", pooled)
        return _loss(self, words, x, pooled)


bert = partial(build_model, Bert)


def _embed(model: Bert, words: Value) -> Value:
    tape, hidden, sequence = model.tape, model.hidden, model.sequence
    tokens = model.samples * sequence
    name = "bert.embeddings"
    places = tape.weight(f"{name}.position_embeddings", model.positions * hidden)
    kinds = tape.weight(f"{name}.token_type_embeddings", SEGMENTS * hidden)
    norm = tape.pair(f"{name}.LayerNorm", hidden, hidden)
    order, zeros = (tape.buffer(model.positions, INT64) for _ in range(2))
    tape.count_views(2)
    order = Value(order.storage, sequence, INT64)
    size = sequence, INT64
    segments = tape.make_plain(name, "gather", (zeros, order), size, moved=2 * order.bytes)
    ids = tape.input(tokens, INT64)
    tape.count_views(1)
    x = embedding(tape, f"{name}.word_embeddings", words, ids, tokens * hidden)
    y = embedding(tape, f"{name}.token_type_embeddings", kinds, segments, tokens * hidden, tokens)
    x = add(tape, name, x, y)
    y = embedding(tape, f"{name}.position_embeddings", places, order, sequence * hidden)
    x = layer_norm(tape, f"{name}.LayerNorm", add_broadcast(tape, name, x, y), *norm)
    return dropout(tape, f"{name}.dropout", x)


def _layer(model: Bert, name: str, x: Value) -> Value:
    tape, hidden, wide = model.tape, model.hidden, model.intermediate
    y = separate_attention(
        tape, f"{name}.attention.self", "dropout_", x,
        hidden=hidden, heads=model.heads, sequence=model.sequence,
    )  # fmt: skip
    x = _add_norm(model, f"{name}.attention.output", y, hidden, x)
    y = linear(tape, f"{name}.intermediate.dense", x, hidden, wide)
    y = activation(tape, f"{name}.intermediate.intermediate_act_fn", "gelu", y)
    return _add_norm(model, f"{name}.output", y, wide, x)


def _add_norm(model: Bert, name: str, y: Value, wide: int, x: Value) -> Value:
    tape, hidden = model.tape, model.hidden
    weights = tape.pair(f"{name}.dense", wide * hidden, hidden)
    norm = tape.pair(f"{name}.LayerNorm", hidden, hidden)
    y = Linear(tape, f"{name}.dense", wide, hidden).biased(y, *weights)
    y = add(tape, name, dropout(tape, f"{name}.dropout", y), x)
    return layer_norm(tape, f"{name}.LayerNorm", y, *norm)


def _loss(model: Bert, words: Value, x: Value, pooled: Value) -> Value:
    """Of the masked tokens and of whether the second sentence follows."""
    tape, hidden, vocabulary = model.tape, model.hidden, model.vocabulary
    name = "cls.predictions"
    bias = tape.weight(f"{name}.decoder" if model.untie else name, vocabulary)
    dense = tape.pair(f"{name}.transform.dense", hidden * hidden, hidden)
    norm = tape.pair(f"{name}.transform.LayerNorm", hidden, hidden)
    follows = tape.pair("cls.seq_relationship", SEGMENTS * hidden, SEGMENTS)
    if model.untie:  # what is copied is updated last
        words = tape.copy(f"{name}.decoder", words)
    y = Linear(tape, f"{name}.transform.dense", hidden, hidden).biased(x, *dense)
    y = activation(tape, f"{name}.transform.transform_act_fn", "gelu", y)
    y = layer_norm(tape, f"{name}.transform.LayerNorm", y, *norm)
    logits = Linear(tape, f"{name}.decoder", hidden, vocabulary).biased(y, words, bias)
    pair = Linear(tape, "cls.seq_relationship", hidden, SEGMENTS).biased(
        pooled, *follows, shaped=False
    )
    one = _entropy(tape, logits, model.samples * model.sequence, vocabulary)
    other = _entropy(tape, pair, model.samples, SEGMENTS)
    return add(tape, "", one, other)


def _entropy(tape: StepTape, scores: Value, labels: int, classes: int) -> Value:
    return cross_entropy(tape, tape.view(scores), tape.view(tape.input(labels, INT64)), classes)
