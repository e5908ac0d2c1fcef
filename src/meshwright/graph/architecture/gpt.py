"""GPT-2 and GPT-3 (Radford et al. 2019, Brown et al. 2020) as training steps, by formulas.

Op for op what `capture` records of transformers' GPT2LMHeadModel: norms before the blocks, one
product for queries, keys and values, dropout, and a head that is tied to the embeddings. Models of
the same shape run without dropout, with GELU as one op, or with stored scores, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from meshwright.graph.architecture import op
from meshwright.graph.architecture.architecture import Architecture, build_model
from meshwright.graph.architecture.loss import causal_loss
from meshwright.graph.architecture.op import (
    Linear,
    add,
    add_broadcast,
    embedding,
    linear,
    norm,
    power,
    scale,
    shift,
    split_columns,
    times,
)
from meshwright.graph.architecture.score import stored_attention
from meshwright.graph.architecture.tape import StepTape
from meshwright.graph.architecture.value import INT64, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpt(Architecture):
    """A GPT; `positions` is the longest sequence that there are weights for."""

    BATCH: ClassVar[float] = 8
    WORDS: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "dropout": ("yes", "no"),
        "activation": ("gelu_new", "gelu"),
        "attention": ("fused", "stored"),
    }
    sequence: int
    vocabulary: int = 50_257
    positions: int = 0
    dropout: str = "yes"
    activation: str = "gelu_new"
    """"gelu_new" is GPT-2's, op by op, "gelu" one op."""
    attention: str = "fused"
    """"stored" writes its scores out, as Megatron-LM did before there were fused kernels."""
    untie: bool = False
    """The head has a copy of the embeddings, so that a pipeline may hold the two apart."""

    @staticmethod
    def usual(sizes: Mapping[str, Any]) -> dict[str, int]:
        """No more positions than are trained on."""
        return {"positions": sizes["sequence"]}

    @property
    def drops(self) -> bool:
        """Whether there is dropout."""
        return self.dropout == "yes"

    def loss(self) -> Value:
        """From tokens to the cross-entropy of the next ones."""
        tape, hidden = self.tape, self.hidden
        words = tape.weight("transformer.wte", self.vocabulary * hidden)
        places = tape.weight("transformer.wpe", self.positions * hidden)
        x = _embed(self, words, places)
        x = tape.repeat("transformer.h", self.layers, partial(_layer, self), x)
        x = norm(tape, "transformer.ln_f", x, hidden)
        head = tape.copy("lm_head", words) if self.untie else words
        x = tape.view(x)
        tape.count_views(1)
        logits = Linear(tape, "lm_head", hidden, self.vocabulary).plain(x, head)
        return causal_loss(tape, logits, self.samples, self.sequence, self.vocabulary)


gpt = partial(build_model, Gpt)


def _embed(model: Gpt, words: Value, places: Value) -> Value:
    tape, tokens = model.tape, model.samples * model.sequence
    ids = tape.input(tokens, INT64)
    tape.count_views(1)
    x = embedding(tape, "transformer.wte", words, ids, tokens * model.hidden)
    order = tape.make_plain("transformer", "arange", (), (model.sequence, INT64))
    order = tape.view(tape.make_plain("transformer", "add", (order,)))
    y = embedding(tape, "transformer.wpe", places, order, model.sequence * model.hidden)
    x = add_broadcast(tape, "transformer", x, y)
    tape.view(order)  # for the mask, which the kernel makes itself
    return _drop(model, "transformer.drop", x)


def _layer(model: Gpt, name: str, x: Value) -> Value:
    tape, hidden = model.tape, model.hidden
    y = _attention(model, f"{name}.attn", norm(tape, f"{name}.ln_1", x, hidden))
    x = add(tape, name, y, x)
    y = _perceptron(model, f"{name}.mlp", norm(tape, f"{name}.ln_2", x, hidden))
    return add(tape, name, x, y)


def _attention(model: Gpt, name: str, x: Value) -> Value:
    tape, hidden = model.tape, model.hidden
    mixed = linear(tape, f"{name}.c_attn", x, hidden, 3 * hidden, stored=True)
    parts = [tape.view(tape.view(each)) for each in split_columns(tape, mixed, 3, hidden)]
    y = _attend(model, name, parts)
    y = tape.view(tape.view(y))
    y = linear(tape, f"{name}.c_proj", y, hidden, hidden, stored=True)
    return _drop(model, f"{name}.resid_dropout", y)


def _attend(model: Gpt, name: str, parts: list[Value]) -> Value:
    sizes = {
        "heads": model.heads,
        "width": model.hidden // model.heads,
        "sequence": model.sequence,
    }
    if model.attention == "stored":
        return stored_attention(model.tape, name, parts, drops=model.drops, **sizes)
    kind = "causal_dropout_" if model.drops else "causal_"
    query, key, value = parts
    return op.attention(
        model.tape, name, kind, query, key, value, **sizes, steps=(3 * model.hidden,)
    )


def _drop(model: Gpt, name: str, x: Value) -> Value:
    return op.dropout(model.tape, name, x) if model.drops else x


def _perceptron(model: Gpt, name: str, x: Value) -> Value:
    tape, hidden = model.tape, model.hidden
    wide = 4 * hidden
    y = linear(tape, f"{name}.c_fc", x, hidden, wide, stored=True)
    if model.activation == "gelu":
        y = op.activation(tape, f"{name}.act", "gelu", y)
    else:
        y = _gelu(tape, f"{name}.act", y)
    y = linear(tape, f"{name}.c_proj", y, wide, hidden, stored=True)
    return _drop(model, f"{name}.dropout", y)


def _gelu(tape: StepTape, name: str, x: Value) -> Value:
    """Hendrycks and Gimpel (2016) with tanh, 0.5 x (1 + tanh(c (x + 0.044715 x^3))), op by op."""
    half = scale(tape, name, x)
    cubed = scale(tape, name, power(tape, name, x))
    inner = scale(tape, name, add(tape, name, x, cubed))
    return times(tape, name, half, shift(tape, name, op.activation(tape, name, "tanh", inner)))
