"""A stronger bound for small steps: windows under decisions, over all decisions on some pairs.

The windows of `meshwright.search.bound.window` are solved one by one, so that forward may keep two
layers on one device while backward has them on two. Here pairs of units are decided for the whole
step: either both are on one device, whose load they add to, or all that they exchange is moved. The
least bound of all branches holds. Best first, so that every branch taken raises the bound, until
the work is used up or nothing on the longest path is left to decide.
"""

import heapq
from collections.abc import Iterator

import numpy as np

from meshwright.array import Ints
from meshwright.search.bound.window import (
    ROUNDING,
    Bounded,
    Decisions,
    WindowBounder,
    undecided,
    window_bound,
)
from meshwright.search.instance import Instance

_WORK = 150_000
"""The ops that all bounds together may look at: what a second is enough for."""
_LEAST_BOUNDS = 400
"""Steps too large for so many bounds are not branched on."""
_PAIRS = 3
"""Pairs that are tried at each branch; the one that raises the lesser of its two bounds most stays.
"""


def can_branch(instance: Instance) -> bool:
    """Whether the step is small enough for the work, and there is something to decide."""
    return instance.num_devices > 1 and _WORK // max(1, instance.num_ops) >= _LEAST_BOUNDS


def branch_bound(instance: Instance, target: float = np.inf) -> float:
    """No placement is faster. Stops when the bound has reached `target`."""
    if not can_branch(instance):
        return window_bound(instance)
    left = _WORK // max(1, instance.num_ops)
    windows = WindowBounder(instance)
    root = undecided(instance)
    first = windows.bound(root)
    # The number breaks ties between equal bounds.
    nodes: list[tuple[float, int, Decisions, Bounded]] = [(first.seconds, 0, root, first)]
    count = 0
    while left > 0 and nodes[0][0] < target:
        _, _, decisions, bounded = nodes[0]
        children: list[tuple[Decisions, Bounded]] = []
        best = -np.inf
        for one, other in _pairs(windows, decisions, bounded.path):
            tried = [
                (each, windows.bound(each))
                for each in (_together(decisions, one, other), _apart(decisions, one, other))
                if each is not None
            ]
            left -= len(tried)
            least = min((each.seconds for _, each in tried), default=np.inf)
            if least > best:
                best, children = least, tried
        if not children:
            break  # nothing is left to decide where it matters
        heapq.heappop(nodes)
        for each, found in children:
            count += 1
            seconds = max(found.seconds, bounded.seconds)  # what held before holds still
            heapq.heappush(nodes, (seconds, count, each, found))
    return ROUNDING * nodes[0][0]


def _pairs(windows: WindowBounder, decisions: Decisions, path: Ints) -> Iterator[tuple[int, int]]:
    """Undecided pairs of units along the path, those that exchange most first."""
    instance = windows.instance
    decided = {(int(a), int(b)) for a, b in decisions.apart} | {
        (int(b), int(a)) for a, b in decisions.apart
    }
    found: dict[tuple[int, int], float] = {}
    for source, target in zip(path[:-1].tolist(), path[1:].tolist(), strict=True):
        one = int(decisions.label[instance.unit_of[source]])
        other = int(decisions.label[instance.unit_of[target]])
        if one == other or (one, other) in decided:
            continue
        first, end = instance.in_start[target], instance.in_start[target + 1]
        reads = instance.in_edges["op"][first:end] == source
        moved = float(windows.transfer[first:end][reads].max(initial=0.0))
        pair = (min(one, other), max(one, other))
        found[pair] = found.get(pair, 0.0) + moved
    yield from sorted(found, key=lambda pair: (-found[pair], pair))[:_PAIRS]


def _together(decisions: Decisions, one: int, other: int) -> Decisions | None:
    """Both on one device; None where that cannot be."""
    label = np.where(decisions.label == other, one, decisions.label).astype(np.int32)
    apart = np.where(decisions.apart == other, one, decisions.apart).astype(np.int32)
    if (apart[:, 0] == apart[:, 1]).any():
        return None
    return Decisions(label=label, apart=np.unique(apart, axis=0))


def _apart(decisions: Decisions, one: int, other: int) -> Decisions:
    return Decisions(
        label=decisions.label,
        apart=np.append(decisions.apart, [[one, other]], axis=0).astype(np.int32),
    )
