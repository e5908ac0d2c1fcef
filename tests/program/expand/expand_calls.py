"""The collectives of an expanded graph, for comparison with those that layers are priced for."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from meshwright.graph.graph import Phase
from meshwright.program.expand.expansion import Axis, Expansion
from meshwright.program.program import Kind


class Collective(NamedTuple):
    """One collective."""

    kind: str
    axis: str
    phase: Phase
    bytes: float
    """Those of the side that has more; of an all-reduce, those that it makes."""


def find_collectives(expansion: Expansion) -> Iterator[Collective]:
    """All of them, in the order of ops."""
    graph = expansion.graph
    for op in np.flatnonzero(expansion.is_collective).tolist():
        kind = Kind(int(expansion.collective[op]))
        made, read = (
            float(graph.tensor_bytes[side].sum()) for side in (graph.outputs[op], graph.inputs[op])
        )
        yield Collective(
            kind.name.lower(),
            Axis(int(expansion.axis[op])).name.lower(),
            Phase(int(graph.phase[op])),
            made if kind == Kind.ALL_REDUCE else max(made, read),
        )
