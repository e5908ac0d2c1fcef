"""Whether two graphs are the same, column by column."""

from dataclasses import fields

import numpy as np

from meshwright.graph.graph import Graph


def assert_same(graph: Graph, other: Graph) -> None:
    """All columns but the name are equal, to the last bit."""
    assert graph.op_names == other.op_names
    for each in fields(Graph):
        if each.name in ("name", "seconds"):
            continue
        one, two = getattr(graph, each.name), getattr(other, each.name)
        if isinstance(one, np.ndarray):
            different = np.flatnonzero(one != two) if one.shape == two.shape else [0]
            assert len(different) == 0, f"{each.name} differs first at {different[0]}"
            assert one.dtype == two.dtype, each.name
        else:
            assert one == two, each.name
    assert dict(graph.seconds) == dict(other.seconds)
