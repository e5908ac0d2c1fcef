"""Products and systems of matrices in pieces that OpenBLAS computes in one thread.

From some size on it takes all cores and waits for them, also where others use them: on two busy
cores a system of 150 rows took 136 ms in place of 0.4 (2026-11-15). Knows nothing of rates.
"""

import numpy as np

from meshwright.array import Floats

_MATRIX, _VECTOR = 200_000, 8_000
"""Multiplications that are done in one thread: some 2^18, and 2^13 for a vector."""
_ROWS = 96
"""How many rows a system has at most that is solved in one thread: its square is below 10,000."""


def product(one: Floats, other: Floats) -> Floats:
    """The product of a matrix and a matrix or vector."""
    most = _MATRIX if other.ndim == 2 else _VECTOR
    count = max(1, most // max(other.size, 1))
    if count >= len(one):
        return np.asarray(one @ other)
    return np.concatenate([one[k : k + count] @ other for k in range(0, len(one), count)])


def solve(system: Floats, known: Floats) -> Floats:
    """What a symmetric, positive definite matrix makes the known columns of.

    A half at a time: rows of the first half are put into those of the second.
    """
    if len(system) <= _ROWS:
        return np.asarray(np.linalg.solve(system, known))
    half = len(system) // 2
    count = len(system) - half
    first = solve(system[:half, :half], np.concatenate((system[:half, half:], known[:half]), 1))
    below = system[half:, :half]
    left = system[half:, half:] - product(below, first[:, :count])
    second = solve(left, known[half:] - product(below, first[:, count:]))
    return np.concatenate((first[:, count:] - product(first[:, :count], second), second))
