"""METIS (Karypis and Kumar, SIAM J. Sci. Comput. 1998) on a web's units: k sets of equal time.

Balances seconds and cuts few bytes. Knows nothing of order. What METIS needs of any graph is here
too: neighbours by rows, weights that it can count, and its remarks kept off the standard output.
"""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pymetis

from meshwright.array import Floats, Ints, Longs
from meshwright.graph.coarsen.web import Web

_WEIGHT_SUM = 2**30
"""METIS counts in 32 bits: weights are scaled to add up to this at most."""


def partition_web(web: Web, num_parts: int, seed: int) -> Ints:
    """The part of each node; nodes of one unit are in one part."""
    units, unit_of = np.unique(web.nodes["unit"], return_inverse=True)
    unit_of = unit_of.ravel()
    num_units = len(units)
    num_parts = min(num_parts, num_units)
    if num_parts < 2:
        return np.zeros(web.num_nodes, dtype=np.int32)
    first, second, between = web.pairs()
    label = unit_of.astype(np.int64)
    start, neighbour, size = gather_neighbours(label[first], label[second], between, num_units)
    weight: Any = np.bincount(unit_of, weights=web.nodes["seconds"], minlength=num_units)
    found = cut_graph(
        num_parts,
        (start, neighbour),
        scaled_weights(weight),
        scaled_weights(size),
        seed=seed,
    )
    part: Ints = found[unit_of]
    return part


def cut_graph(
    num_parts: int,
    neighbours: tuple[Longs, Longs],
    weights: Longs,
    edge_weights: Longs,
    *,
    seed: int,
    targets: Sequence[float] = (),
    imbalance: float | None = None,
) -> Ints:
    """METIS's part of each node of a graph given by rows, as `gather_neighbours` makes them.

    `targets`: the share of the weight that each part is to have; none: equal. `imbalance`: how many
    times its share a part may weigh; None: METIS's own choice.
    """
    more = {} if imbalance is None else {"ufactor": max(1, round(1000 * (imbalance - 1)))}
    with quiet_output():
        found = pymetis.part_graph(
            num_parts,
            pymetis.CSRAdjacency(neighbours[0].tolist(), neighbours[1].tolist()),
            vweights=weights.tolist(),
            eweights=edge_weights.tolist() if len(edge_weights) else None,
            tpwgts=list(targets) or None,
            recursive=num_parts <= 8,  # METIS's manual: better for few parts
            options=pymetis.Options(seed=seed % 2**31, **more),
        )
    return np.array(found.vertex_part, dtype=np.int32)


def gather_neighbours(
    source: npt.NDArray[np.int64], target: npt.NDArray[np.int64], size: Floats, num_units: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]:
    """The undirected graph of units, compressed by rows, with the bytes of each edge.

    `source` and `target` are the units at the ends of `size` bytes; what stays in one is no edge.
    """
    is_cut = source != target
    ends = np.concatenate((source[is_cut], target[is_cut]))
    other = np.concatenate((target[is_cut], source[is_cut]))
    pairs, inverse = np.unique(ends * num_units + other, return_inverse=True)
    sizes = np.concatenate((size[is_cut], size[is_cut]))
    weight = np.bincount(inverse.ravel(), weights=sizes, minlength=len(pairs))
    start = np.searchsorted(pairs, np.arange(num_units + 1) * num_units)
    neighbour = pairs % max(1, num_units)
    return start.astype(np.int64), neighbour, weight.astype(np.float64, copy=False)


def scaled_weights(values: Floats, whole: float | None = None) -> npt.NDArray[np.int64]:
    """Positive integers in proportion that together stay within what METIS can count.

    `whole` is what may add up to the most that it counts; None: the values do.
    """
    total = float(values.sum()) if whole is None else whole
    if total <= 0:
        return np.ones(len(values), dtype=np.int64)
    return np.maximum(1, np.rint(values / total * _WEIGHT_SUM)).astype(np.int64)


@contextmanager
def quiet_output() -> Iterator[None]:
    """METIS prints remarks ("Cannot bisect a graph with 0 vertices!") to the standard output.

    That is where `--json` writes its one object, so the C library's output goes nowhere meanwhile.
    """
    sys.stdout.flush()
    flush = ctypes.CDLL(None).fflush
    flush(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)
