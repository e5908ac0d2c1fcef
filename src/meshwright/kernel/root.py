"""Joins disjoint sets inside compiled kernels: `parent[k]` is k, or a number nearer to k's root."""

import numpy as np

from meshwright.array import Ints
from meshwright.compiled import Array, Int, compiled, inlined


@inlined
def find_root(parent: Array, member: Int) -> Int:
    """The root of a member's set, with path halving (Tarjan and van Leeuwen, 1984)."""
    at = np.int64(member)
    while parent[at] != at:
        parent[at] = parent[parent[at]]
        at = np.int64(parent[at])
    return at


@compiled
def join_pairs(parent: Array, first: Array, second: Array) -> None:
    """Join the sets of each pair under the lower root, then let all members know their roots.

    Every `parent` must be at most its member's number.
    """
    for k in range(len(first)):
        one, two = find_root(parent, first[k]), find_root(parent, second[k])
        parent[max(one, two)] = min(one, two)
    for k in range(len(parent)):  # from the first: what it leads to is done
        parent[k] = parent[parent[k]]


def roots_of(parent: Ints) -> Ints:
    """The root of each member."""
    while not np.array_equal(parent[parent], parent):
        parent = parent[parent]
    return parent
