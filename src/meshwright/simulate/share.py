"""Max-min fair sharing of links between flows, for the compiled event engine.

Flows that use the same links in the same way are one class and go one after the other, as on the
one connection that two ranks have: a class has one rate, whoever's turn it is, and the work of a
change does not grow with the number of flows. A flow of class c at rate r puts `weight * r` on each
of its links; a class may also have a rate of its own that no flow exceeds. Max-min fair: no flow
can get more without one that has less getting less
(Bertsekas and Gallager, Data Networks, section 6.5.2, by progressive filling).
"""

import numpy as np

from meshwright.compiled import Array, Bool, Float, Int, inlined

FLOW_CLASS = np.dtype(
    [
        ("cap", np.float64),  # the highest rate of one of its flows
        ("rate", np.float64),  # of the flow whose turn it is
        ("served", np.float64),  # what all its flows have got since it was last empty
        ("served_at", np.float64),  # up to when
        ("entered", np.float64),  # the service that completes the last of its flows
        ("done_at", np.float64),  # when its next flow finishes
        ("first_use", np.int32),  # its links: uses from here to the next class's
        ("queue", np.int32),  # its flows: a heap from here on
        ("size", np.int32),  # how many flows
        ("place", np.int32),  # in the heap of classes by done_at, or -1
        ("is_changed", np.bool_),
        ("mark", np.int8),  # scratch
    ],
    align=True,
)
"""One class of flows; arrays of it have one entry more than classes, to end the last one's uses."""

USE = np.dtype([("link", np.int32), ("weight", np.float64)], align=True)
"""A class's use of a link."""

LINK = np.dtype(
    [
        ("cap", np.float64),
        ("room", np.float64),  # scratch: what is left of the capacity
        ("weight", np.float64),  # scratch: what raising all open rates by one would take
        ("first_class", np.int32),  # its classes: from here to the next link's
        ("mark", np.int8),  # scratch
    ],
    align=True,
)
"""One link; arrays of it have one entry more than links."""

_OPEN, _FIXING, _FIXED = 1, 2, 3


@inlined
def place(heap: Array, classes: Array, count: Int, each: Int) -> Int:
    """Put a class where its changed (or new) `done_at` belongs in the heap; returns the count."""
    at = classes[each].place
    if at < 0:
        at = count
        count += 1
    key = classes[each].done_at
    while at > 0:
        up = (at - 1) >> 1
        other = heap[up]
        if classes[other].done_at < key or (classes[other].done_at == key and other < each):
            break
        heap[at] = other
        classes[other].place = at
        at = up
    while True:
        down = 2 * at + 1
        if down >= count:
            break
        if down + 1 < count:
            left, right = heap[down], heap[down + 1]
            if classes[right].done_at < classes[left].done_at or (
                classes[right].done_at == classes[left].done_at and right < left
            ):
                down += 1
        other = heap[down]
        if key < classes[other].done_at or (key == classes[other].done_at and each < other):
            break
        heap[at] = other
        classes[other].place = at
        at = down
    heap[at] = each
    classes[each].place = at
    return count


@inlined
def collect(
    classes: Array,
    uses: Array,
    links: Array,
    link_class: Array,
    found: Array,
    num_found: Int,
    reached: Array,
) -> tuple[Int, Int]:
    """Add to the `found` classes all active ones that share links with them, directly or not.

    `reached` receives their links. Returns how many classes and links.
    """
    num_reached = 0
    for k in range(num_found):
        classes[found[k]].mark = _OPEN
    at = 0
    while at < num_found:
        each = found[at]
        at += 1
        for e in range(classes[each].first_use, classes[each + 1].first_use):
            link = uses[e].link
            if links[link].mark == 0:
                links[link].mark = 1
                reached[num_reached] = link
                num_reached += 1
                for f in range(links[link].first_class, links[link + 1].first_class):
                    other = link_class[f]
                    if classes[other].size > 0 and classes[other].mark == 0:
                        classes[other].mark = _OPEN
                        found[num_found] = other
                        num_found += 1
    return num_found, num_reached


@inlined
def set_rates(
    classes: Array,
    uses: Array,
    links: Array,
    found: Array,
    num_found: Int,
    reached: Array,
    num_reached: Int,
) -> None:
    """Max-min fair rates for the classes and links that `collect` found, by progressive filling.

    All rates rise alike; the classes whose own cap or whose link is reached are fixed.
    """
    for k in range(num_reached):
        links[reached[k]].room = links[reached[k]].cap
        links[reached[k]].weight = 0.0
    num_open = 0
    for k in range(num_found):
        each = found[k]
        classes[each].rate = 0.0
        if classes[each].size > 0:
            num_open += 1
            for e in range(classes[each].first_use, classes[each + 1].first_use):
                links[uses[e].link].weight += uses[e].weight
        else:
            classes[each].mark = _FIXED
    while num_open > 0:
        level = _next_level(classes, links, found, num_found, reached, num_reached)
        for k in range(num_found):
            each = found[k]
            if classes[each].mark == _OPEN and _is_full(classes, uses, links, each, level):
                classes[each].mark = _FIXING
        for k in range(num_found):
            if classes[found[k]].mark == _FIXING:
                _fix(classes, uses, links, found[k], level)
                num_open -= 1
    for k in range(num_found):
        classes[found[k]].mark = 0
    for k in range(num_reached):
        links[reached[k]].mark = 0


@inlined
def _next_level(
    classes: Array, links: Array, found: Array, num_found: Int, reached: Array, num_reached: Int
) -> Float:
    """The rate at which the next link is full or the next class at its cap."""
    level = np.inf
    for k in range(num_reached):
        link = reached[k]
        if links[link].weight > 0.0:
            level = min(level, links[link].room / links[link].weight)
    for k in range(num_found):
        if classes[found[k]].mark == _OPEN:
            level = min(level, classes[found[k]].cap)
    return level


@inlined
def _is_full(classes: Array, uses: Array, links: Array, each: Int, level: Float) -> Bool:
    """Whether a class cannot go above `level`: by its own cap, or by one of its links."""
    limit = level * (1.0 + 1e-12)
    if classes[each].cap <= limit:
        return True
    for e in range(classes[each].first_use, classes[each + 1].first_use):
        link = uses[e].link
        if links[link].room <= links[link].weight * limit:
            return True
    return False


@inlined
def _fix(classes: Array, uses: Array, links: Array, each: Int, level: Float) -> None:
    """Give a class its final rate and take it off its links."""
    classes[each].mark = _FIXED
    classes[each].rate = level
    for e in range(classes[each].first_use, classes[each + 1].first_use):
        link = uses[e].link
        used = uses[e].weight
        links[link].room = max(0.0, links[link].room - used * level)
        links[link].weight -= used
        if links[link].weight < 1e-9 * used:  # what rounding leaves of nothing
            links[link].weight = 0.0
