"""Orders a set of devices for rings and trees so that neighbours are near each other.

Knows pairs only: what a ring's transfers do to shared links is priced elsewhere. A host's devices
stand together, always, so that a ring enters and leaves a host once.
"""

from collections.abc import Iterator, Mapping
from itertools import permutations

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.hanging import Hangings

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
    known: dict[bytes, Longs] = {}  # hosts that look alike are ordered once
    blocks = []
    for members, costs in zip(by_host.values(), _costs_within(cluster, by_host), strict=True):
        key = costs.tobytes()
        if key not in known:
            known[key] = _shortest_cycle(costs, is_open=len(by_host) > 1)
        blocks.append(tuple(members[place] for place in known[key]))
    if len(blocks) == 1:
        return tuple(blocks)
    cycle = _cycle_between(cluster, blocks)
    return tuple(blocks[place] for place in cycle)


def _cycle_between(cluster: Cluster, blocks: list[tuple[int, ...]]) -> Longs:
    """The cycle over hosts, each of which is entered by its first device and left by its last."""
    sources, targets = np.array([b[-1] for b in blocks]), np.array([b[0] for b in blocks])
    hangings = None if cluster.has_tables else cluster.hangings
    if hangings is None:
        return _shortest_cycle(_pair_costs(*cluster.pair_table(sources, targets)))
    if len(blocks) <= _LOCAL_SEARCH_DEVICES:
        costs = _costs_by_kind(cluster, hangings, sources, targets)
        np.fill_diagonal(costs, costs[0, -1])
        return _shortest_cycle(costs)
    ends = [each[of] for of in (sources, targets) for each in (hangings.kind, hangings.anchor)]
    classes = np.unique(np.column_stack(ends), axis=0, return_inverse=True)[1].ravel()
    order = np.argsort(classes, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(classes[order])) + 1)
    first, last = (np.array([each[place] for each in members]) for place in (0, -1))
    costs = _costs_by_kind(cluster, hangings, sources[first], targets[last])
    return _greedy_cycle_of_classes(costs, classes, members)


def _costs_by_kind(cluster: Cluster, hangings: Hangings, sources: Longs, targets: Longs) -> Floats:
    """What pairs cost, by one of each sort; where source and target share a host, anything."""
    sort = hangings.kind[sources][:, None] * (hangings.kind.max() + 1) + hangings.kind[targets]
    sort = 2 * sort + (hangings.anchor[sources][:, None] == hangings.anchor[targets])
    is_apart = cluster.host_of[sources][:, None] != cluster.host_of[targets]
    sort[~is_apart] = sort[is_apart][0]
    rows, columns = np.nonzero(is_apart)
    sorts, example = np.unique(sort[is_apart], return_index=True)
    routes = cluster.routes_between(sources[rows[example]], targets[columns[example]])
    costs: Floats = _pair_cost(routes.bandwidth, routes.latency)[np.searchsorted(sorts, sort)]
    return costs


def _costs_within(cluster: Cluster, by_host: Mapping[str, list[int]]) -> Iterator[Floats]:
    """What the pairs of each host cost, in the order of hosts."""
    sources = [np.repeat(members, len(members)) for members in by_host.values()]
    targets = [np.tile(members, len(members)) for members in by_host.values()]
    routes = cluster.routes_between(np.concatenate(sources), np.concatenate(targets))
    end = 0
    for members in by_host.values():
        count, start, end = len(members), end, end + len(members) ** 2
        bandwidth, latency = routes.bandwidth[start:end], routes.latency[start:end]
        yield _pair_costs(bandwidth.reshape(count, count), latency.reshape(count, count))


def _pair_cost(bandwidth: Floats, latency: Floats) -> Floats:
    """Dear pairs are narrow ones, then slow ones: seconds a byte plus latency over 4 GiB.

    The latency only breaks ties between equal bandwidths, hence the large message.
    """
    costs: Floats = 1 / bandwidth + latency / 2.0**32
    return costs


def _pair_costs(bandwidth: Floats, latency: Floats) -> Floats:
    """The same of a square of pairs."""
    costs = _pair_cost(bandwidth, latency)
    np.fill_diagonal(costs, costs[0, -1])  # never used; so that equal pairs make an even matrix
    return costs


def _shortest_cycle(costs: Floats, is_open: bool = False) -> Longs:
    """A cycle with a small dearest pair, then a small sum; open: cut at its dearest pair."""
    count = len(costs)
    if count <= 2 or costs.min() == costs.max():
        return np.arange(count)
    if count <= _EXACT_DEVICES:
        tails = np.array(list(permutations(range(1, count))))
        cycles = np.concatenate([np.zeros((len(tails), 1), dtype=np.int64), tails], axis=1)
        cycle: Longs = cycles[_best_cycle(costs, cycles)]
    else:
        cycle = _greedy_cycle(costs)
        if count <= _LOCAL_SEARCH_DEVICES:
            cycle = _reverse_segments(costs, cycle)
    if is_open:
        dearest = int(np.argmax(costs[cycle, np.roll(cycle, -1)]))
        cycle = np.roll(cycle, -dearest - 1)
    return cycle


def _best_cycle(costs: Floats, cycles: Longs) -> int:
    """The row with the least (dearest pair, sum), the first of equals."""
    steps = costs[cycles, np.roll(cycles, -1, axis=1)]
    dearest = steps.max(axis=1)
    sums = np.where(dearest == dearest.min(), steps.sum(axis=1), np.inf)
    return int(np.argmin(sums))


def _greedy_cycle(costs: Floats) -> Longs:
    """From the first place on, always to the nearest one not yet visited."""
    left = np.ones(len(costs), dtype=np.bool_)
    cycle = np.zeros(len(costs), dtype=np.int64)
    left[0] = False
    for place in range(1, len(costs)):
        cycle[place] = np.argmin(np.where(left, costs[cycle[place - 1]], np.inf))
        left[cycle[place]] = False
    return cycle


def _greedy_cycle_of_classes(costs: Floats, classes: Longs, members: list[Longs]) -> Longs:
    """The same where places of one class cost the same: `costs` are those of pairs of classes."""
    nearest = np.array([each[0] for each in members])  # of each class, the first place left
    num_used = np.zeros(len(members), dtype=np.int64)
    cycle = np.zeros(len(classes), dtype=np.int64)
    for place in range(len(classes)):
        if place:
            row = costs[classes[cycle[place - 1]]]
            cycle[place] = nearest[row == row.min()].min()
        used = classes[cycle[place]]
        num_used[used] += 1
        if num_used[used] < len(members[used]):
            nearest[used] = members[used][num_used[used]]
        else:
            costs[:, used] = np.inf
    return cycle


def _reverse_segments(costs: Floats, cycle: Longs) -> Longs:
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
