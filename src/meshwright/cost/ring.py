"""Orders a set of devices for rings and trees so that neighbours are near each other.

Knows pairs only: what a ring's transfers do to shared links is priced elsewhere. A host's devices
stand together, always, so that a ring enters and leaves a host once.
"""

from itertools import permutations

import numpy as np
import numpy.typing as npt

from meshwright.cluster.cluster import Cluster

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_EXACT_DEVICES = 8
"""Up to so many, every cycle is tried: 7! = 5,040 of them, under 5 ms."""
_LOCAL_SEARCH_DEVICES = 48
"""Up to so many, 2-opt follows the greedy walk: 1,128 reversals a pass, under 10 ms in all."""


def order_hosts(cluster: Cluster, devices: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """The devices by host: hosts in the order of the ring, devices in their order within it.

    The answer depends on the set of devices only, not on the order they are given in.
    """
    by_host: dict[str, list[int]] = {}
    for device in sorted(devices):
        by_host.setdefault(cluster.devices[device].host, []).append(device)
    known: dict[bytes, Ints] = {}  # hosts that look alike are ordered once
    blocks = []
    for members in by_host.values():
        if len(members) == 1:
            blocks.append(tuple(members))
            continue
        costs = _pair_costs(cluster, members, members)
        key = costs.tobytes()
        if key not in known:
            known[key] = _shortest_cycle(costs, is_open=len(by_host) > 1)
        blocks.append(tuple(members[place] for place in known[key]))
    if len(blocks) == 1:
        return tuple(blocks)
    between = _pair_costs(cluster, [b[-1] for b in blocks], [b[0] for b in blocks])
    return tuple(blocks[place] for place in _shortest_cycle(between))


def _pair_costs(cluster: Cluster, sources: list[int], targets: list[int]) -> Floats:
    """Dear pairs are narrow ones, then slow ones: seconds a byte plus latency over 4 GiB.

    The latency only breaks ties between equal bandwidths, hence the large message.
    """
    # Rows before columns: twice as fast as both at once.
    costs: Floats = 1 / cluster.bandwidth.take(sources, axis=0).take(targets, axis=1)
    costs += cluster.latency.take(sources, axis=0).take(targets, axis=1) / 2.0**32
    np.fill_diagonal(costs, costs[0, -1])  # never used; so that equal pairs make an even matrix
    return costs


def _shortest_cycle(costs: Floats, is_open: bool = False) -> Ints:
    """A cycle with a small dearest pair, then a small sum; open: cut at its dearest pair."""
    count = len(costs)
    if count <= 2 or costs.min() == costs.max():
        return np.arange(count)
    if count <= _EXACT_DEVICES:
        tails = np.array(list(permutations(range(1, count))))
        cycles = np.concatenate([np.zeros((len(tails), 1), dtype=np.int64), tails], axis=1)
        cycle: Ints = cycles[_best_cycle(costs, cycles)]
    else:
        cycle = _greedy_cycle(costs)
        if count <= _LOCAL_SEARCH_DEVICES:
            cycle = _reverse_segments(costs, cycle)
    if is_open:
        dearest = int(np.argmax(costs[cycle, np.roll(cycle, -1)]))
        cycle = np.roll(cycle, -dearest - 1)
    return cycle


def _best_cycle(costs: Floats, cycles: Ints) -> int:
    """The row with the least (dearest pair, sum), the first of equals."""
    steps = costs[cycles, np.roll(cycles, -1, axis=1)]
    dearest = steps.max(axis=1)
    sums = np.where(dearest == dearest.min(), steps.sum(axis=1), np.inf)
    return int(np.argmin(sums))


def _greedy_cycle(costs: Floats) -> Ints:
    """From the first place on, always to the nearest one not yet visited."""
    left = np.ones(len(costs), dtype=np.bool_)
    cycle = np.zeros(len(costs), dtype=np.int64)
    left[0] = False
    for place in range(1, len(costs)):
        cycle[place] = np.argmin(np.where(left, costs[cycle[place - 1]], np.inf))
        left[cycle[place]] = False
    return cycle


def _reverse_segments(costs: Floats, cycle: Ints) -> Ints:
    """2-opt (Croes 1958): take the best reversal of a segment until none helps."""
    count = len(cycle)
    first, last = np.triu_indices(count, 1)
    place = np.arange(count)
    is_inside = (place >= first[:, None]) & (place <= last[:, None])
    moves = np.where(is_inside, (first + last)[:, None] - place, place)
    moves = np.concatenate([place[None, :], moves])  # row 0: stay
    for _ in range(count):
        best = _best_cycle(costs, cycle[moves])
        if best == 0:
            break
        cycle = cycle[moves[best]]
    return cycle
