"""METIS (Karypis and Kumar, SIAM J. Sci. Comput. 1998) on a web's units: k sets of equal time.

Balances seconds and cuts few bytes. Knows nothing of order.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt
import pymetis

from meshwright.graph.coarsen.web import Web
from meshwright.graph.column import Floats, Ints

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
    start, neighbour, size = _unit_graph(web, unit_of.astype(np.int64), num_units)
    weight: Any = np.bincount(unit_of, weights=web.nodes["seconds"], minlength=num_units)
    with _quiet_output():
        found = pymetis.part_graph(
            num_parts,
            pymetis.CSRAdjacency(start.tolist(), neighbour.tolist()),
            vweights=_scaled(weight).tolist(),
            eweights=_scaled(size).tolist() if len(size) else None,
            recursive=num_parts <= 8,  # METIS's manual: better for few parts
            options=pymetis.Options(seed=seed % 2**31),
        )
    part: Ints = np.array(found.vertex_part, dtype=np.int32)[unit_of]
    return part


def _unit_graph(
    web: Web, unit_of: npt.NDArray[np.int64], num_units: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]:
    """The undirected graph of units, compressed by rows, with the bytes of each edge."""
    first, second, size = web.pairs()
    source, target = unit_of[first], unit_of[second]
    is_cut = source != target
    ends = np.concatenate((source[is_cut], target[is_cut]))
    other = np.concatenate((target[is_cut], source[is_cut]))
    pairs, inverse = np.unique(ends * num_units + other, return_inverse=True)
    sizes = np.concatenate((size[is_cut], size[is_cut]))
    weight = np.bincount(inverse.ravel(), weights=sizes, minlength=len(pairs))
    start = np.searchsorted(pairs, np.arange(num_units + 1) * num_units)
    return start.astype(np.int64), pairs % num_units, weight.astype(np.float64, copy=False)


def _scaled(values: Floats) -> npt.NDArray[np.int64]:
    """Positive integers in proportion that together stay within what METIS can count."""
    total = float(values.sum())
    if total <= 0:
        return np.ones(len(values), dtype=np.int64)
    return np.maximum(1, np.rint(values / total * _WEIGHT_SUM)).astype(np.int64)


@contextmanager
def _quiet_output() -> Iterator[None]:
    """METIS prints remarks to the standard output, where `--json` writes its one object."""
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
