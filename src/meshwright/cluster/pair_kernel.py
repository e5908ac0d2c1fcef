"""The compiled search for routes of single pairs. Works on plain arrays; see `pair`.

Both ends are searched at once, breadth first, until the two searches meet, so that a pair costs
what lies around its ends and not the whole network. Levels, widths and choices are counted towards
the target as in `meshwright.cluster.route_kernel`, hence the same route comes out.
"""

from math import inf

from meshwright.compiled import Array, Int, compiled, inlined


@compiled
def find_pair_routes(
    first_forwarding: Int,
    num_devices: Int,
    links: tuple[Array, Array, Array, Array],
    entering: tuple[Array, Array],
    leaving: tuple[Array, Array],
    pairs: tuple[Array, Array],
    begin: Int,
    found: tuple[Array, Array, Array, Array],
    scratch: tuple[Array, Array, Array, Array, Array, Array, Array, Array],
) -> Int:
    """Fill bandwidth, latency, where routes start, and their links, from pair `begin` on.

    `links` are sources, targets, bandwidths and latencies. Gives the pair at which the array of
    links was full, or the number of pairs. `scratch` is one array a node each: the pair for which
    a node was last seen from the source and from the target (-1 before the first), its links from
    the source and to the target, nodes in the order seen from both, width, and equals, which
    has two numbers a node.
    """
    bandwidth, latency, starts, routes = found
    for pair in range(begin, len(pairs[0])):
        source, target = pairs[0][pair], pairs[1][pair]
        start = starts[pair]
        if source == target:
            bandwidth[pair], latency[pair], starts[pair + 1] = inf, 0.0, start
            continue
        num_links = _meet(
            pair, source, target, first_forwarding, links, entering, leaving, scratch, num_devices
        )
        if start + num_links > len(routes):
            return pair
        _walk(
            pair, source, target, num_devices, links, leaving, scratch, routes, start
        )  # fmt: skip
        seconds = 0.0
        for place in range(start + num_links - 1, start - 1, -1):
            seconds = links[3][routes[place]] + seconds
        bandwidth[pair], latency[pair] = scratch[6][source], seconds
        starts[pair + 1] = start + num_links
    return len(pairs[0])


@inlined
def _meet(
    pair: Int, source: Int, target: Int, first_forwarding: Int, links: tuple[Array, ...],
    entering: tuple[Array, Array], leaving: tuple[Array, Array], scratch: tuple[Array, ...],
    num_devices: Int,
) -> Int:  # fmt: skip
    """Search from both ends; then widths and equals of all nodes that a best route may pass.

    Gives the links of the route.
    """
    seen, seen_back, depth, depth_back, order, order_back, width, equals = scratch
    seen[source], depth[source], order[0] = pair, 0, source
    seen_back[target], depth_back[target], order_back[0] = pair, 0, target
    width[target], equals[target, 0], equals[target, 1] = inf, 1, 1
    first, stop, first_back, stop_back = 0, 1, 0, 1
    hops, hops_back = 0, 0
    has_met = False
    work, work_back = _degree(leaving, source), _degree(entering, target)
    while not has_met:
        if work <= work_back:
            hops += 1
            work, num_seen = 0, stop
            for place in range(first, stop):
                node = order[place]
                for entry in range(leaving[0][node], leaving[0][node + 1]):
                    after = links[1][leaving[1][entry]]
                    if seen[after] == pair or (after < first_forwarding and after != target):
                        continue
                    seen[after], depth[after], order[num_seen] = pair, hops, after
                    num_seen += 1
                    work += _degree(leaving, after)
                    has_met = has_met or seen_back[after] == pair
            first, stop = stop, num_seen
        else:
            hops_back += 1
            work_back, num_seen = 0, stop_back
            for place in range(first_back, stop_back):
                node = order_back[place]
                for entry in range(entering[0][node], entering[0][node + 1]):
                    link = entering[1][entry]
                    before = links[0][link]
                    reach = min(links[2][link], width[node])
                    if seen_back[before] == pair:
                        if depth_back[before] == hops_back:
                            width[before] = max(width[before], reach)
                        continue
                    if before < first_forwarding and before != source:
                        continue
                    seen_back[before], depth_back[before] = pair, hops_back
                    width[before], order_back[num_seen] = reach, before
                    equals[before, 0], equals[before, 1] = 0, 1
                    num_seen += 1
                    work_back += _degree(entering, before)
                    has_met = has_met or seen[before] == pair
            first_back, stop_back = stop_back, num_seen
    _count_equals(pair, first_back, links, entering, scratch, num_devices)
    _measure_ahead(pair, first, hops + hops_back, links, leaving, scratch, num_devices)
    return hops + hops_back


@inlined
def _count_equals(
    pair: Int, num_nodes: Int, links: tuple[Array, ...], entering: tuple[Array, Array],
    scratch: tuple[Array, ...], num_devices: Int,
) -> None:  # fmt: skip
    """Equals of nodes seen from the target, whose widths are known; the last ones lead nowhere."""
    _, seen_back, _, depth_back, _, order_back, width, equals = scratch
    for place in range(num_nodes):
        node = order_back[place]
        for entry in range(entering[0][node], entering[0][node + 1]):
            link = entering[1][entry]
            before = links[0][link]
            if (
                seen_back[before] == pair
                and depth_back[before] == depth_back[node] + 1
                and min(links[2][link], width[node]) == width[before]
            ):
                equals[before, 0] += 1
                equals[before, 1] = max(equals[before, 1], _span(node, equals, num_devices))


@inlined
def _measure_ahead(
    pair: Int, num_nodes: Int, hops: Int, links: tuple[Array, ...], leaving: tuple[Array, Array],
    scratch: tuple[Array, ...], num_devices: Int,
) -> None:  # fmt: skip
    """Widths and equals of nodes seen from the source, backwards from where both searches met."""
    _, seen_back, depth, depth_back, order, _, width, equals = scratch
    for place in range(num_nodes - 1, -1, -1):
        node = order[place]
        left = hops - depth[node]
        width[node], equals[node, 0], equals[node, 1] = 0.0, 0, 1
        for entry in range(leaving[0][node], leaving[0][node + 1]):
            link = leaving[1][entry]
            after = links[1][link]
            if seen_back[after] != pair or depth_back[after] != left - 1:
                continue
            reach = min(links[2][link], width[after])
            if reach > width[node]:
                width[node], equals[node, 0], equals[node, 1] = reach, 0, 1
            if reach == width[node]:
                equals[node, 0] += 1
                equals[node, 1] = max(equals[node, 1], _span(after, equals, num_devices))
        if equals[node, 0] > 0:
            seen_back[node], depth_back[node] = pair, left


@inlined
def _degree(of_node: tuple[Array, Array], node: Int) -> Int:
    return of_node[0][node + 1] - of_node[0][node]


@inlined
def _span(node: Int, equals: Array, num_devices: Int) -> Int:
    """The digits of the target's number that a route has used from this node on."""
    stride = equals[node, 1]
    return equals[node, 0] * (stride if stride < num_devices else 1)


@inlined
def _walk(
    pair: Int, source: Int, target: Int, num_devices: Int, links: tuple[Array, ...],
    leaving: tuple[Array, Array], scratch: tuple[Array, ...], routes: Array, start: Int,
) -> None:  # fmt: skip
    """Write the links of the route, each chosen among its equals by the target's number."""
    seen_back, depth_back, width, equals = scratch[1], scratch[3], scratch[6], scratch[7]
    node = source
    while node != target:
        num_equal, stride = equals[node, 0], equals[node, 1]
        number = target // (stride if stride < num_devices else 1)
        choice = (number + number // num_equal) % num_equal
        for entry in range(leaving[0][node], leaving[0][node + 1]):
            link = leaving[1][entry]
            after = links[1][link]
            if (
                seen_back[after] == pair
                and depth_back[after] == depth_back[node] - 1
                and min(links[2][link], width[after]) == width[node]
            ):
                if choice == 0:
                    break
                choice -= 1
        routes[start] = link
        start += 1
        node = after
