"""Which ops of a layer are between the stream and experts: they route, sort and put back tokens.

Looks at what depends on what: one op makes all that experts and their routing see of the stream,
and after the experts the first op that reads anything else of the stream ends the block.
"""

import numpy as np

from meshwright.graph.graph import Bools, Phase
from meshwright.graph.stack.stack import LayerKind, Role


def find_block(kind: LayerKind) -> Bools:
    """By op of forward: whether it is in the block of the layer's experts.

    Where several ops feed it, all of the layer's ops count.
    """
    graph = kind.graph
    found = np.zeros(graph.num_ops, dtype=np.bool_)
    is_forward = graph.phase == Phase.FORWARD
    experts = np.flatnonzero(is_forward & (kind.role == Role.EXPERT))
    if not len(experts):
        return found
    before = _find_dominators(kind)
    common = set.intersection(*(before[int(op)] for op in experts)) - set(experts.tolist())
    if not common:
        found[is_forward] = True
        return found
    start = max(common)
    found[start] = True
    for op in np.flatnonzero(is_forward).tolist():
        sources = graph.tensor_source[graph.inputs[op][kind.has_rows[graph.inputs[op]]]]
        if op > start and found[sources].any():
            reads_only = [each for each in sources.tolist() if before[each]]
            found[op] = bool(found[reads_only].all())
    found[start] = False
    return found


def _find_dominators(kind: LayerKind) -> dict[int, set[int]]:
    """By op of forward: the ops that all ways from the layer's input to it go through, itself
    included; nothing where it does not depend on that input."""
    graph = kind.graph
    found: dict[int, set[int]] = {}
    for op in np.flatnonzero(graph.phase == Phase.FORWARD).tolist():
        if op < kind.num_entering:
            found[op] = {op} if kind.is_input[graph.outputs[op]].any() else set()
            continue
        ways = [each for source in graph.predecessors[op].tolist() if (each := found[source])]
        found[op] = set.intersection(*ways) | {op} if ways else set()
    return found
