"""Whether a link is the only path between two nodes of a web, and where they go when merged.

Exact. A path from i to j stands between their places, so two searches start there, onward from i
and back from j. The one goes on that will have seen fewer links then: what has been merged of many
ops has thousands, and is rarely looked at. A path is found where the two meet, and there is none
when either has nothing left, however far the other would have gone. Onward, the reader that stands
last is taken first, and back the source that stands first: in a training step that leaps over what
lies between, from a forward op to the backward op that reads what it saved.
"""

from typing import NamedTuple

import numpy as np

from meshwright.compiled import Array, Bool, Int, inlined, outlined
from meshwright.graph.coarsen.web import IN, OUT, WebArrays, merge, neighbour

_PATH, _AHEAD, _BEHIND, _NOTHING_AHEAD, _NOTHING_BEHIND = range(5)
"""What `_find_path` finds: a path; none, and all that i leads to, or all that leads to j."""


class PathState(NamedTuple):
    """What searches for paths need, for kernels."""

    slots: Array
    """The node at each place of the topological order, or -1."""
    stacks: Array
    """Room for the nodes that are met OUT and IN."""
    seen: Array
    """How many links have been seen OUT and IN."""
    searches: Array
    """How many searches there have been, as one entry; the number of the last one."""


def make_path_state(num_nodes: int) -> PathState:
    """The state before the first search, when nodes stand in their order."""
    slots, stacks = np.arange(num_nodes, dtype=np.int32), np.zeros((2, num_nodes), np.int32)
    return PathState(slots, stacks, np.zeros(2, np.int64), np.zeros(1, np.int64))


@inlined
def merge_if_convex(web: WebArrays, state: PathState, first: Int, second: Int) -> Bool:
    """Merge two nodes that a link joins into the first, unless another path goes between them."""
    state.searches[0] += 1
    found = _find_path(web, state, first, second)
    if found == _PATH:
        return False
    place = _settle(web.nodes, state, first, second, found)
    merge(web, first, second)
    web.nodes[first].place = place
    state.slots[place] = first
    return True


@inlined
def _expand(
    web: WebArrays, state: PathState, top: Int, node: Int, way: Int, ends: tuple[Int, Int],
) -> Int:  # fmt: skip
    """Put a node's neighbours on the stack; its new height, or -1 when the searches meet."""
    first, second = ends
    nodes, stack = web.nodes, state.stacks[way]
    low, high = nodes[first].place, nodes[second].place
    mark, goal = 2 * state.searches[0] + way, 2 * state.searches[0] + 1 - way
    skipped = (
        (second if node == first else first)
        if way == OUT
        else (first if node == second else second)
    )
    best = top
    at = np.int64(nodes[node].first[way])
    while at >= 0:
        state.seen[way] += 1
        other = neighbour(web, at, way)
        at = np.int64(web.links[at].next[way])
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
def _find_path(web: WebArrays, state: PathState, first: Int, second: Int) -> Int:
    """PATH when another path than the link goes from `first` to `second`, else AHEAD or BEHIND.

    AHEAD: all that `first` leads to before `second` has the mark 2 `search`; BEHIND: all that leads
    to `second` after `first` has the mark 2 `search` + 1. A search's number is never used again.
    NOTHING_AHEAD, NOTHING_BEHIND: there is nothing of that kind.
    """
    nodes, seen, ends = web.nodes, state.seen, (first, second)
    nodes[first].mark, nodes[second].mark = 2 * state.searches[0], 2 * state.searches[0] + 1
    state.stacks[OUT, 0], state.stacks[IN, 0] = first, second
    top_ahead, top_behind = np.int64(1), np.int64(1)
    seen[OUT] = seen[IN] = 0
    while True:
        node = np.int64(state.stacks[OUT, top_ahead - 1])
        other = np.int64(state.stacks[IN, top_behind - 1])
        if seen[OUT] + nodes[node].num[OUT] <= seen[IN] + nodes[other].num[IN]:
            top_ahead = _expand(web, state, top_ahead - 1, node, OUT, ends)
            if top_ahead <= 0:
                found = _NOTHING_AHEAD if node == first else _AHEAD
                return np.int64(found if top_ahead == 0 else _PATH)
        else:
            top_behind = _expand(web, state, top_behind - 1, other, IN, ends)
            if top_behind <= 0:
                found = _NOTHING_BEHIND if other == second else _BEHIND
                return np.int64(found if top_behind == 0 else _PATH)


@outlined
def _settle(nodes: Array, state: PathState, first: Int, second: Int, found: Int) -> Int:
    """Give places to what stands between two nodes that are merged, and to the one that is left.

    After AHEAD: what `first` leads to goes behind the merged node, which stands behind all others.
    After BEHIND: what leads to `second` goes before it, and it before all others. Neither turns a
    link round. Returns the place of the merged node; one slot is left empty.
    """
    slots, scratch, search = state.slots, state.stacks[OUT], state.searches[0]
    low, high = np.int64(nodes[first].place), np.int64(nodes[second].place)
    if found in (_NOTHING_AHEAD, _NOTHING_BEHIND):
        slots[low if found == _NOTHING_AHEAD else high] = -1
        return high if found == _NOTHING_AHEAD else low
    step = np.int64(1 if found == _AHEAD else -1)
    begin, end = (low, high) if found == _AHEAD else (high, low)
    moved = 2 * search if found == _AHEAD else 2 * search + 1
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
