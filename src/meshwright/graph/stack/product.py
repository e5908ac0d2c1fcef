"""Which ops of a graph multiply matrices, and what with. Looks at kinds and sizes of single ops."""

from collections.abc import Sequence

import numpy as np

from meshwright.graph.graph import Bools, Graph, Phase

_THIN_SHARE = 1e-3
"""A product with less than this of the FLOPs of the layer's largest is not worth dividing."""
_APART = 3
"""Queries, keys and values."""
_MATMULS = ("mm", "matmul", "linear", "einsum")


def is_product(graph: Graph) -> Bools:
    """Matrix products, convolutions and fused attention, with their gradients."""
    names, codes = graph.kind_codes
    known = np.array([_multiplies(name) for name in names], dtype=np.bool_)
    multiplies: Bools = known[codes] & (graph.flops > 0)
    return multiplies


def _multiplies(kind: str) -> bool:
    return kind.endswith(_MATMULS) or "attention" in kind or "convolution" in kind


def is_cast(graph: Graph) -> Bools:
    """Ops that only bring weights into another precision for products (autocast)."""
    forward = (graph.phase == Phase.FORWARD) & (graph.group >= 0)
    reads_none = np.diff(graph.inputs.start) == 0
    grows = np.zeros(graph.num_ops, dtype=np.bool_)
    grows[graph.tensor_source[graph.tensor_bytes > graph.fixed_tensor_bytes]] = True
    source, reader = graph.edges
    is_other = (graph.phase[reader] == Phase.FORWARD) & ~is_product(graph)[reader]
    feeds_others = np.zeros(graph.num_ops, dtype=np.bool_)
    feeds_others[source[is_other]] = True
    has_output = np.diff(graph.outputs.start) > 0
    casts: Bools = forward & reads_none & has_output & ~grows & ~feeds_others & (graph.flops == 0)
    return casts & (graph.fixed_bytes_read > 0)


def has_weight(graph: Graph) -> Bools:
    """Forward products with weights, their own or cast for them, tied ones included."""
    forward = is_product(graph) & (graph.phase == Phase.FORWARD)
    source, reader = graph.edges
    reads_cast = np.zeros(graph.num_ops, dtype=np.bool_)
    reads_cast[reader[is_cast(graph)[source]]] = True
    own = (graph.group >= 0) & (graph.fixed_bytes_read > 0)
    weighted: Bools = forward & (own | reads_cast)
    return weighted


def attends(graph: Graph) -> Bools:
    """Forward products of activations with each other: scores, context, or both fused."""
    weightless: Bools = is_product(graph) & (graph.phase == Phase.FORWARD) & ~has_weight(graph)
    return weightless


def key_bytes(read: Sequence[float], made: float) -> float:
    """Bytes of keys and values among the tensors that fused attention reads.

    They are what it reads besides its queries, which are as large as what it makes. Where the three
    are apart, queries are the largest: they may lie in the result of a fused product.
    """
    if len(read) == _APART:
        return sum(read) - max(read)
    return max(sum(read) - made, 0.0)


def is_expert(graph: Graph) -> Bools:
    """Products with several matrices of weights, each for its own tokens."""
    count = graph.product_count
    several: Bools = has_weight(graph) & (count > 1) & (graph.fixed_product_count == count)
    return several


def is_thin(graph: Graph) -> Bools:
    """Products far smaller than the largest: a router, a classifier of pairs."""
    weighted = has_weight(graph)
    largest = graph.flops[weighted].max(initial=0.0)
    thin: Bools = weighted & (graph.flops < _THIN_SHARE * largest)
    return thin
