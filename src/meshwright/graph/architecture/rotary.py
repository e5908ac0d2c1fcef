"""Rotary positions (Su et al. 2021) op by op, as transformers computes them."""

from dataclasses import dataclass

from meshwright.graph.architecture.op import cat_kind, view_part
from meshwright.graph.architecture.tape import StepTape
from meshwright.graph.architecture.value import FP32, INT64, Value

MODULE = "model.rotary_emb"


@dataclass(frozen=True, slots=True)
class Rotary:
    """Cosines and sines of every position, which all layers read."""

    cosines: Value
    sines: Value
    width: int
    """Numbers of a token in one head."""


def make_rotary(tape: StepTape, sequence: int, width: int) -> Rotary:
    """In fp32, then in the type of the weights."""
    half = width // 2
    frequencies = tape.buffer(half, FP32)
    order = tape.make_plain("model", "arange", (), (sequence, INT64))
    order = tape.make_plain("model", "add", (order,))
    tape.count_views(3)
    order = tape.make_plain(MODULE, "_to_copy", (order,), (sequence, FP32))
    kind, size = "strided_mul" if half > 1 else "mul", (sequence * half, FP32)
    angles = tape.make_plain(MODULE, "mul", (frequencies, order), size, kind=kind)
    size = 2 * sequence * half, FP32
    angles = tape.make_plain(MODULE, "cat", (angles,), size, kind=cat_kind(half, angles))
    waves = []
    for name in ("cos", "sin"):
        wave = tape.make_plain(MODULE, name, (angles,))
        waves.append(tape.make_plain(MODULE, "mul", (wave,)))
    if tape.weight_type != FP32:
        short = 2 * sequence * half, tape.weight_type
        waves = [tape.make_plain(MODULE, "_to_copy", (wave,), short) for wave in waves]
    return Rotary(waves[0], waves[1], width)


def rotate(tape: StepTape, module: str, x: Value, rotary: Rotary) -> Value:
    """x cos + (-x2, x1) sin, where x1 and x2 are the halves of every head."""
    straight = _times(tape, module, x, rotary.cosines)
    crossed = _times(tape, module, _swap(tape, module, x, rotary), rotary.sines)
    kind = "add" if straight.layout == crossed.layout else "strided_add"
    made = tape.make(module, "add", (straight, crossed), kind=kind)
    return tape.record(made, (straight, crossed), lambda gradient: [gradient, gradient])


def _times(tape: StepTape, module: str, x: Value, wave: Value) -> Value:
    """All heads of a position by the same wave, which has no gradient."""
    made = tape.make(module, "mul", (x, wave), kind="strided_mul")
    made.layout = x.layout

    def backward(gradient: Value) -> list[Value]:
        into = tape.make("", "mul", (gradient, wave), kind="strided_mul")
        into.layout = x.layout
        return [into]

    return tape.record(made, (x,), backward)


def _swap(tape: StepTape, module: str, x: Value, rotary: Rotary) -> Value:
    """Exchange the halves x1 and x2 of every head, the second negated: (-x2, x1)."""
    half = x.elements // 2
    first, second = (view_part(tape, x, half, "slice_backward") for _ in range(2))
    turned = tape.make(module, "neg", (second,), kind="strided_neg")
    tape.record(
        turned, (second,), lambda gradient: [tape.make("", "neg", (gradient,), kind="strided_neg")]
    )
    kind = cat_kind(rotary.width // 2, x)
    made = tape.make(module, "cat", (turned, first), (x.elements, x.type), kind=kind)

    def backward(gradient: Value) -> list[Value]:
        tape.count_views(2)
        return [Value(gradient.storage, half, x.type) for _ in range(2)]

    return tape.record(made, (turned, first), backward)
