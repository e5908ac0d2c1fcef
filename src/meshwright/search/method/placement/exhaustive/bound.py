"""All placements of a step of few ops, with bounds on what each takes and lacks in any order.

Works on many placements at once, one column each. Knows nothing of orders.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats
from meshwright.cost.compute import host_seconds
from meshwright.cost.memory import usable_bytes
from meshwright.graph.graph import Phase, Split
from meshwright.search.clock import Clock
from meshwright.search.instance import Instance
from meshwright.search.judge import MEMORY_TOLERANCE

Rows = npt.NDArray[np.int16]
Bools = npt.NDArray[np.bool_]

MAX_PLACEMENTS = 2**21
"""Some ten seconds' worth, and 100 MB; three devices and thirteen ops have fewer."""
_COLUMNS = 2**14
"""Placements at once: columns of this length stay in the cache."""
_INSTANT = 1e-12
"""An op that takes no longer than this part of the longest op may end at the moment at which it
starts."""


@dataclass(frozen=True, kw_only=True, eq=False)
class PlacementProblem:
    """The graph and the cluster, as plain lists. Sets of ops are the bits of an integer."""

    instance: Instance
    is_fair: bool
    seconds: list[list[float]]
    """The seconds of each op (row) on each device (column)."""
    launch: list[list[float]]
    """What the host takes to launch each op (row) on each device (column)."""
    latency: list[list[float]]
    bandwidth: list[list[float]]
    inputs: list[list[int]]
    """The tensors that each op reads."""
    source: list[int]
    readers: list[list[int]]
    bytes: list[float]
    rows_bytes: list[float]
    """The size as lowering works it out for all rows; may differ in the last bit."""
    is_rows: list[bool]
    wants_whole: list[bool]
    lasts: list[bool]
    """Whether each tensor is held until the step ends."""
    partner: list[int]
    """The op whose saved bytes an op holds back if it is on the same device, or -1."""
    saved_bytes: list[float]
    """Held until the step ends where no op on the same device holds it back."""
    workspace_bytes: list[float]
    state_bytes: list[float]
    library_bytes: list[float]
    room_bytes: list[float]
    """What each device may hold."""
    before: list[int]
    """The ops that each op depends on, directly or not."""
    after: list[int]
    """The ops that depend on each op, directly or not."""
    lasting: int
    """The ops that do not end at the moment at which they start."""

    @property
    def num_ops(self) -> int:
        """The number of ops in the step."""
        return len(self.seconds)

    @property
    def num_devices(self) -> int:
        """The number of devices of the cluster."""
        return len(self.room_bytes)

    def takes_rows(self, tensor: int, reader: int) -> bool:
        """Whether lowering sends a tensor's rows to this reader, not the whole.

        Where both kinds of readers are on one device the tensor is sent twice.
        """
        return self.is_rows[tensor] and not self.wants_whole[reader]

    def kept_for(self, op: int, after: int) -> int:
        """Of an op and those after it the ones that end later than it starts.

        What these read is held when the op starts; what an op reads that takes no time may be freed
        at the very moment at which its own buffers are allocated.
        """
        ops = after | 1 << op
        return ops if self.lasting >> op & 1 else ops & self.lasting

    def lack_bytes(self, held: list[float]) -> float:
        """What all devices together miss when each holds so much."""
        lack = 0.0
        for here, room in zip(held, self.room_bytes, strict=True):
            if here > room:
                lack += here - room
        return lack

    @cached_property
    def moves(self) -> list[Floats]:
        """What each tensor takes from device to device, as one row."""
        latency, bandwidth = np.array(self.latency), np.array(self.bandwidth)
        return [(latency + size / bandwidth).ravel() for size in self.bytes]


def state_problem(instance: Instance, sharing: str) -> PlacementProblem:
    """The lists of an instance."""
    graph, cluster = instance.graph, instance.cluster
    types = [cluster.types[name] for name in cluster.type_names]
    seconds = instance.seconds[:, instance.type_of]
    is_launched = np.array([each.is_asynchronous for each in types])[instance.type_of]
    library = np.array([each.library_bytes for each in types])[instance.type_of]
    is_back = (graph.phase == Phase.BACKWARD) & (graph.partner >= 0)
    holds_back = is_back & (graph.saved_bytes[graph.partner] > 0)
    fixed = graph.fixed_tensor_bytes
    makes_rows = graph.split[graph.tensor_source] == Split.BATCH
    before, after = _dependencies(instance)
    is_lasting = seconds.min(axis=1) > _INSTANT * seconds[np.isfinite(seconds)].max(initial=0.0)
    return PlacementProblem(
        instance=instance,
        is_fair=sharing == "fair",
        seconds=seconds.tolist(),
        launch=np.outer(host_seconds(graph), is_launched).tolist(),
        latency=instance.latency.tolist(),
        bandwidth=instance.bandwidth.tolist(),
        inputs=[graph.inputs[op].tolist() for op in range(graph.num_ops)],
        source=graph.tensor_source.tolist(),
        readers=[graph.readers[tensor].tolist() for tensor in range(graph.num_tensors)],
        bytes=graph.tensor_bytes.tolist(),
        rows_bytes=(fixed + (graph.tensor_bytes - fixed)).tolist(),
        is_rows=(makes_rows & ~graph.tensor_partial).tolist(),
        wants_whole=(graph.split == Split.NONE).tolist(),
        lasts=graph.is_returned.tolist(),
        partner=np.where(holds_back, graph.partner, -1).tolist(),
        saved_bytes=graph.saved_bytes.tolist(),
        workspace_bytes=graph.workspace_bytes.tolist(),
        state_bytes=graph.state_bytes.tolist(),
        library_bytes=(library * float(graph.calls.any())).tolist(),
        room_bytes=(usable_bytes(graph, cluster) * (1 + MEMORY_TOLERANCE)).tolist(),
        before=before,
        after=after,
        lasting=sum(1 << op for op in np.flatnonzero(is_lasting).tolist()),
    )


def _dependencies(instance: Instance) -> tuple[list[int], list[int]]:
    """The ops that each op depends on, directly or not, and those that depend on it, as bits."""
    before, after = [0] * instance.num_ops, [0] * instance.num_ops
    edges = list(zip(*(ends.tolist() for ends in instance.graph.edges), strict=True))
    for source, target in sorted(edges, key=lambda edge: edge[1]):
        before[target] |= before[source] | 1 << source
    for source, target in sorted(edges, reverse=True):
        after[source] |= after[target] | 1 << target
    return before, after


def list_placements(
    problem: PlacementProblem, seconds: float, clock: Clock
) -> tuple[Rows, Floats, bool]:
    """Placements that may be faster than `seconds`: devices of ops, by bounds; whether all are in.

    Bounds are bytes that lack and seconds. With finite `seconds` what lacks memory is left out.
    """
    kept_rows, kept_bounds = [], []
    is_whole = True
    for device in _every_placement(problem):
        bounds = np.stack((_lack_bound(problem, device), _seconds_bound(problem, device)))
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


def _every_placement(problem: PlacementProblem) -> Iterator[Rows]:
    """Devices of ops, one placement a column; of those that are alike, one."""
    instance, num_devices = problem.instance, problem.num_devices
    num_units = instance.num_units
    twins = _find_twins(problem)
    weights = num_devices ** np.arange(num_units - 1, -1, -1, dtype=np.int64)
    for first in range(0, num_devices**num_units, _COLUMNS):
        numbers = np.arange(first, min(first + _COLUMNS, num_devices**num_units))
        units = (numbers // weights[:, None] % num_devices).astype(np.int16)
        is_first = np.ones(len(numbers), dtype=np.bool_)
        for one, other in twins:  # the one is used before the other
            uses = [
                np.where((units == each).any(axis=0), (units == each).argmax(axis=0), num_units)
                for each in (one, other)
            ]
            is_first &= uses[0] <= uses[1]
        yield units[:, is_first][instance.unit_of]


def _find_twins(problem: PlacementProblem) -> list[tuple[int, int]]:
    """Pairs of devices that can change places: each with the last one before it that it can."""
    pairs = []
    for other in range(problem.num_devices):
        alike = [one for one in range(other) if _are_alike(problem, one, other)]
        pairs += [(one, other) for one in alike[-1:]]
    return pairs


def _are_alike(problem: PlacementProblem, one: int, other: int) -> bool:
    """Whether nothing changes when all ops of two devices change places."""
    instance, cluster = problem.instance, problem.instance.cluster
    swapped = np.arange(problem.num_devices)
    swapped[[one, other]] = other, one
    if cluster.type_of[one] != cluster.type_of[other]:
        return False
    if cluster.memory_bytes[one] != cluster.memory_bytes[other]:
        return False
    for matrix in (instance.latency, instance.bandwidth):
        if not np.array_equal(matrix, matrix[np.ix_(swapped, swapped)]):
            return False
    if not problem.is_fair:
        return True
    return _shared_links(problem, np.arange(len(swapped))) == _shared_links(problem, swapped)


def _shared_links(
    problem: PlacementProblem, number_of: npt.NDArray[np.intp]
) -> list[tuple[float, list[tuple[int, int]]]]:
    """The capacity of every link in use and the pairs of devices that use it, sorted."""
    cluster = problem.instance.cluster
    pairs_on: dict[int, list[tuple[int, int]]] = {}
    for source in range(problem.num_devices):
        for target in range(problem.num_devices):
            for link in cluster.routing.links(source, target).tolist():
                pair = int(number_of[source]), int(number_of[target])
                pairs_on.setdefault(link, []).append(pair)
    capacity = cluster.link_bytes_per_second
    return sorted((float(capacity[link]), sorted(pairs)) for link, pairs in pairs_on.items())


def _seconds_bound(problem: PlacementProblem, device: Rows) -> Floats:
    """The longest path with its transfers, and the work of a device between what must come before
    and after it; of hosts, and under sharing of the transfers between two devices, likewise."""
    own = np.stack([np.array(row)[d] for row, d in zip(problem.seconds, device, strict=True)])
    head, tail = np.zeros(own.shape), np.zeros(own.shape)
    moved = {}
    for op in range(problem.num_ops):
        for tensor in problem.inputs[op]:
            source = problem.source[tensor]
            pair = device[source].astype(np.intp) * problem.num_devices + device[op]
            moved[tensor, op] = problem.moves[tensor][pair]
            np.maximum(head[op], head[source] + own[source] + moved[tensor, op], out=head[op])
    for op in range(problem.num_ops - 1, -1, -1):
        for tensor in problem.inputs[op]:
            source = problem.source[tensor]
            np.maximum(tail[source], moved[tensor, op] + own[op] + tail[op], out=tail[source])
    longest: Floats = (head + own + tail).max(axis=0)
    launch = np.array(problem.launch)
    for d in range(problem.num_devices):
        here = device == d
        load = np.where(here, own, 0.0).sum(axis=0)
        first = np.where(here, head, np.inf).min(axis=0)
        last = np.where(here, tail, np.inf).min(axis=0)
        work = np.where(load > 0, first + load + last, 0.0)
        np.maximum(longest, work, out=longest)
        if launch.any():
            np.maximum(longest, launch[:, d] @ here, out=longest)
    if problem.is_fair:
        np.maximum(longest, _queue_bound(problem, device, head + own, own + tail), out=longest)
    return longest


def _queue_bound(problem: PlacementProblem, device: Rows, ready: Floats, after: Floats) -> Floats:
    """Transfers from one device to another go one after the other."""
    shape = (problem.num_devices, problem.num_devices, device.shape[1])
    queued, longest = np.zeros(shape), np.zeros(shape[2])
    first, last = np.full(shape, np.inf), np.full(shape, np.inf)
    for tensor, readers in enumerate(problem.readers):
        source = problem.source[tensor]
        for there in range(problem.num_devices):
            reads = device[readers] == there
            way = np.where(reads, after[readers], 0.0).max(axis=0, initial=0.0)
            is_read = reads.any(axis=0)
            for here in range(problem.num_devices):
                is_sent = is_read & (device[source] == here)
                if here == there or not is_sent.any():
                    continue
                queued[here, there] += np.where(is_sent, problem.bytes[tensor], 0.0)
                begin = np.where(is_sent, ready[source], np.inf)
                np.minimum(first[here, there], begin, out=first[here, there])
                np.minimum(last[here, there], np.where(is_sent, way, np.inf), out=last[here, there])
    for here, there in zip(*np.nonzero(queued.any(axis=2)), strict=True):
        moved = problem.latency[here][there] + queued[here, there] / problem.bandwidth[here][there]
        total = np.where(queued[here, there] > 0, first[here, there] + moved + last[here, there], 0)
        np.maximum(longest, total, out=longest)
    return longest


def _lack_bound(problem: PlacementProblem, device: Rows) -> Floats:
    """What all devices together miss: each while the one of its ops runs that needs the most."""
    state = np.array(problem.state_bytes)
    lack = np.zeros(device.shape[1])
    needs = np.stack([_need(problem, device, op) for op in range(problem.num_ops)])
    for d in range(problem.num_devices):
        here = device == d
        held = state @ here + np.where(here.any(axis=0), problem.library_bytes[d], 0.0)
        held = held + np.where(here, needs, 0.0).max(axis=0)
        lack += np.maximum(0.0, held - problem.room_bytes[d])
    return lack


def _need(problem: PlacementProblem, device: Rows, op: int) -> Floats:
    """What an op's device holds when it starts, besides what it holds all the time.

    What it makes and reads; what was made before it and is read there after it, or lasts.
    """
    held = np.full(device.shape[1], problem.workspace_bytes[op] + problem.saved_bytes[op])
    kept = problem.kept_for(op, problem.after[op])
    for tensor, source in enumerate(problem.source):
        size = problem.rows_bytes[tensor]
        readers = [reader for reader in problem.readers[tensor] if kept >> reader & 1]
        if source == op or op in readers:
            held += size
        elif problem.before[op] >> source & 1 and readers:
            held += np.where((device[readers] == device[op]).any(axis=0), size, 0.0)
        elif problem.before[op] >> source & 1 and problem.lasts[tensor] and kept:
            held += np.where(device[source] == device[op], size, 0.0)
    for partner, size in enumerate(problem.saved_bytes):
        if size > 0 and partner != op:
            is_held = _holds_saved(problem, device, op, partner, kept)
            held += np.where(is_held & (device[partner] == device[op]), size, 0.0)
    return held


def _holds_saved(
    problem: PlacementProblem, device: Rows, op: int, partner: int, kept: int
) -> Bools:
    """Whether what `partner` has saved is there when another op of its device starts: for those
    that hold it back there, and to the end of the step if there are none."""
    is_before = problem.before[op] >> partner & 1
    readers = [reader for reader, other in enumerate(problem.partner) if other == partner]
    waiting = [r for r in readers if kept >> r & 1 and (r == op or is_before)]
    lasts = ~(device[readers] == device[op]).any(axis=0) & bool(is_before and kept)
    found: Bools = (device[waiting] == device[op]).any(axis=0) | lasts
    return found
