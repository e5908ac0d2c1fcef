"""All placements of a step of few ops, with bounds on what each takes and lacks in any order.

Works on many placements at once, one column each. Knows nothing of orders.

Bounds are times without sharing, which hold under sharing "fair", too: a transfer takes its latency
and then at most the rate that it has alone; and with the order of every device fixed, a start is
the latest of some finishes, so that nothing gets earlier when a transfer takes longer.
"""

import itertools
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from meshwright.array import Bools, Floats, Ints
from meshwright.cost.compute import host_seconds, launch_shares
from meshwright.cost.memory import usable_bytes
from meshwright.graph.fuse import is_replayed_alone
from meshwright.search.clock import Clock
from meshwright.search.instance import Instance
from meshwright.search.judge import MEMORY_TOLERANCE

Rows = npt.NDArray[np.int16]

_COLUMNS = 2**14
"""Placements at once: columns of this length stay in the cache."""
_INSTANT = 1e-12
"""An op that takes no longer than this part of the longest op may end at the moment at which it
starts."""


def list_placements(
    instance: Instance, sharing: str, seconds: float, clock: Clock
) -> tuple[Rows, Floats, bool]:
    """Placements that may be faster than `seconds`: devices of ops, by bounds; whether all are in.

    Bounds are bytes that lack and seconds. With finite `seconds` what lacks memory is left out.
    """
    kept_rows, kept_bounds = [], []
    is_whole = True
    needs = _bytes_of_ops(instance)
    for device in _every_placement(instance, sharing):
        taken = _seconds_bound(instance, sharing, device)
        bounds = np.stack((_lack_bound(instance, needs, device), taken))
        is_kept = bounds[1] < seconds
        if seconds < np.inf:
            is_kept &= bounds[0] <= 0
        kept_rows.append(device.T[is_kept])
        kept_bounds.append(bounds.T[is_kept])
        if clock.is_over:
            is_whole = False
            break
    rows, found = np.concatenate(kept_rows), np.concatenate(kept_bounds)
    order = np.lexsort((found[:, 1], found[:, 0]))
    return rows[order], found[order], is_whole


def _every_placement(instance: Instance, sharing: str) -> Iterator[Rows]:
    """Devices of ops, one placement a column; of those that differ by the names of devices that are
    alike, the one that uses these in the order of their numbers."""
    num_devices, num_units = instance.num_devices, instance.num_units
    twins = list(_find_twins(instance, sharing))
    weights = num_devices ** np.arange(num_units - 1, -1, -1, dtype=np.int64)
    for first in range(0, num_devices**num_units, _COLUMNS):
        numbers = np.arange(first, min(first + _COLUMNS, num_devices**num_units))
        units = (numbers // weights[:, None] % num_devices).astype(np.int16)
        is_first = np.ones(len(numbers), dtype=np.bool_)
        for pair in twins:
            uses = [units == device for device in pair]
            one, other = (np.where(e.any(axis=0), e.argmax(axis=0), num_units) for e in uses)
            is_first &= one <= other
        yield units[:, is_first][instance.unit_of]


def _find_twins(instance: Instance, sharing: str) -> Iterator[tuple[int, int]]:
    """Pairs of devices that can change places: each with the last one before it that it can."""
    for other in range(instance.num_devices):
        for one in range(other - 1, -1, -1):
            if _are_alike(instance, sharing, one, other):
                yield one, other
                break


def _are_alike(instance: Instance, sharing: str, one: int, other: int) -> bool:
    """Whether nothing changes when all ops of two devices change places."""
    cluster, number = instance.cluster, np.arange(instance.num_devices, dtype=np.int32)
    swapped = number.copy()
    swapped[[one, other]] = other, one
    values = cluster.type_of, cluster.memory_bytes
    tables = instance.latency, instance.bandwidth
    if not all(each[one] == each[other] for each in values):
        return False
    if not all(np.array_equal(each, each[np.ix_(swapped, swapped)]) for each in tables):
        return False
    return sharing == "none" or _shared_links(instance, number) == _shared_links(instance, swapped)


def _shared_links(instance: Instance, number: Ints) -> list[tuple[float, list[tuple[int, int]]]]:
    """The rate of every link in use and the pairs of devices that use it, sorted, where devices
    have these numbers."""
    pairs_on: dict[int, list[tuple[int, int]]] = {}
    for source, target in itertools.product(range(instance.num_devices), repeat=2):
        for link in instance.cluster.routing.links(source, target).tolist():
            pairs_on.setdefault(link, []).append((int(number[source]), int(number[target])))
    rate = instance.cluster.link_bytes_per_second
    return sorted((float(rate[link]), sorted(pairs)) for link, pairs in pairs_on.items())


def _seconds_bound(instance: Instance, sharing: str, device: Rows) -> Floats:
    """The longest path with its transfers, and the work of a device, or of the host that launches
    it, between what must come before and after it; where transfers share links, also what one
    device sends to another."""
    own = instance.seconds[np.arange(instance.num_ops)[:, None], instance.type_of[device]]
    head, tail = np.zeros(own.shape), np.zeros(own.shape)
    readers = np.repeat(np.arange(instance.num_ops), np.diff(instance.in_start))
    edges = [
        (source, reader, instance.latency[pair] + size / instance.bandwidth[pair])
        for (source, size), reader in zip(instance.in_edges.tolist(), readers.tolist(), strict=True)
        if size >= 0
        for pair in [(device[source], device[reader])]
    ]
    for source, reader, moved in edges:
        np.maximum(head[reader], head[source] + own[source] + moved, out=head[reader])
    for source, reader, moved in reversed(edges):
        np.maximum(tail[source], moved + own[reader] + tail[reader], out=tail[source])
    longest: Floats = (head + own + tail).max(axis=0)
    shares, is_replayed = launch_shares(instance.cluster), is_replayed_alone(instance.graph)
    for d in range(instance.num_devices):
        here = device == d
        load = np.where(here, own, 0.0).sum(axis=0)
        first = np.where(here, head, np.inf).min(axis=0)
        last = np.where(here, tail, np.inf).min(axis=0)
        np.maximum(longest, np.where(load > 0, first + load + last, 0.0), out=longest)
        share = shares[instance.type_of[d]]
        if share > 0:
            launched = host_seconds(instance.graph) @ here
            launched[here.all(axis=0) & is_replayed] = 0.0
            np.maximum(longest, share * launched, out=longest)
    if sharing == "fair":
        np.maximum(longest, _queue_bound(instance, device, head + own, own + tail), out=longest)
    return longest


def _queue_bound(instance: Instance, device: Rows, ready: Floats, after: Floats) -> Floats:
    """What one device sends to another takes as long as if it went one after the other: it begins
    when the first tensor is `ready` and then at least one reader is left, which with what comes
    `after` it takes at least so long."""
    graph, longest = instance.graph, np.zeros(device.shape[1])
    for here, there in itertools.permutations(range(instance.num_devices), 2):
        queued = np.zeros(device.shape[1])
        first, last = np.full(device.shape[1], np.inf), np.full(device.shape[1], np.inf)
        for tensor, source in enumerate(graph.tensor_source.tolist()):
            readers = graph.readers[tensor]
            reads = (device[readers] == there) & (device[source] == here)
            is_sent = reads.any(axis=0)
            way = np.where(reads, after[readers], 0.0).max(axis=0, initial=0.0)
            queued += np.where(is_sent, graph.tensor_bytes[tensor], 0.0)
            np.minimum(first, np.where(is_sent, ready[source], np.inf), out=first)
            np.minimum(last, np.where(is_sent, way, np.inf), out=last)
        moved = instance.latency[here, there] + queued / instance.bandwidth[here, there]
        np.maximum(longest, np.where(queued > 0, first + moved + last, 0.0), out=longest)
    return longest


def find_lasting(instance: Instance) -> Bools:
    """The ops that do not end at the moment at which they start."""
    seconds = instance.seconds
    longest = seconds[np.isfinite(seconds)].max(initial=0.0)
    return np.asarray(seconds.min(axis=1) > _INSTANT * longest)


def find_rooms(instance: Instance) -> tuple[list[float], list[float]]:
    """What each device may hold, and what libraries take of that where any op runs on it."""
    cluster = instance.cluster
    rooms = usable_bytes(instance.graph, cluster) * (1 + MEMORY_TOLERANCE)
    types = [cluster.types[cluster.type_names[number]] for number in instance.type_of]
    has_calls = float(instance.graph.calls.any())
    return rooms.tolist(), [each.library_bytes * has_calls for each in types]


def _bytes_of_ops(instance: Instance) -> Floats:
    """What each op's device holds when it starts, besides all state: workspace and what the op
    makes, and what it reads, unless it takes no time and so may free that at once."""
    graph = instance.graph
    made = np.bincount(graph.tensor_source, graph.tensor_bytes, graph.num_ops)
    pairs = np.unique(np.stack((graph.use_op, graph.use_tensor)), axis=1)
    read = np.bincount(pairs[0], graph.tensor_bytes[pairs[1]], graph.num_ops)
    read = np.where(find_lasting(instance), read, 0.0)
    return graph.workspace_bytes + graph.saved_bytes + made + read


def _lack_bound(instance: Instance, needs: Floats, device: Rows) -> Floats:
    """What all devices together miss: each while the one of its ops runs that needs the most."""
    lack = np.zeros(device.shape[1])
    for d, (room, library) in enumerate(zip(*find_rooms(instance), strict=True)):
        here = device == d
        held = instance.graph.state_bytes @ here + np.where(here, needs[:, None], 0.0).max(axis=0)
        held += np.where(here.any(axis=0), library, 0.0)
        lack += np.maximum(0.0, held - room)
    return lack
