"""Rotary positions (Su et al. 2021) op by op, as transformers computes them."""

from dataclasses import dataclass

from meshwright.graph.architecture.op import cat_kind
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
    (order,) = tape.run_plain("model", "arange", (), [(sequence, INT64)])
    (order,) = tape.run_plain("model", "add", (order,), [(sequence, INT64)])
    tape.count_views(3)
    (order,) = tape.run_plain(MODULE, "_to_copy", (order,), [(sequence, FP32)])
    (angles,) = tape.run_plain(
        MODULE, "mul", (frequencies, order), [(sequence * half, FP32)],
        kind="strided_mul" if half > 1 else "mul",
    )  # fmt: skip
    size = [(2 * sequence * half, FP32)]
    (angles,) = tape.run_plain(MODULE, "cat", (angles,), size, kind=cat_kind(half, angles))
    waves = []
    for name in ("cos", "sin"):
        (wave,) = tape.run_plain(MODULE, name, (angles,), size)
        waves += tape.run_plain(MODULE, "mul", (wave,), size)
    if tape.weight_type != FP32:
        short = [(2 * sequence * half, tape.weight_type)]
        waves = [tape.run_plain(MODULE, "_to_copy", (wave,), short)[0] for wave in waves]
    return Rotary(waves[0], waves[1], width)


def rotate(tape: StepTape, module: str, x: Value, rotary: Rotary) -> Value:
    """x cos + (-x2, x1) sin, where x1 and x2 are the halves of every head."""
    straight = _times(tape, module, x, rotary.cosines)
    crossed = _times(tape, module, _swap(tape, module, x, rotary), rotary.sines)
    kind = "add" if straight.layout == crossed.layout else "strided_add"
    (made,) = tape.run(module, "add", (straight, crossed), [(x.elements, x.type)], kind=kind)
    return tape.record(made, (straight, crossed), lambda gradient: [gradient, gradient])


def _times(tape: StepTape, module: str, x: Value, wave: Value) -> Value:
    """All heads of a position by the same wave, which has no gradient."""
    size = [(x.elements, x.type)]
    (made,) = tape.run(module, "mul", (x, wave), size, kind="strided_mul")
    made.layout = x.layout

    def backward(gradient: Value) -> list[Value]:
        (into,) = tape.run("", "mul", (gradient, wave), size, kind="strided_mul")
        into.layout = x.layout
        return [into]

    return tape.record(made, (x,), backward)


def _swap(tape: StepTape, module: str, x: Value, rotary: Rotary) -> Value:
    """Exchange the halves x1 and x2 of every head, the second negated: (-x2, x1)."""
    half = x.elements // 2
    first, second = _slice(tape, x, half), _slice(tape, x, half)
    size = [(half, x.type)]
    (turned,) = tape.run(module, "neg", (second,), size, kind="strided_neg")
    tape.record(
        turned,
        (second,),
        lambda gradient: tape.run("", "neg", (gradient,), size, kind="strided_neg"),
    )
    kind = cat_kind(rotary.width // 2, x)
    (made,) = tape.run(module, "cat", (turned, first), [(x.elements, x.type)], kind=kind)

    def backward(gradient: Value) -> list[Value]:
        tape.count_views(2)
        return [Value(gradient.storage, half, x.type) for _ in range(2)]

    return tape.record(made, (turned, first), backward)


def _slice(tape: StepTape, x: Value, elements: int) -> Value:
    tape.count_views(1)
    made = Value(x.storage, elements, x.type)
    return tape.record(
        made,
        (x,),
        lambda gradient: tape.run("", "slice_backward", (gradient,), [(x.elements, x.type)]),
    )
