"""The tensors of a graph whose ops are merged: which are left, and between which ops.

Shared by all that merge ops; knows nothing of which should be.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Bools, Floats, Ints, Longs
from meshwright.graph.graph import Graph


def sum_by(labels: Any, values: Any, count: int) -> Floats:
    """The sum of the values with each label."""
    return np.bincount(labels, weights=values, minlength=count).astype(np.float64, copy=False)


def find_inner(graph: Graph, place: Ints) -> Bools:
    """The tensors that are read, and only by the op that makes them; `place`: each op's new one."""
    source, reader = graph.edges
    is_inner = np.zeros(graph.num_tensors, dtype=np.bool_)
    is_inner[graph.use_tensor] = True
    is_inner[graph.use_tensor[place[source] != place[reader]]] = False
    return is_inner


def kept_tensors(graph: Graph, place: Ints, is_inner: Bools) -> npt.NDArray[np.intp]:
    """The tensors that the merged graph has, by their new source."""
    kept = np.flatnonzero(~is_inner)
    return kept[np.argsort(place[graph.tensor_source[kept]], kind="stable")]


def merged_tensors(graph: Graph, place: Ints, is_inner: Bools) -> dict[str, Any]:
    """The columns of the merged graph's tensors; what several members read, their op reads once."""
    source, reader = place[graph.tensor_source], place[graph.use_op]
    kept = kept_tensors(graph, place, is_inner)
    number: Longs = np.full(graph.num_tensors, -1, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    outside = np.flatnonzero(reader != source[graph.use_tensor])
    count = int(place.max(initial=0)) + 1
    uses = np.unique(number[graph.use_tensor[outside]] * count + reader[outside])
    return {
        "tensor_source": source[kept],
        "tensor_bytes": graph.tensor_bytes[kept],
        "fixed_tensor_bytes": graph.fixed_tensor_bytes[kept],
        "tensor_partial": graph.tensor_partial[kept],
        "use_tensor": (uses // count).astype(np.int32),
        "use_op": (uses % count).astype(np.int32),
    }
