"""Attention whose scores are written out in 16 bits, as Megatron-LM ran it before fused kernels.

One product for the scores, one kernel that scales, masks and normalises them, dropout, and one
product with the values (Shoeybi et al. 2019; `--masked-softmax-fusion` of NVIDIA/Megatron-LM).
"""

from meshwright.graph.architecture.op import dropout
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
    scores = _softmax(tape, module, multiply_heads(tape, module, query, key, size))
    scores = dropout(tape, module, scores) if drops else scores
    size = ProductSize(sequence, width, sequence, count, 16)
    return multiply_heads(tape, module, scores, value, size)


def multiply_heads(
    tape: StepTape, module: str, one: Value, other: Value, size: ProductSize
) -> Value:
    """A product for each head; `one` has the rows, `other` is depth by columns or transposed."""
    rows, columns, depth, count, aligned = (
        size.rows, size.columns, size.depth, size.count, size.alignment
    )  # fmt: skip
    flops = int(2 * rows * columns * depth * count)
    made = tape.run(
        module, "bmm", (one, other), [(int(rows * columns * count), one.type)],
        flops=flops, product=size,
    )[0]  # fmt: skip

    def backward(gradient: Value) -> list[Value]:
        into = tape.run(
            module, "bmm", (gradient, other), [(one.elements, one.type)],
            flops=flops, product=ProductSize(rows, depth, columns, count, aligned),
        )  # fmt: skip
        return into + tape.run(
            module, "bmm", (one, gradient), [(other.elements, other.type)],
            flops=flops, product=ProductSize(depth, columns, rows, count, aligned),
        )  # fmt: skip

    return tape.record(made, (one, other), backward)


def _softmax(tape: StepTape, module: str, x: Value) -> Value:
    size = [(x.elements, x.type)]
    (made,) = tape.run(module, "_softmax", (x,), size, kind=SOFTMAX)

    def backward(gradient: Value) -> list[Value]:
        return tape.run(module, "_softmax_backward_data", (gradient, made), size, kind=SOFTMAX)

    return tape.record(made, (x,), backward)
