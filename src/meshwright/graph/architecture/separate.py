"""Self-attention with a product each for queries, keys and values, as BERT and ViT have it."""

from meshwright.graph.architecture.op import attention, linear
from meshwright.graph.architecture.tape import Tape
from meshwright.graph.architecture.value import Value


def separate_attention(
    tape: Tape, module: str, kind: str, x: Value, *, hidden: int, heads: int, sequence: int
) -> Value:
    """What heads make of `sequence` tokens a sample; `kind` as in `attention`."""
    parts = []
    for part in ("query", "key", "value"):
        y = linear(tape, f"{module}.{part}", x, hidden, hidden)
        parts.append(tape.view(tape.view(y)))
    y = attention(
        tape, module, kind, *parts,
        heads=heads, width=hidden // heads, sequence=sequence, steps=(hidden,),
    )  # fmt: skip
    return tape.view(tape.view(y))
