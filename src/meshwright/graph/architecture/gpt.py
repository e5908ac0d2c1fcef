"""GPT-2 and GPT-3 (Radford et al. 2019, Brown et al. 2020) as training steps, by formulas.

Op for op what `capture` records of transformers' GPT2LMHeadModel: norms before the blocks, one
product for queries, keys and values, dropout, and a head that is tied to the embeddings. Models of
the same shape run without dropout, with GELU as one op, or with stored scores, too.
"""

from dataclasses import dataclass
from functools import partial

from meshwright.graph.architecture import op
from meshwright.graph.architecture.op import (
    NARROW_BYTES,
    Linear,
    add,
    add_broadcast,
    causal_loss,
    embedding,
    layer_norm,
    power,
    scale,
    shift,
    times,
)
from meshwright.graph.architecture.rule import check_choice, check_sizes
from meshwright.graph.architecture.score import stored_attention
from meshwright.graph.architecture.step import build_step
from meshwright.graph.architecture.tape import Tape
from meshwright.graph.architecture.value import INT64, Value
from meshwright.graph.graph import Graph


@dataclass(frozen=True, slots=True, kw_only=True)
class _Gpt:
    tape: Tape
    samples: int
    hidden: int
    heads: int
    sequence: int
    vocabulary: int
    positions: int
    drops: bool
    activation: str
    attention: str


def gpt(
    *,
    hidden: int,
    heads: int,
    layers: int,
    sequence: int,
    vocabulary: int = 50_257,
    positions: int | None = None,
    batch: float = 8,
    precision: str = "fp32",
    optimizer: str = "adamw",
    dropout: str = "yes",
    activation: str = "gelu_new",
    attention: str = "fused",
    untie: bool = False,
    name: str = "gpt",
) -> Graph:
    """A training step; `positions` is the longest sequence that there are weights for.

    `activation`: "gelu_new" is GPT-2's, op by op, "gelu" one op. `attention`: "stored" writes its
    scores out, as Megatron-LM did before there were fused kernels. `untie`: the head has a copy of
    the embeddings, so that a pipeline may hold the two apart.
    """

    sizes = {
        "hidden": hidden,
        "heads": heads,
        "layers": layers,
        "sequence": sequence,
        "vocabulary": vocabulary,
        "positions": positions or sequence,
    }
    check_sizes("gpt", sizes, precision, optimizer)
    check_choice("gpt", "dropout", dropout, ("yes", "no"))
    check_choice("gpt", "activation", activation, ("gelu_new", "gelu"))
    check_choice("gpt", "attention", attention, ("fused", "stored"))

    def record(samples: int, layers: int) -> Tape:
        tape = Tape(precision)
        model = _Gpt(
            tape=tape,
            samples=samples,
            hidden=hidden,
            heads=heads,
            sequence=sequence,
            vocabulary=vocabulary,
            positions=positions or sequence,
            drops=dropout == "yes",
            activation=activation,
            attention=attention,
        )
        return tape.finish(_forward(model, layers, untie), optimizer)

    return build_step(name, batch, layers, record)


def _forward(model: _Gpt, layers: int, untie: bool) -> Value:
    tape, hidden = model.tape, model.hidden
    words = tape.weight("transformer.wte", model.vocabulary * hidden)
    places = tape.weight("transformer.wpe", model.positions * hidden)
    x = _embed(model, words, places)
    x = tape.repeat("transformer.h", layers, partial(_layer, model), x)
    x = layer_norm(tape, "transformer.ln_f", x, *tape.pair("transformer.ln_f", hidden, hidden))
    head = tape.copy("lm_head", words) if untie else words
    x = tape.view(x)
    tape.count_views(1)
    logits = Linear(tape, "lm_head", hidden, model.vocabulary).plain(x, head)
    return causal_loss(tape, logits, model.samples, model.sequence, model.vocabulary)


def _embed(model: _Gpt, words: Value, places: Value) -> Value:
    tape, tokens = model.tape, model.samples * model.sequence
    ids = tape.input(tokens, INT64)
    tape.count_views(1)
    x = embedding(tape, "transformer.wte", words, ids, tokens * model.hidden)
    (order,) = tape.run_plain("transformer", "arange", (), [(model.sequence, INT64)])
    (order,) = tape.run_plain("transformer", "add", (order,), [(model.sequence, INT64)])
    order = tape.view(order)
    y = embedding(tape, "transformer.wpe", places, order, model.sequence * model.hidden)
    x = add_broadcast(tape, "transformer", x, y)
    tape.view(order)  # for the mask, which the kernel makes itself
    return _drop(model, "transformer.drop", x)


def _layer(model: _Gpt, name: str, x: Value) -> Value:
    tape, hidden = model.tape, model.hidden
    norm = tape.pair(f"{name}.ln_1", hidden, hidden)
    y = _attention(model, f"{name}.attn", layer_norm(tape, f"{name}.ln_1", x, *norm))
    x = add(tape, name, y, x)
    norm = tape.pair(f"{name}.ln_2", hidden, hidden)
    y = _perceptron(model, f"{name}.mlp", layer_norm(tape, f"{name}.ln_2", x, *norm))
    return add(tape, name, x, y)


def _attention(model: _Gpt, name: str, x: Value) -> Value:
    tape, hidden = model.tape, model.hidden
    mixed = Linear(tape, f"{name}.c_attn", hidden, 3 * hidden).biased(
        x, *tape.pair(f"{name}.c_attn", 3 * hidden * hidden, 3 * hidden), stored=True
    )
    parts = [tape.view(tape.view(each)) for each in _split(tape, mixed, hidden)]
    y = _attend(model, name, parts)
    y = tape.view(tape.view(y))
    y = Linear(tape, f"{name}.c_proj", hidden, hidden).biased(
        y, *tape.pair(f"{name}.c_proj", hidden * hidden, hidden), stored=True
    )
    return _drop(model, f"{name}.resid_dropout", y)


def _attend(model: _Gpt, name: str, parts: list[Value]) -> Value:
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


def _drop(model: _Gpt, name: str, x: Value) -> Value:
    return op.dropout(model.tape, name, x) if model.drops else x


def _split(tape: Tape, x: Value, hidden: int) -> list[Value]:
    """Queries, keys and values: views, whose gradients are put together again."""
    tape.count_views(1)
    parts = [Value(x.storage, x.elements // 3, x.type) for _ in range(3)]
    kind = "strided_cat" if hidden * x.type.size < NARROW_BYTES else "cat"
    tape.record_all(
        parts, (x,), lambda *given: tape.run("", "cat", given, [(x.elements, x.type)], kind=kind)
    )
    return parts


def _perceptron(model: _Gpt, name: str, x: Value) -> Value:
    tape, hidden = model.tape, model.hidden
    wide = 4 * hidden
    y = Linear(tape, f"{name}.c_fc", hidden, wide).biased(
        x, *tape.pair(f"{name}.c_fc", hidden * wide, wide), stored=True
    )
    if model.activation == "gelu":
        y = op.activation(tape, f"{name}.act", "gelu", y)
    else:
        y = _gelu(tape, f"{name}.act", y)
    y = Linear(tape, f"{name}.c_proj", wide, hidden).biased(
        y, *tape.pair(f"{name}.c_proj", wide * hidden, hidden), stored=True
    )
    return _drop(model, f"{name}.dropout", y)


def _gelu(tape: Tape, name: str, x: Value) -> Value:
    """Hendrycks and Gimpel (2016) with tanh, 0.5 x (1 + tanh(c (x + 0.044715 x^3))), op by op."""
    half = scale(tape, name, x)
    cubed = scale(tape, name, power(tape, name, x))
    inner = scale(tape, name, add(tape, name, x, cubed))
    return times(tape, name, half, shift(tape, name, op.activation(tape, name, "tanh", inner)))
