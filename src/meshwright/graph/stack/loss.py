"""How many of a head's rows its loss reads: one over next tokens leaves out the last of a sample.

Read off the sizes of what lies between the head's product and its softmax.
"""

from meshwright.graph.graph import Phase
from meshwright.graph.stack.stack import LayerKind

_SOFTMAX, _CAST = "softmax", "_to_copy"
"""What the kinds of these ops have in their names."""


def share_of_rows(kind: LayerKind) -> float:
    """The share of a head's rows that its softmax reads; one where there is no softmax."""
    graph = kind.graph
    named = [op for op, name in enumerate(graph.kind) if _SOFTMAX in name]
    softmax = [op for op in named if graph.phase[op] == Phase.FORWARD]
    if not softmax:
        return 1.0
    share, scores = 1.0, _divided_input(kind, softmax[0])
    while scores >= 0:
        source = int(graph.tensor_source[scores])
        before = _divided_input(kind, source)
        if before >= 0 and _CAST not in graph.kind[source]:  # casts change bytes, not rows
            share *= float(graph.tensor_bytes[scores] / graph.tensor_bytes[before])
        scores = before
    return share


def _divided_input(kind: LayerKind, op: int) -> int:
    """The largest tensor of divided columns that an op reads, unless it is a product; -1: none."""
    graph = kind.graph
    read = [each for each in graph.inputs[op].tolist() if kind.is_cut[each]]
    if graph.product_columns[op] > 0 or not read:
        return -1
    return int(max(read, key=graph.tensor_bytes.__getitem__))
