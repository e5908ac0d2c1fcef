"""The compiled search for routes. Works on plain arrays; see `meshwright.cluster.route`."""

from math import inf
from typing import Any

from meshwright.compiled import compiled, inlined

Array = Any  # Numba compiles by the arrays it meets; annotations inside kernels are for readers


@compiled
def fill_routes(
    counts: tuple[int, int, int],
    columns: tuple[Array, Array],
    ends: tuple[Array, Array],
    rates: tuple[Array, Array],
    entering: tuple[Array, Array],
    leaving: tuple[Array, Array],
    tables: tuple[Array, Array, Array, Array],
    scratch: tuple[Array, Array, Array, Array, Array, Array],
) -> None:
    """Fill bandwidth, latency, hops (source x target) and next_link (target x node).

    `counts` are the first node that forwards, devices, and numbers; `columns` the target devices in
    the tables' order, and of each device the number by which routes to it are spread. `ends` are
    sources and targets of the links, `rates` their bandwidths and latencies; `entering` and
    `leaving` list each node's links as (offsets, link numbers), the leaving ones in order of target
    and number. `scratch` is one array a node (level, order, width, seconds, span) and one a link
    (equals): kernels make none.
    """
    bandwidth, latency, hops, next_link = tables
    first_forwarding, num_devices, num_numbers = counts
    level, order, equals, width, seconds, span = scratch
    for column in range(len(next_link)):
        target = columns[0][column]
        num_seen = _search_levels(
            target, num_devices, first_forwarding, ends[0], rates[0], entering, level, width, order
        )
        seconds[target] = 0.0
        span[target] = 1
        for place in range(1, num_seen):
            node = order[place]
            num_equal, stride = _find_equals(
                node, target, first_forwarding, ends[1], rates[0], leaving,
                level, width, span, equals,
            )  # fmt: skip
            # Each choice along a route uses other digits of the target's number (`stride`), or a
            # fat tree would use only a few of its cores; the next digit is added, or targets
            # that share a residue (one rail's) would share one way.
            if stride >= num_numbers:
                stride = 1
            number = columns[1][target] // stride
            link = equals[(number + number // num_equal) % num_equal]
            next_link[column, node] = link
            span[node] = stride * num_equal
            seconds[node] = rates[1][link] + seconds[ends[1][link]]
            if node < num_devices:
                bandwidth[node, column] = width[node]
                latency[node, column] = seconds[node]
                hops[node, column] = level[node]


@inlined
def _search_levels(
    target: int,
    num_devices: int,
    first_forwarding: int,
    source: Array,
    rate: Array,
    entering: tuple[Array, Array],
    level: Array,
    width: Array,
    order: Array,
) -> int:
    """Search against the links, breadth first, until every device is seen; how many nodes were.

    Levels are settled in turn, so a node's widest route of fewest links is final with its level.
    """
    offset, entered = entering
    for node in range(len(level)):
        level[node] = -1
    level[target] = 0
    width[target] = inf
    order[0] = target
    num_seen, num_devices_seen, start, depth = 1, 1, 0, 0
    while start < num_seen and num_devices_seen < num_devices:
        stop = num_seen
        depth += 1
        for place in range(start, stop):
            node = order[place]
            if node < first_forwarding and node != target:
                continue
            for entry in range(offset[node], offset[node + 1]):
                link = entered[entry]
                before = source[link]
                reach = min(rate[link], width[node])
                if level[before] < 0:
                    level[before] = depth
                    width[before] = reach
                    order[num_seen] = before
                    num_seen += 1
                    num_devices_seen += int(before < num_devices)
                elif level[before] == depth and reach > width[before]:
                    width[before] = reach
        start = stop
    return num_seen


@inlined
def _find_equals(
    node: int,
    target: int,
    first_forwarding: int,
    target_of: Array,
    rate: Array,
    leaving: tuple[Array, Array],
    level: Array,
    width: Array,
    span: Array,
    equals: Array,
) -> tuple[int, int]:
    """List the links that start a best route; their number, and the digits used after them."""
    offset, left = leaving
    begin, end = offset[node], offset[node + 1]
    is_next = level[node] == 1
    if is_next:
        # Only links straight to the target count: find them by bisection, or a fully connected
        # network would cost the cube of its devices.
        high = end
        while begin < high:
            middle = (begin + high) // 2
            if target_of[left[middle]] < target:
                begin = middle + 1
            else:
                high = middle
    num_equal, stride = 0, 1
    for entry in range(begin, end):
        link = left[entry]
        after = target_of[link]
        if is_next and after != target:
            break
        if level[after] != level[node] - 1 or (after < first_forwarding and after != target):
            continue
        if min(rate[link], width[after]) == width[node]:
            equals[num_equal] = link
            num_equal += 1
            stride = max(stride, span[after])
    return num_equal, stride
