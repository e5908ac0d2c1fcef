"""Random bits on a CPU; see `meshwright.execute.random.bits`."""

import numpy as np

from meshwright.compiled import Array, Int, compiled, inlined


@compiled
def fill_bits(keys: Array, made: Array) -> None:
    """Fill an array of rows, samples and places with signed bits."""
    rows, samples, inner = made.shape
    for row in range(rows):
        for sample in range(samples):
            first, second = np.uint32(keys[sample, 0]), np.uint32(keys[sample, 1])
            for place in range(inner):
                made[row, sample, place] = _draw(first, second, row * inner + place)


@compiled
def fill_mask(keys: Array, below: Int, made: Array) -> None:
    """Whether each of these is below a limit."""
    rows, samples, inner = made.shape
    for row in range(rows):
        for sample in range(samples):
            first, second = np.uint32(keys[sample, 0]), np.uint32(keys[sample, 1])
            for place in range(inner):
                made[row, sample, place] = _draw(first, second, row * inner + place) < below


@inlined
def _draw(first: Int, second: Int, position: Int) -> Int:
    return np.int32(_mix(_mix(np.uint32(position) ^ first) ^ second))


@inlined
def _mix(word: Int) -> Int:
    word = np.uint32(word ^ (word >> np.uint32(16)))
    word = np.uint32(word * np.uint32(0x7FEB352D))
    word = np.uint32(word ^ (word >> np.uint32(15)))
    word = np.uint32(word * np.uint32(0x846CA68B))
    return np.uint32(word ^ (word >> np.uint32(16)))
