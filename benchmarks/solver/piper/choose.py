"""The fastest ways of a stage's nodes that fit the memory: one stage's knapsack, with its answer.

Exact, by lists of choices of which none is both slower and larger than another. Knows nothing of
other stages.
"""

from collections.abc import Sequence, Set
from itertools import accumulate

import numpy as np

from meshwright.array import Floats
from solver.piper.problem import Problem, Stage, Way

_ROUNDING = 1e-9


def choose_ways(
    problem: Problem,
    nodes: Sequence[int],
    num_replicas: int,
    width: int,
    in_flight: int,
    limit: float,
) -> Stage:
    """A stage in its fastest ways; there must be some that take at most `limit` seconds."""
    ways = [problem.nodes[node].ways[width] for node in nodes]
    inside = frozenset(nodes)
    seconds = [
        np.array([_way_seconds(problem, way, inside, num_replicas) for way in each])
        for each in ways
    ]
    held = [
        np.array([way.flight_bytes * in_flight + way.fixed_bytes for way in each]) for each in ways
    ]
    chosen = cheapest_choice(seconds, held, problem.resources.memory_bytes, limit)
    return Stage(
        nodes=tuple(nodes),
        num_replicas=num_replicas,
        width=width,
        ways=tuple(each[number] for each, number in zip(ways, chosen, strict=True)),
    )


def _way_seconds(problem: Problem, way: Way, inside: Set[int], num_replicas: int) -> float:
    """A node's part of its stage's seconds."""
    resources = problem.resources
    moved = 0.0
    for number, sync_bytes in way.sync_bytes.items():
        edge = problem.edges[number]
        if edge.source not in inside or edge.target not in inside:
            moved += 2 * (edge.num_bytes + sync_bytes)
    agreed = 4 * (num_replicas - 1) * way.parameter_bytes / resources.num_microbatches
    return (way.seconds + (moved + agreed) / resources.bytes_per_second) / num_replicas


def cheapest_choice(
    seconds: Sequence[Floats], held: Sequence[Floats], memory: float, limit: float
) -> list[int]:
    """One item of each class: the least seconds within the memory, which must be within `limit`."""
    price = _find_price(seconds, held, memory)
    most = (limit + price * memory) * (1 + _ROUNDING)
    rest_held = _rests(held)
    rest_priced = _rests([s + price * h for s, h in zip(seconds, held, strict=True)])
    sums = np.zeros((2, 1))
    steps = []
    for number, (own_seconds, own_held) in enumerate(zip(seconds, held, strict=True)):
        new_seconds = (sums[0][:, None] + own_seconds).ravel()
        new_held = (sums[1][:, None] + own_held).ravel()
        priced = new_seconds + price * new_held + rest_priced[number + 1]
        # Of each class the least is known: what cannot end within the limits is dropped.
        kept = np.flatnonzero((new_held + rest_held[number + 1] <= memory) & (priced <= most))
        kept = kept[np.lexsort((new_held[kept], new_seconds[kept]))]
        least_before = np.minimum.accumulate(new_held[kept])
        is_best = np.ones(len(kept), dtype=np.bool_)
        is_best[1:] = new_held[kept][1:] < least_before[:-1]
        kept = kept[is_best]
        assert len(kept), "the stage must fit"
        sums = np.array([new_seconds[kept], new_held[kept]])
        steps.append((kept // len(own_seconds), kept % len(own_seconds)))
    at, chosen = 0, []
    for parent, item in reversed(steps):
        chosen.append(int(item[at]))
        at = int(parent[at])
    return chosen[::-1]


def _rests(values: Sequence[Floats]) -> list[float]:
    """What the classes from each on take at least; 0 after the last."""
    return [*accumulate((float(each.min()) for each in reversed(values)), initial=0.0)][::-1]


def _find_price(seconds: Sequence[Floats], held: Sequence[Floats], memory: float) -> float:
    """Seconds a byte: where the cheapest choice at a price begins to fit the memory."""
    slopes = [
        (s[i] - s[j]) / (h[j] - h[i])
        for s, h in zip(seconds, held, strict=True)
        for i in range(len(s))
        for j in range(len(s))
        if h[i] < h[j] and s[i] > s[j]
    ]
    prices = [0.0, *sorted(slopes)]
    low, high = 0, len(prices) - 1
    while low < high:  # the bytes of the cheapest choice fall as the price rises
        middle = (low + high) // 2
        if _priced_bytes(seconds, held, prices[middle]) <= memory:
            high = middle
        else:
            low = middle + 1
    return float(prices[low])


def _priced_bytes(seconds: Sequence[Floats], held: Sequence[Floats], price: float) -> float:
    pairs = zip(seconds, held, strict=True)
    return sum(float(h[np.lexsort((h, s + price * h))[0]]) for s, h in pairs)
