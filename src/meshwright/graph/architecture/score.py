"""Attention whose scores are written out in 16 bits, as Megatron-LM ran it before fused kernels.

One product for the scores, one kernel that scales, masks and normalises them, dropout, and one
product with the values (Shoeybi et al. 2019; `--masked-softmax-fusion` of NVIDIA/Megatron-LM).
"""

from dataclasses import astuple

from meshwright.graph.architecture.op import dropout, softmax
from meshwright.graph.architecture.tape import StepTape
from meshwright.graph.architecture.value import ProductSize, Value

SOFTMAX = "scaled_masked_softmax"
"""The kind of the fused kernel, which is timed as usual ones are."""


def stored_attention(
    tape: StepTape,
    module: str,
    parts: list[Value],
    *,
    heads: int,
    width: int,
    sequence: int,
    drops: bool,
) -> Value:
    """Causal attention of queries, keys and values; its scores are kept for backward."""
    query, key, value = parts
    count = query.elements // (sequence * width)
    assert count % heads == 0
    size = ProductSize(sequence, sequence, width, count, 16)
    scores = multiply_heads(tape, module, query, key, size)
    scores = softmax(tape, module, "_softmax", scores, kind=SOFTMAX)
    scores = dropout(tape, module, scores) if drops else scores
    size = ProductSize(sequence, width, sequence, count, 16)
    return multiply_heads(tape, module, scores, value, size)


def multiply_heads(
    tape: StepTape, module: str, one: Value, other: Value, size: ProductSize
) -> Value:
    """A product for each head; `one` has the rows, `other` is depth by columns or transposed."""
    rows, columns, depth, count, aligned = astuple(size)
    flops = int(2 * rows * columns * depth * count)

    def multiply(reads: tuple[Value, Value], elements: float, size: ProductSize) -> Value:
        makes = int(elements), one.type
        return tape.make(module, "bmm", reads, makes, flops=flops, product=size)

    def backward(gradient: Value) -> list[Value]:
        size = ProductSize(rows, depth, columns, count, aligned)
        into = multiply((gradient, other), one.elements, size)
        size = ProductSize(depth, columns, rows, count, aligned)
        return [into, multiply((one, gradient), other.elements, size)]

    made = multiply((one, other), rows * columns * count, size)
    return tape.record(made, (one, other), backward)
