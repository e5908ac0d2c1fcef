"""The compiled walk along an exchange's routes. Works on plain arrays; see `rounds_exchange`."""

from typing import Any

from meshwright.compiled import compiled


@compiled
def count_routes(
    sources: Any, targets: Any, routes: tuple[Any, Any], nodes: tuple[Any, Any, Any], counts: Any
) -> None:
    """Add to each link's count the pairs of a source and a target whose route crosses it.

    `routes` are the next link (place of the target x node) and each link's target. All routes to
    one target form a tree, so each of its links is visited once, from the leaves on: an inner node
    waits until all nodes below it have handed on how many routes they carry. `nodes` are three
    arrays over nodes to work in, zero before and after: whether a node waits, the nodes below it
    that have not handed on, and the routes it carries.
    """
    next_link, link_targets = routes
    is_waiting, num_below, num_routes = nodes
    for column in range(len(targets)):
        target = targets[column]
        for source in sources:
            num_routes[source] = 1
            node = source
            while node != target and not is_waiting[node]:
                is_waiting[node] = True
                node = link_targets[next_link[column, node]]
                num_below[node] += 1
        for source in sources:
            node = source
            while node != target and is_waiting[node] and num_below[node] == 0:
                is_waiting[node] = False
                link = next_link[column, node]
                counts[link] += num_routes[node]
                above = link_targets[link]
                num_routes[above] += num_routes[node]
                num_below[above] -= 1
                num_routes[node] = 0
                node = above
        num_routes[target] = 0
