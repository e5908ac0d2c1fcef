"""Layers with plain attention and no dropout, which published sums of saved bytes are for.

The architectures of `meshwright.graph` have fused attention, as PyTorch runs it.
"""

from formula import Gradient, StepBuilder, Value, add, cross_entropy, elementwise, linear, norm
from meshwright.graph.graph import Graph

CLASSES = 512


def unfused_gpt(*, layers: int, hidden: int, heads: int, sequence: int, batch: int) -> Graph:
    """Norms before the blocks, scores, softmax and context as ops of their own, in fp32."""
    step = StepBuilder("unfused", batch)
    tokens = batch * sequence
    x = linear(step, "first", step.input("input", 4.0 * tokens * hidden), tokens, hidden, hidden)
    for number in range(layers):
        name = f"h.{number}"
        y = norm(step, f"{name}.ln_1", "layernorm", x, tokens * hidden, hidden)
        y = _attention(step, f"{name}.attn", y, sequence, hidden, heads)
        x = add(step, f"{name}.add_1", [x, y], tokens * hidden)
        y = norm(step, f"{name}.ln_2", "layernorm", x, tokens * hidden, hidden)
        x = add(step, f"{name}.add_2", [x, _perceptron(step, name, y, tokens, hidden)], x.bytes / 4)
    logits = linear(step, "head", x, tokens, hidden, CLASSES)
    return step.finish(cross_entropy(step, "loss", logits, tokens, CLASSES))


def _attention(
    step: StepBuilder, name: str, x: Value, sequence: int, hidden: int, heads: int
) -> Value:
    tokens, count, width = step.batch * sequence, step.batch * heads, hidden // heads
    query, key, value = (
        linear(step, f"{name}.{each}", x, tokens, hidden, hidden) for each in "qkv"
    )
    scores = _product(step, f"{name}.scores", query, key, count, (sequence, sequence, width))
    weights = elementwise(step, f"{name}.softmax", "softmax", scores, count * sequence**2)
    context = _product(step, f"{name}.context", weights, value, count, (sequence, width, sequence))
    return linear(step, f"{name}.projection", context, tokens, hidden, hidden)


def _product(
    step: StepBuilder, name: str, a: Value, b: Value, count: float, sizes: tuple[int, int, int]
) -> Value:
    """`count` products of m x k by k x n, both computed, none a weight."""
    m, n, k = sizes
    flops = 2.0 * count * m * n * k
    backward = (
        Gradient(into=(0,), kind="matmul", flops=flops, saved=(b,)),
        Gradient(into=(1,), kind="matmul", flops=flops, saved=(a,)),
    )
    return step.apply(name, "matmul", [a, b], count * m * n, flops, backward)


def _perceptron(step: StepBuilder, name: str, x: Value, tokens: int, hidden: int) -> Value:
    y = linear(step, f"{name}.up", x, tokens, hidden, 4 * hidden)
    y = elementwise(step, f"{name}.gelu", "gelu", y, 4 * tokens * hidden, saves_output=False)
    return linear(step, f"{name}.down", y, tokens, 4 * hidden, hidden)
