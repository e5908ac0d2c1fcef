"""A binary heap for the kernels of coarsening, in an array that the caller made.

Entries leave by (key, code), so equal keys leave in the order of their codes and every run is the
same. Who changes what an entry was made for raises a version and knows the entry as stale by it.
"""

import numpy as np

from meshwright.compiled import Array, Bool, Int, inlined, outlined

ENTRY = np.dtype([("key", np.float64), ("code", np.int64), ("version", np.int64)], align=True)


@inlined
def _is_before(entries: Array, first: Int, second: Int) -> Bool:
    if entries[first].key == entries[second].key:
        return entries[first].code < entries[second].code
    return entries[first].key < entries[second].key


@inlined
def _swap(entries: Array, first: Int, second: Int) -> None:
    key, code, version = entries[first].key, entries[first].code, entries[first].version
    entries[first].key = entries[second].key
    entries[first].code = entries[second].code
    entries[first].version = entries[second].version
    entries[second].key, entries[second].code, entries[second].version = key, code, version


@outlined
def rise(entries: Array, at: Int) -> None:
    """Take the entry at the end of a heap up to its place."""
    while at > 0 and _is_before(entries, at, (at - 1) >> 1):
        _swap(entries, at, (at - 1) >> 1)
        at = (at - 1) >> 1


@outlined
def sink(entries: Array, at: Int, count: Int) -> None:
    """Take the entry at `at` of a heap of `count` entries down to its place."""
    while 2 * at + 1 < count:
        down = 2 * at + 1
        if down + 1 < count and _is_before(entries, down + 1, down):
            down += 1
        if not _is_before(entries, down, at):
            return
        _swap(entries, at, down)
        at = down


@inlined
def push(entries: Array, count: Int, key: Array, code: Int, version: Int) -> None:
    """Add an entry to a heap of `count` entries; the caller counts."""
    entries[count].key = key
    entries[count].code = code
    entries[count].version = version
    rise(entries, count)


@inlined
def drop(entries: Array, count: Int) -> None:
    """Remove the first entry, which the caller has read, of a heap of `count` entries."""
    _swap(entries, 0, count - 1)
    sink(entries, 0, count - 1)
