"""Small steps whose layers stand in line: some read others than the one before."""

from collections.abc import Sequence

from formula import StepBuilder, Value, add, cross_entropy, elementwise, linear
from meshwright.graph.graph import Graph

ROWS, WIDE = 4.0, 64
"""Samples, and features of every tensor but the logits: 4 bytes each."""


def body(step: StepBuilder, name: str, reads: Sequence[Value], wide: int) -> Value:
    """A layer: a product of the first of what it reads, to which the others are added."""
    made = linear(step, f"{name}.linear", reads[0], ROWS, wide, wide)
    made = elementwise(step, f"{name}.act", "gelu", made, ROWS * wide)
    return add(step, f"{name}.sum", [made, *reads[1:]], ROWS * wide) if reads[1:] else made


def step_of(layers: Sequence[tuple[str, Sequence[int]]], wide: int = WIDE) -> Graph:
    """Layers by name and the numbers of those that each reads; -1: the first product."""
    step = StepBuilder("line", 4.0)
    made = [linear(step, "first", step.input("input", ROWS * wide), ROWS, wide, wide)]
    for name, reads in layers:
        made.append(body(step, name, [made[each + 1] for each in reads], wide))
    logits = linear(step, "last", made[-1], ROWS, wide, 10)
    return step.finish(cross_entropy(step, "loss", logits, ROWS, 10))


def towers(count: int, wide: int = WIDE) -> Graph:
    """Two chains of so many layers side by side, and a layer that reads both."""
    left = [(f"left.{n}", [n - 1]) for n in range(count)]
    right = [(f"right.{n}", [count + n - 1 if n else -1]) for n in range(count)]
    return step_of([*left, *right, ("join", [count - 1, 2 * count - 1])], wide)


def encoder_decoder(count: int, wide: int = WIDE) -> Graph:
    """As many layers in the decoder, all of which read the encoder's last."""
    encoder = [(f"encoder.{n}", [n - 1]) for n in range(count)]
    decoder = [(f"decoder.{n}", [count + n - 1, count - 1]) for n in range(1, count)]
    return step_of([*encoder, ("decoder.0", [-1, count - 1]), *decoder], wide)


def ladder(depth: int, wide: int = WIDE) -> Graph:
    """A way down and a way up, each step of which reads one of the way down, the last first."""
    down = [(f"down.{n}", [n - 1]) for n in range(depth)]
    up = [(f"up.{n}", [depth + n - 1, depth - 1 - n]) for n in range(depth)]
    return step_of([*down, *up], wide)
