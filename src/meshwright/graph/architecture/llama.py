"""Llama (Touvron et al. 2023, Grattafiori et al. 2024) as a training step, by formulas.

Op for op what `capture` records of transformers' LlamaForCausalLM: root-mean-square norms in fp32,
rotary positions, grouped keys and values, a gated perceptron, and a head of its own.
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from meshwright.graph.architecture.architecture import Architecture, build_model
from meshwright.graph.architecture.loss import causal_loss
from meshwright.graph.architecture.op import (
    Linear,
    activation,
    add,
    attention,
    embedding,
    times,
)
from meshwright.graph.architecture.rms import rms_norm
from meshwright.graph.architecture.rotary import Rotary, make_rotary, rotate
from meshwright.graph.architecture.tape import StepTape
from meshwright.graph.architecture.value import INT64, Value


@dataclass(frozen=True, slots=True, kw_only=True)
class Decoder(Architecture):
    """What Llama and Mixtral share; as many heads of keys and values as of queries unless said."""

    BATCH: ClassVar[float] = 64
    sequence: int
    key_heads: int = 0
    intermediate: int
    vocabulary: int = 32_000

    @staticmethod
    def usual(sizes: Mapping[str, Any]) -> dict[str, int]:
        """There are as many heads of keys and values as of queries."""
        return {"key_heads": sizes["heads"]}

    @property
    def width(self) -> int:
        """Numbers of a token in one head."""
        return self.hidden // self.heads

    @abstractmethod
    def perceptron(self, name: str) -> Callable[[Value], Value]:
        """Make the weights of a layer's perceptron and return what computes it."""

    def loss(self) -> Value:
        """From tokens to the cross-entropy of the next ones."""
        tape, hidden = self.tape, self.hidden
        tokens = self.samples * self.sequence
        words = tape.weight("model.embed_tokens", self.vocabulary * hidden)
        ids = tape.input(tokens, INT64)
        x = embedding(tape, "model.embed_tokens", words, ids, tokens * hidden)
        rotary = make_rotary(tape, self.sequence, self.width)
        x = tape.repeat("model.layers", self.layers, partial(_layer, self, rotary), x)
        x = rms_norm(tape, "model.norm", x, tape.weight("model.norm", hidden))
        tape.count_views(1)
        head = tape.weight("lm_head", self.vocabulary * hidden)
        logits = Linear(tape, "lm_head", hidden, self.vocabulary).plain(x, head)
        return causal_loss(tape, logits, self.samples, self.sequence, self.vocabulary)


class Llama(Decoder):
    """A Llama, whose perceptron is gated (Shazeer 2020): one of two products gates the other."""

    def perceptron(self, name: str) -> Callable[[Value], Value]:
        """Make the weights of three products and return what computes them."""
        tape, hidden, wide = self.tape, self.hidden, self.intermediate
        gate, up, down = (
            tape.weight(f"{name}.{part}_proj", hidden * wide) for part in ("gate", "up", "down")
        )

        def compute(x: Value) -> Value:
            y = Linear(tape, f"{name}.gate_proj", hidden, wide).plain(x, gate)
            y = activation(tape, f"{name}.act_fn", "silu", y)
            z = Linear(tape, f"{name}.up_proj", hidden, wide).plain(x, up)
            y = times(tape, name, y, z)
            return Linear(tape, f"{name}.down_proj", wide, hidden).plain(y, down)

        return compute


llama = partial(build_model, Llama)


def _layer(model: Decoder, rotary: Rotary, name: str, x: Value) -> Value:
    tape, hidden = model.tape, model.hidden
    attend = _attention(model, rotary, f"{name}.self_attn")
    compute = model.perceptron(f"{name}.mlp")
    first, second = f"{name}.input_layernorm", f"{name}.post_attention_layernorm"
    before, after = tape.weight(first, hidden), tape.weight(second, hidden)
    x = add(tape, name, x, attend(rms_norm(tape, first, x, before)))
    return add(tape, name, x, compute(rms_norm(tape, second, x, after)))


def _attention(model: Decoder, rotary: Rotary, name: str) -> Callable[[Value], Value]:
    tape, hidden, width = model.tape, model.hidden, model.width
    outer, inner = model.heads * width, model.key_heads * width
    sizes = {"q_proj": outer, "k_proj": inner, "v_proj": inner}
    weights = {part: tape.weight(f"{name}.{part}", hidden * sizes[part]) for part in sizes}
    last = tape.weight(f"{name}.o_proj", outer * hidden)

    def attend(x: Value) -> Value:
        parts = []
        for part, weight in weights.items():
            y = Linear(tape, f"{name}.{part}", hidden, sizes[part]).plain(x, weight)
            parts.append(_split_heads(tape, y, sizes[part] // width, part != "v_proj"))
        tape.count_views(2)
        queries = rotate(tape, name, parts[0], rotary)
        keys = rotate(tape, name, parts[1], rotary)
        y = attention(
            tape, name, "causal_", queries, keys, parts[2],
            heads=model.heads, width=width, sequence=model.sequence, steps=(outer, inner),
        )  # fmt: skip
        y = tape.view(tape.view(y))
        return Linear(tape, f"{name}.o_proj", outer, hidden).plain(y, last)

    return attend


def _split_heads(tape: StepTape, x: Value, heads: int, is_rotated: bool) -> Value:
    """(tokens, heads x width) seen as (heads, tokens, width).

    The gradient of what was rotated is put together head by head, and copied to be seen the other
    way round; that of the values comes as they lie.
    """
    tape.count_views(1)
    seen = Value(x.storage, x.elements, x.type)
    is_copied = is_rotated and heads > 1

    def backward(gradient: Value) -> list[Value]:
        if is_copied:
            gradient = tape.make("", "clone", (gradient,), kind="strided_clone")
        tape.count_views(1)
        return [gradient]

    tape.record(seen, (x,), backward)
    return tape.view(seen, layout="heads" if heads > 1 else "")
