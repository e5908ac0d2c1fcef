"""Binary heaps on slices of arrays, for compiled kernels.

A heap is `count` entries from `base` on, ordered by (key, code), so that equal keys leave in the
order of their codes and every run is the same. Entries may have further fields, which stay with
them.
"""

import numpy as np

from meshwright.compiled import Array, Float, Int, inlined

ENTRY = np.dtype([("key", np.float64), ("code", np.int64)], align=True)
VERSIONED = np.dtype([("key", np.float64), ("code", np.int64), ("version", np.int64)], align=True)
"""An entry that is known as stale by its version, which whoever changes what it was made for raises
elsewhere."""


@inlined
def push(entries: Array, base: Int, count: Int, key: Float, code: Int) -> Int:
    """Add an entry to a heap of `count` entries and return its place; the caller counts."""
    at = count
    while at > 0:
        up = (at - 1) >> 1
        above = entries[base + up].key
        if above < key or (above == key and entries[base + up].code <= code):
            break
        entries[base + at] = entries[base + up]
        at = up
    entries[base + at].key = key
    entries[base + at].code = code
    return base + at


@inlined
def pop(entries: Array, base: Int, count: Int) -> Int:
    """Remove the first entry of a heap of `count` entries and return its code."""
    first = entries[base].code
    last = count - 1
    key = entries[base + last].key
    code = entries[base + last].code
    at = 0
    while True:
        down = 2 * at + 1
        if down >= last:
            break
        below = entries[base + down].key
        if down + 1 < last:
            right = entries[base + down + 1].key
            if right < below or (
                right == below and entries[base + down + 1].code < entries[base + down].code
            ):
                down += 1
                below = right
        if key < below or (key == below and code <= entries[base + down].code):
            break
        entries[base + at] = entries[base + down]
        at = down
    entries[base + at] = entries[base + last]
    return first
