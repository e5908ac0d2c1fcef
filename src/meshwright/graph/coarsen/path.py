"""Whether a link is the only path between two nodes of a web, and where they go when merged.

Exact. A path from i to j stands between their places, so two searches start there, onward from i
and back from j. The one goes on that will have seen fewer links then: what has been merged of many
ops has thousands, and is rarely looked at. A path is found where the two meet, and there is none
when either has nothing left, however far the other would have gone. Onward, the reader that stands
last is taken first, and back the source that stands first: in a training step that leaps over what
lies between, from a forward op to the backward op that reads what it saved.
"""

import numpy as np

from meshwright.compiled import Array, Int, inlined, outlined
from meshwright.graph.coarsen.web import IN, OUT, neighbour

PATH, AHEAD, BEHIND, NOTHING_AHEAD, NOTHING_BEHIND = range(5)
"""What `find_path` finds: a path; none, and all that i leads to, or all that leads to j."""


@inlined
def _expand(
    nodes: Array, links: Array, stack: Array, top: Int, node: Int, skipped: Int, way: Int,
    low: Int, high: Int, mark: Int, goal: Int, seen: Array,
) -> Int:  # fmt: skip
    """Put a node's neighbours on the stack; its new height, or -1 when the searches meet."""
    best = top
    at = np.int64(nodes[node].first[way])
    while at >= 0:
        seen[way] += 1
        other = neighbour(nodes, links, at, way)
        at = np.int64(links[at].next[way])
        place = nodes[other].place
        if other == skipped or place < low or place > high or nodes[other].mark == mark:
            continue
        if nodes[other].mark == goal:
            return np.int64(-1)
        nodes[other].mark = mark
        stack[top] = other
        nearest = nodes[stack[best]].place
        if (place > nearest) if way == OUT else (place < nearest):
            best = top
        top += 1
    if best < top:
        stack[best], stack[top - 1] = stack[top - 1], stack[best]
    return np.int64(top)


@outlined
def find_path(
    nodes: Array, links: Array, first: Int, second: Int, search: Int, ahead: Array, behind: Array,
    seen: Array,
) -> Int:  # fmt: skip
    """PATH when another path than the link goes from `first` to `second`, else AHEAD or BEHIND.

    AHEAD: all that `first` leads to before `second` has the mark 2 `search`; BEHIND: all that leads
    to `second` after `first` has the mark 2 `search` + 1. A search's number is never used again.
    NOTHING_AHEAD, NOTHING_BEHIND: there is nothing of that kind.
    """
    low, high = np.int64(nodes[first].place), np.int64(nodes[second].place)
    onward, back = 2 * search, 2 * search + 1
    nodes[first].mark, nodes[second].mark = onward, back
    ahead[0], behind[0] = first, second
    top_ahead, top_behind = np.int64(1), np.int64(1)
    seen[0] = seen[1] = 0
    while True:
        node, other = np.int64(ahead[top_ahead - 1]), np.int64(behind[top_behind - 1])
        if seen[OUT] + nodes[node].num[OUT] <= seen[IN] + nodes[other].num[IN]:
            skipped = second if node == first else first
            top_ahead = _expand(
                nodes, links, ahead, top_ahead - 1, node, skipped, OUT, low, high, onward, back,
                seen,
            )  # fmt: skip
            if top_ahead <= 0:
                found = NOTHING_AHEAD if node == first else AHEAD
                return np.int64(found if top_ahead == 0 else PATH)
        else:
            skipped = first if other == second else second
            top_behind = _expand(
                nodes, links, behind, top_behind - 1, other, skipped, IN, low, high, back,
                onward, seen,
            )  # fmt: skip
            if top_behind <= 0:
                found = NOTHING_BEHIND if other == second else BEHIND
                return np.int64(found if top_behind == 0 else PATH)


@outlined
def settle(
    nodes: Array, slots: Array, first: Int, second: Int, search: Int, found: Int, scratch: Array
) -> Int:
    """Give places to what stands between two nodes that are merged, and to the one that is left.

    After AHEAD: what `first` leads to goes behind the merged node, which stands behind all others.
    After BEHIND: what leads to `second` goes before it, and it before all others. Neither turns a
    link round. Returns the place of the merged node; one slot is left empty.
    """
    low, high = np.int64(nodes[first].place), np.int64(nodes[second].place)
    if found in (NOTHING_AHEAD, NOTHING_BEHIND):
        slots[low if found == NOTHING_AHEAD else high] = -1
        return high if found == NOTHING_AHEAD else low
    step = np.int64(1 if found == AHEAD else -1)
    begin, end = (low, high) if found == AHEAD else (high, low)
    moved = 2 * search if found == AHEAD else 2 * search + 1
    count = np.int64(0)
    at, free = begin + step, begin
    while at != end:
        node = np.int64(slots[at])
        at += step
        if node < 0:
            continue
        if nodes[node].mark == moved:
            scratch[count] = node
            count += 1
        else:
            slots[free] = node
            nodes[node].place = free
            free += step
    merged = free
    free += step
    for k in range(count):
        slots[free] = scratch[k]
        nodes[scratch[k]].place = free
        free += step
    while free != end + step:
        slots[free] = -1
        free += step
    return merged
