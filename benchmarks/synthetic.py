"""GPT steps of about as many ops as wanted, for tests and benchmarks of what grows with ops.

Decides how many layers that takes and nothing else; the ops are those of `gpt`.
"""

from meshwright.errors import InputError
from meshwright.graph.architecture.gpt import gpt
from meshwright.graph.graph import Graph


def synthetic_gpt(
    num_ops: int,
    *,
    hidden: int = 1024,
    heads: int = 16,
    vocabulary: int = 50_257,
    sequence: int = 512,
    batch: float = 8,
    precision: str = "bf16",
) -> Graph:
    """A step of about `num_ops` ops (within one layer's), whose head is a copy.

    A tied head would bind the two ends of the step to one device.
    """

    def build(layers: int) -> Graph:
        return gpt(
            hidden=hidden,
            heads=heads,
            layers=layers,
            sequence=sequence,
            vocabulary=vocabulary,
            batch=batch,
            precision=precision,
            untie=True,
            name=f"gpt-{layers}",
        )

    one, two = build(1).num_ops, build(2).num_ops
    if num_ops < one:
        raise InputError(f"synthetic gpt: num_ops must be at least {one}, got {num_ops:,}")
    return build(1 + round((num_ops - one) / (two - one)))
