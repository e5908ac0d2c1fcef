"""Self-attention with a product each for queries, keys and values, as BERT and ViT have it."""

from meshwright.graph.architecture.op import Linear, attention
from meshwright.graph.architecture.tape import Tape
from meshwright.graph.architecture.value import Value


def separate_attention(
    tape: Tape, module: str, kind: str, x: Value, *, hidden: int, heads: int, sequence: int
) -> Value:
    """What heads make of `sequence` tokens a sample; `kind` as in `attention`."""
    parts = []
    for part in ("query", "key", "value"):
        weights = tape.pair(f"{module}.{part}", hidden * hidden, hidden)
        y = Linear(tape, f"{module}.{part}", hidden, hidden).biased(x, *weights)
        parts.append(tape.view(tape.view(y)))
    y = attention(
        tape, module, kind, *parts,
        heads=heads, width=hidden // heads, sequence=sequence, steps=(hidden,),
    )  # fmt: skip
    return tape.view(tape.view(y))
