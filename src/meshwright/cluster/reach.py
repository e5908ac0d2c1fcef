"""Whether every device reaches every other. Works on node numbers; devices come first.

Searching from each device would cost devices x links. Instead the forwarding nodes are gathered
into strongly connected components, and each component gets the set of devices below it once, as
the bits of one integer.
"""

from collections.abc import Sequence


def unreachable_pair(
    num_devices: int,
    num_nodes: int,
    sources: Sequence[int],
    targets: Sequence[int],
    devices_relay: bool,
) -> tuple[int, int] | None:
    """The first pair of devices (source, target) without a route, or None."""
    following: list[list[int]] = [[] for _ in range(num_nodes)]
    for source, target in zip(sources, targets, strict=True):
        following[source].append(target)
    first_forwarding = 0 if devices_relay else num_devices
    reached = _devices_reached(num_devices, first_forwarding, following)
    everyone = (1 << num_devices) - 1
    for device in range(num_devices):
        missing = everyone & ~(_one_step(device, num_devices, following, reached) | 1 << device)
        if missing:
            return device, (missing & -missing).bit_length() - 1
    return None


def _one_step(
    node: int, num_devices: int, following: list[list[int]], reached: dict[int, int]
) -> int:
    """The devices that a node reaches, given what the forwarding nodes after it reach."""
    bits = 0
    for each in set(following[node]):
        if each < num_devices:
            bits |= 1 << each
        bits |= reached.get(each, 0)
    return bits


def _devices_reached(
    num_devices: int, first_forwarding: int, following: list[list[int]]
) -> dict[int, int]:
    """For each forwarding node the devices it reaches, as bits. Components come out sinks first."""
    reached: dict[int, int] = {}
    for component in _components(first_forwarding, following):
        bits = 0
        for node in component:
            bits |= _one_step(node, num_devices, following, reached)
        for node in component:
            reached[node] = bits
    return reached


def _components(first: int, following: list[list[int]]) -> list[list[int]]:
    """Strongly connected components of the nodes from `first` on, sinks first (Tarjan 1972).

    With an explicit stack: a long chain of switches must not exhaust Python's.
    """
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    closed: set[int] = set()
    open_nodes: list[int] = []
    found: list[list[int]] = []
    for root in range(first, len(following)):
        if root in order:
            continue
        work = [(root, 0)]
        while work:
            node, position = work.pop()
            if node not in order:
                order[node] = low[node] = len(order)
                open_nodes.append(node)
            for place in range(position, len(following[node])):
                each = following[node][place]
                if each < first or each in closed:
                    continue
                if each not in order:
                    work.append((node, place))  # come back to this link for its `low`
                    work.append((each, 0))
                    break
                low[node] = min(low[node], low[each])
            else:
                if low[node] == order[node]:
                    found.append(_close(node, open_nodes, closed))
    return found


def _close(node: int, open_nodes: list[int], closed: set[int]) -> list[int]:
    """Take the component that ends in `node` off the stack."""
    start = len(open_nodes) - 1
    while open_nodes[start] != node:
        start -= 1
    component = open_nodes[start:]
    del open_nodes[start:]
    closed.update(component)
    return component
