"""Numbers the strongly connected components of a relation in a topological order."""

from collections.abc import Iterable


def number_components(count: int, pairs: Iterable[tuple[int, int]]) -> list[int]:
    """The component of each of 0, 1, ...; pairs lead from a component to itself or to a later one.

    Tarjan's depth-first search, with a stack of its own because graphs are deeper than Python's.
    Components come out last first.
    """
    after: list[list[int]] = [[] for _ in range(count)]
    for u, v in pairs:
        after[u].append(v)
    found, low = [-1] * count, [0] * count
    component = [-1] * count
    open_nodes: list[int] = []
    clock = closed = 0
    for root in range(count - 1, -1, -1):  # components come out reversed: small numbers stay small
        if found[root] >= 0:
            continue
        work = [(root, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                found[node] = low[node] = clock
                clock += 1
                open_nodes.append(node)
            elif component[after[node][at - 1]] < 0:
                low[node] = min(low[node], low[after[node][at - 1]])
            while at < len(after[node]):
                other = after[node][at]
                at += 1
                if found[other] < 0:
                    work += [(node, at), (other, 0)]
                    break
                if component[other] < 0:
                    low[node] = min(low[node], found[other])
            else:
                if low[node] == found[node]:
                    while component[node] < 0:
                        component[open_nodes.pop()] = closed
                    closed += 1
    return [closed - 1 - each for each in component]
