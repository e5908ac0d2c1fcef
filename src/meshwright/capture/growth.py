"""How the sizes of a step grow with its batch, from traces of it at several sizes.

Sizes are sums of powers of the batch. For nearly all ops a line does, which two traces give. An op
that compares samples with each other (the logits of a contrastive loss, pairwise distances) makes
or reads a tensor with the batch in two of its dimensions or more, and grows with its square or
cube: two traces cannot tell a square from a line that starts above zero, four can.
"""

from collections.abc import Iterator, Sequence

from meshwright.capture.ledger import Kernel, Ledger, tensors_of
from meshwright.graph.column import STEEP_POWERS

FEW_SIZES = (1, 2)
"""Times the batch, of the traces that are enough for lines."""
ALL_SIZES = (1, 2, 3, 4)
"""Times the batch, of the traces that are enough for cubes."""
_ROUNDING = 1e-9
"""Relative to a size. What is left of sums in floating point is no part of it."""


def steep_kernels(one: Ledger, other: Ledger) -> list[bool]:
    """For each kernel whether it compares samples; `other` is of the same kernels at `FEW_SIZES[1]`
    times the batch."""
    growth = FEW_SIZES[1] / FEW_SIZES[0]
    return [
        any(
            _is_steep(small, large, growth)
            for small, large in zip(_shapes(kernel), _shapes(grown), strict=True)
        )
        for kernel, grown in zip(one.kernels, other.kernels, strict=True)
    ]


def _is_steep(small: Sequence[int], large: Sequence[int], growth: float) -> bool:
    """Whether a tensor has the batch in several dimensions, or several times in one."""
    pairs = [(few, many) for few, many in zip(small, large, strict=False) if many > few]
    return len(pairs) > 1 or any(many > growth * few for few, many in pairs)


def _shapes(kernel: Kernel) -> Iterator[Sequence[int]]:
    """The shapes of all tensors that a kernel reads and makes."""
    for node in (*kernel.node.all_input_nodes, kernel.node):
        for tensor in tensors_of(node.meta.get("val")):
            yield tuple(tensor.shape)


def fit_parts(name: str, sizes: Sequence[float], *, is_steep: bool) -> dict[str, float]:
    """A quantity's columns: itself, its fixed part and, where it may be steep, its other parts.

    `sizes` are those at 1, 2, ... times the batch.
    """
    whole = sizes[0]
    if not is_steep:
        fixed = min(max(0.0, whole - (sizes[1] - whole)), whole)
        return {name: whole, f"fixed_{name}": fixed}
    parts = _powers(sizes)
    columns = {name: whole, f"fixed_{name}": parts[0]}
    return columns | {f"{start}_{name}": parts[power] for start, power in STEEP_POWERS.items()}


def _powers(sizes: Sequence[float]) -> list[float]:
    """The parts that grow with the powers 0 to 3 of the batch, by Newton's forward differences.

    None is negative, and they add up to the first size.
    """
    whole, second, third = sizes[0], sizes[1] - sizes[0], sizes[2] - 2 * sizes[1] + sizes[0]
    fourth = sizes[3] - 3 * sizes[2] + 3 * sizes[1] - sizes[0]
    # With x = size - 1: whole + second x + third x (x - 1) / 2 + fourth x (x - 1) (x - 2) / 6.
    powers = [
        whole - second + third - fourth,
        second - 1.5 * third + 11 / 6 * fourth,
        third / 2 - fourth,
        fourth / 6,
    ]
    least = _ROUNDING * abs(sizes[-1])
    kept = [each if each > least else 0.0 for each in powers]
    total = sum(kept)
    return [each * whole / total for each in kept] if total > 0 else [whole, 0.0, 0.0, 0.0]
