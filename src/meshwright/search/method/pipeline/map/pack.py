"""Proven lower bounds of mappings: what places need on devices, and what must not cross slow links.

At a target, a wire or a ring that cannot be afforded over the links between components (devices
joined by faster links) keeps its places within one. Places that are kept together by several such
rules form clusters, and the clusters must fit into the components by their sizes.
"""

from collections.abc import Iterable, Iterator

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.kernel.root import join_pairs
from meshwright.search.method.pipeline.map.problem import MappingProblem

_STEPS = 40
"""How many steps the bisection of targets takes."""
_MOST_DIVISIONS = 64
"""How many divisions into components are looked at, at most."""


def pack_bound(problem: MappingProblem, bound: float, value: float) -> float:
    """The highest target, between a bound and a value, that clusters prove to be too low."""
    base = _least_seconds(problem)
    for slow, sizes in _divisions(problem):
        if bound < value and _is_too_low(problem, base, slow, sizes, bound * (1 + 1e-9)):
            low, high = bound, value
            for _ in range(_STEPS):
                middle = (low + high) / 2
                if _is_too_low(problem, base, slow, sizes, middle):
                    low = middle
                else:
                    high = middle
            bound = low
    return bound


def _least_seconds(problem: MappingProblem) -> Floats:
    """Of each place: compute on its fastest device, all of its links as fast as the fastest."""
    off = ~np.eye(problem.num_devices, dtype=bool)
    fastest = float(problem.seconds_per_byte[off].min()) if problem.num_devices > 1 else 0.0
    start, _, wire = problem.wires
    sums = np.concatenate(([0.0], np.cumsum(wire)))
    slot = problem.slot_of_place
    total: Floats = problem.compute.min(axis=1)[slot] + fastest * (
        sums[start[1:]] - sums[start[:-1]] + problem.ring_bytes[slot]
    )
    return total


def spanning_links(problem: MappingProblem) -> list[tuple[float, int, int]]:
    """Slowness and ends of a spanning tree of the fastest links (Prim), the fastest first.

    Components that links of at least some bandwidth join change only at these.
    """
    count = problem.num_devices
    slowness = np.minimum(problem.seconds_per_byte, problem.seconds_per_byte.T)
    nearest = slowness[0].copy()
    parent = np.zeros(count, np.int64)
    is_in = np.zeros(count, bool)
    is_in[0] = True
    links = []
    for _ in range(count - 1):
        new = int(np.argmin(np.where(is_in, np.inf, nearest)))
        links.append((float(nearest[new]), int(parent[new]), new))
        is_in[new] = True
        closer = slowness[new] < nearest
        nearest[closer], parent[closer] = slowness[new][closer], new
    return sorted(links)


def join_links(count: int, links: Iterable[tuple[float, int, int]]) -> Ints:
    """The component of each device when these links join them."""
    labels = np.arange(count)
    for _, one, other in links:
        labels[labels == labels[one]] = labels[other]
    return np.unique(labels, return_inverse=True)[1].astype(np.int32)


def _divisions(problem: MappingProblem) -> Iterator[tuple[float, Ints]]:
    """What the fastest link between components takes more than the fastest of all, and sizes."""
    links = spanning_links(problem)
    if not links:
        return
    levels = np.unique([each[0] for each in links])[-_MOST_DIVISIONS:]  # the slowest tell most
    for level in levels.tolist():
        labels = join_links(problem.num_devices, (each for each in links if each[0] < level))
        yield level - links[0][0], np.bincount(labels).astype(np.int32)


def _is_too_low(
    problem: MappingProblem, base: Floats, slow: float, sizes: Ints, target: float
) -> bool:
    """Whether the clusters of a target cannot be divided among the components."""
    start, partner, wire = problem.wires
    owner = np.repeat(np.arange(problem.num_places), np.diff(start))
    is_kept = base[owner] + wire * slow > target
    pairs = [(owner[is_kept], partner[is_kept])]
    slot = problem.slot_of_place
    keeps_ring = base + problem.ring_bytes[slot] * slow > target
    first = problem.first_place[slot]
    pairs.append((np.flatnonzero(keeps_ring), first[keeps_ring]))
    one, other = (np.concatenate(each) for each in zip(*pairs, strict=True))
    labels = np.arange(problem.num_places, dtype=np.int32)
    join_pairs(labels, one.astype(np.int32), other.astype(np.int32))
    clusters = np.sort(np.bincount(labels))[::-1]
    clusters = clusters[clusters > 0]
    ranks = enumerate(clusters.tolist(), start=1)
    return any(rank > (sizes // size).sum() for rank, size in ranks)


def place_floors(problem: MappingProblem) -> Floats:
    """Slot x device: no replica of the slot on that device makes the slot faster than this.

    The device's fastest links serve the slot's largest wires and its two links of the ring,
    whatever the other devices get.
    """
    floors = problem.compute.copy()
    fastest = fastest_links(problem)
    start, _, wire = problem.wires
    for slot in range(problem.num_slots):
        ring = float(problem.ring_bytes[slot])
        replicas = int(problem.replicas_of_slot[slot])
        used = 0 if ring == 0 or replicas < 2 else min(2, replicas - 1)
        least = np.full(problem.num_devices, np.inf)
        for place in range(int(problem.first_place[slot]), int(problem.first_place[slot + 1])):
            wires = wire[start[place] : start[place + 1]]
            least = np.minimum(least, _least_links(fastest, wires, used, ring))
        floors[slot] += least
    return floors


def fastest_links(problem: MappingProblem) -> Floats:
    """Of each device the slowness of its links, the fastest first; the last is infinite."""
    slowness = np.minimum(problem.seconds_per_byte, problem.seconds_per_byte.T)
    return np.sort(slowness + np.diag(np.full(len(slowness), np.inf)), axis=1)


def _least_links(fastest: Floats, wires: Floats, used: int, ring_bytes: float) -> Floats:
    """Of each device: wires on the fastest links that the ring leaves, plus the ring.

    The ring's slower link is some rank j; its other one, if any, may as well be rank j - 1.
    """
    count = len(wires)
    if count + used > fastest.shape[1] - 1:
        return np.full(len(fastest), np.inf)
    if not used:
        return fastest[:, :count] @ wires
    best = np.full(len(fastest), np.inf)
    for rank in range(used - 1, count + used):
        kept = [j for j in range(count + used) if not rank - used < j <= rank]
        total = ring_bytes * fastest[:, rank] + fastest[:, kept] @ wires
        best = np.minimum(best, total)
    return best
