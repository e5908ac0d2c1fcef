"""A quick lower bound on the largest load: no wire costs anything, and nodes may be divided.

Each node is worth its seconds where it runs fastest. Devices of load L hold at most what the best
worth for their seconds fills, down to a part of a node; the bound is the least L at which all
devices together hold what all nodes are worth.
"""

import numpy as np

from meshwright.array import Floats
from meshwright.search.method.pipeline.stage.problem import SplitProblem

_ROUNDING = 1.0 - 1e-11
"""Sums of thousands of terms are rounded by less."""
_HALVINGS = 100


def fractional_bound(problem: SplitProblem) -> float:
    """Seconds; no split has a lower largest load, whatever the wires and the memory."""
    kinds = [kind for kind in problem.kinds if kind.count > 0]
    worth: Floats = np.min([kind.seconds for kind in kinds], axis=0)
    total = float(worth.sum())
    curves = [_filling(kind.seconds, worth) for kind in kinds]
    low, high = 0.0, total
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        held = sum(
            kind.count * float(np.interp(middle, *curve))
            for kind, curve in zip(kinds, curves, strict=True)
        )
        if held < total * _ROUNDING:
            low = middle
        else:
            high = middle
    return low * _ROUNDING


def _filling(seconds: Floats, worth: Floats) -> tuple[Floats, Floats]:
    """Loads, and the most that divided nodes of that load are worth."""
    nodes = np.flatnonzero(np.isfinite(seconds) & (worth > 0))
    nodes = nodes[np.argsort(-worth[nodes] / seconds[nodes], kind="stable")]
    start = np.zeros(1)
    return (
        np.concatenate((start, np.cumsum(seconds[nodes]))),
        np.concatenate((start, np.cumsum(worth[nodes]))),
    )
