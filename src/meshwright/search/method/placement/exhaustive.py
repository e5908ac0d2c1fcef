"""The best placement and order of a step of few ops, by looking at all of them.

Every co-location group on every device, and on every device every order of its ops, is counted:
first placements with their bounds, then, best bound first, the orders of each. What bounds rule out
is not walked; the simulator judges every complete order that is left, and knows the rules.

Other disciplines have nothing to add: what a device runs first-in-first-out or by priority is some
order of its ops, and with that order fixed every op starts no later.

Bounds are times without sharing, which hold under sharing "fair", too: a transfer takes its latency
and then at most the rate that it has alone; and with the order of every device fixed, a start is
the latest of some finishes, so that nothing gets earlier when a transfer takes longer.

An order of ops on each device can be merged into one order of all ops in several ways. Only the one
whose start times rise (ties: by number, where neither op waits for the other) is walked: the start
times of the first ops of an order are final, so an op that would have to start before the last one
is refused at once.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats
from meshwright.cost.compute import host_seconds
from meshwright.cost.memory import usable_bytes
from meshwright.errors import InputError
from meshwright.plan.plan import Plan
from meshwright.search.clock import Clock
from meshwright.search.instance import Instance, order_plan
from meshwright.search.judge import MEMORY_TOLERANCE, Verdict, try_plan

Rows = npt.NDArray[np.int16]

MAX_PLACEMENTS = 2**21
"""Some ten seconds' worth, and 100 MB; three devices and thirteen ops have fewer."""
MAX_OPS = 64
"""Long before that there are too many orders."""
_COLUMNS = 2**14
"""Placements at once: columns of this length stay in the cache."""
_INSTANT = 1e-12
"""An op that takes no longer than this part of the longest op may end at the moment at which it
starts."""
_NEAR = 1e-12
"""Relative. What is better by less is rounding."""
_NODES_A_LOOK = 256
"""Nodes between two looks at the clock."""


@dataclass(slots=True, kw_only=True)
class Exhausted:
    """The best plan so far, of any placement and order, and whether that is all."""

    instance: Instance
    sharing: str
    seconds: float
    lack_bytes: float
    clock: Clock
    """When to give up."""
    plan: Plan | None = None
    """None: nothing better than the incumbent was found, or nothing that can run."""
    verdict: Verdict | None = None
    """The simulator's. Where nothing fits: of the plan that lacks the least memory."""
    is_complete: bool = False
    """Whether every plan was counted. Then one that fits is the best, one that does not fit the
    proof that none does, and none at all that the incumbent is the best."""
    num_nodes: int = 0
    """Beginnings of orders that were looked at."""
    is_late: bool = False

    def is_beaten_by(self, lack_bytes: float, seconds: float) -> bool:
        """Whether a plan that lacks and takes this is better.

        What fits comes first. Of two plans that do not fit the one that lacks less is better,
        whatever they take.
        """
        if self.lack_bytes > 0:
            return lack_bytes < self.lack_bytes * (1 - _NEAR) and seconds < math.inf
        return lack_bytes <= 0 and seconds < self.seconds * (1 - _NEAR)

    def judge(self, device_of_op: list[int], order: list[int]) -> None:
        """Let the simulator judge a complete order."""
        plan = order_plan(self.instance, device_of_op, order)
        verdict = try_plan(self.instance.graph, self.instance.cluster, plan, self.sharing)
        if self.is_beaten_by(verdict.missing_bytes, verdict.step_seconds):
            self.lack_bytes, self.seconds = verdict.missing_bytes, verdict.step_seconds
            self.plan, self.verdict = plan, verdict


def exhaust(
    instance: Instance,
    *,
    sharing: str = "fair",
    incumbent_seconds: float = math.inf,
    clock: Clock | None = None,
) -> Exhausted:
    """Search all placements and orders for one that is faster than a plan that is known to fit.

    `incumbent_seconds` is that plan's time; infinity: none is known. Gives up when
    the time is over, and at once where there are too many ops or placements to try.
    """
    if instance.num_ops == 0:
        raise InputError(f"graph {instance.graph.name}: must have ops to place, got none")
    lack = 0.0 if incumbent_seconds < math.inf else math.inf
    best = Exhausted(
        instance=instance,
        sharing=sharing,
        seconds=incumbent_seconds,
        lack_bytes=lack,
        clock=clock or Clock(),
    )
    num_placements = instance.num_devices**instance.num_units
    if instance.num_ops <= MAX_OPS and num_placements <= MAX_PLACEMENTS:
        best.is_complete = _search(best)
    return best


def _search(best: Exhausted) -> bool:
    """Improve the best by the orders of every placement; returns whether all were counted."""
    rows, bounds, is_whole = list_placements(best.instance, best.seconds, best.clock)
    for row, (lack, seconds) in zip(rows, bounds.tolist(), strict=True):
        if not best.is_beaten_by(lack, seconds):
            break  # nor by those that follow, which lack or else take more
        _walk_orders(best, row.tolist(), lack, seconds)
        if best.is_late:
            return False
    return is_whole


def list_placements(instance: Instance, seconds: float, clock: Clock) -> tuple[Rows, Floats, bool]:
    """Placements that may be faster than `seconds`: devices of ops, by bounds; whether all are in.

    Bounds are bytes that lack and seconds. With finite `seconds` what lacks memory is left out.
    """
    kept_rows, kept_bounds = [], []
    is_whole = True
    needs = _bytes_of_ops(instance)
    for device in _every_placement(instance):
        bounds = np.stack((_lack_bound(instance, needs, device), _seconds_bound(instance, device)))
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


def _every_placement(instance: Instance) -> Iterator[Rows]:
    """Devices of ops, one placement a column."""
    num_devices, num_units = instance.num_devices, instance.num_units
    weights = num_devices ** np.arange(num_units - 1, -1, -1, dtype=np.int64)
    for first in range(0, num_devices**num_units, _COLUMNS):
        numbers = np.arange(first, min(first + _COLUMNS, num_devices**num_units))
        yield (numbers // weights[:, None] % num_devices).astype(np.int16)[instance.unit_of]


def _seconds_bound(instance: Instance, device: Rows) -> Floats:
    """The longest path with its transfers, and the work of a device, or of the host that launches
    it, between what must come before and after it."""
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
    cluster = instance.cluster
    for d in range(instance.num_devices):
        here = device == d
        load = np.where(here, own, 0.0).sum(axis=0)
        first = np.where(here, head, np.inf).min(axis=0)
        last = np.where(here, tail, np.inf).min(axis=0)
        np.maximum(longest, np.where(load > 0, first + load + last, 0.0), out=longest)
        if cluster.types[cluster.type_names[instance.type_of[d]]].is_asynchronous:
            np.maximum(longest, host_seconds(instance.graph) @ here, out=longest)
    return longest


def _bytes_of_ops(instance: Instance) -> Floats:
    """What each op's device holds when it starts, besides all state: workspace and what the op
    makes, and what it reads, unless it takes no time and so may free that at once."""
    graph, seconds = instance.graph, instance.seconds
    is_lasting = seconds.min(axis=1) > _INSTANT * seconds[np.isfinite(seconds)].max(initial=0.0)
    made = np.bincount(graph.tensor_source, graph.tensor_bytes, graph.num_ops)
    pairs = np.unique(np.stack((graph.use_op, graph.use_tensor)), axis=1)
    read = np.bincount(pairs[0], graph.tensor_bytes[pairs[1]], graph.num_ops)
    return graph.workspace_bytes + graph.saved_bytes + made + np.where(is_lasting, read, 0)


def _lack_bound(instance: Instance, needs: Floats, device: Rows) -> Floats:
    """What all devices together miss: each while the one of its ops runs that needs the most."""
    graph, cluster = instance.graph, instance.cluster
    lack = np.zeros(device.shape[1])
    rooms = usable_bytes(graph, cluster) * (1 + MEMORY_TOLERANCE)
    for d, room in enumerate(rooms.tolist()):
        here = device == d
        library = cluster.types[cluster.type_names[instance.type_of[d]]].library_bytes
        held = graph.state_bytes @ here + np.where(here, needs[:, None], 0.0).max(axis=0)
        held += np.where(here.any(axis=0), library * float(graph.calls.any()), 0.0)
        lack += np.maximum(0.0, held - room)
    return lack


def _walk_orders(best: Exhausted, device: list[int], lack: float, seconds: float) -> None:
    """Improve the best by the orders of a placement that lacks and takes this at least."""
    instance = best.instance
    arrivals: list[dict[int, float]] = [{} for _ in device]
    for op, waits in enumerate(arrivals):
        edges = instance.in_edges[instance.in_start[op] : instance.in_start[op + 1]]
        for source, size in edges.tolist():
            pair = device[source], device[op]
            way = 0.0
            if pair[0] != pair[1]:
                if size < 0:
                    continue  # what an op saves is waited for on its own device
                way = float(instance.latency[pair] + size / instance.bandwidth[pair])
            waits[source] = max(waits.get(source, 0.0), way)
    types = instance.type_of[np.array(device)]
    own = instance.seconds[np.arange(len(device)), types].tolist()
    tails = [0.0] * len(device)
    for op in range(len(tails) - 1, -1, -1):
        for source, way in arrivals[op].items():
            tails[source] = max(tails[source], way + own[op] + tails[op])
    walk = _OrderWalk(
        best=best, device=device, own=own, arrivals=arrivals, tails=tails, lack=lack, floor=seconds
    )
    walk.extend([0.0] * instance.num_devices)


@dataclass(slots=True, kw_only=True)
class _OrderWalk:
    """One placement, and the order that the walk has come to."""

    best: Exhausted
    device: list[int]
    own: list[float]
    """The seconds of each op where it is."""
    arrivals: list[dict[int, float]]
    """The ops that each op waits for, and how long what it reads of them is on its way."""
    tails: list[float]
    """The longest way on after each op."""
    lack: float
    """The bytes that the placement lacks at least."""
    floor: float
    """The seconds that the placement takes at least."""
    order: list[int] = field(default_factory=list)
    done: set[int] = field(default_factory=set)
    start: list[float] = field(init=False)
    finish: list[float] = field(init=False)
    """When each op finishes; the earliest, by the last bound, for ops that are not in the order
    yet."""

    def __post_init__(self) -> None:
        self.start, self.finish = [0.0] * len(self.own), [0.0] * len(self.own)

    def extend(self, free_at: list[float]) -> None:
        """Go on with every op that may come next; devices are free at these times."""
        best = self.best
        for start, _, op in self._candidates(free_at):
            best.num_nodes += 1
            if best.num_nodes % _NODES_A_LOOK == 0 and best.clock.is_over:
                best.is_late = True
            if best.is_late:
                return
            self.order.append(op)
            self.done.add(op)
            self.start[op], self.finish[op] = start, start + self.own[op]
            now_free = free_at.copy()
            now_free[self.device[op]] = self.finish[op]
            if best.is_beaten_by(self.lack, self._least_seconds(op, now_free)):
                if len(self.order) == len(self.own):
                    best.judge(self.device, self.order)
                else:
                    self.extend(now_free)
            self.done.remove(op)
            self.order.pop()

    def _start_of(self, op: int, free_at: list[float]) -> float:
        """When an op can start, if all that it waits for finishes as is known."""
        start = free_at[self.device[op]]
        for source, way in self.arrivals[op].items():
            start = max(start, self.finish[source] + way)
        return start

    def _candidates(self, free_at: list[float]) -> list[tuple[float, float, int]]:
        """The ops that may come next, by start time, then by what comes after them."""
        found = [
            (self._start_of(op, free_at), -self.tails[op], op)
            for op, sources in enumerate(self.arrivals)
            if op not in self.done and sources.keys() <= self.done
        ]
        return sorted(each for each in found if self._is_in_turn(each[2], each[0]))

    def _is_in_turn(self, op: int, start: float) -> bool:
        """Whether the merged order stays the one that is walked: by start time, then by number."""
        for other in reversed(self.order):
            if self.device[other] == self.device[op] or other in self.arrivals[op]:
                return True
            if self.start[other] < start:
                return True
            if self.start[other] > start or other > op:
                return False
        return True

    def _least_seconds(self, last: int, free_at: list[float]) -> float:
        """What any order takes that goes on like this: nothing more starts before the last op."""
        finish, now, num_devices = self.finish, self.start[last], len(free_at)
        longest = max(self.floor, finish[last] + self.tails[last], *free_at)
        first, rest, load = [math.inf] * num_devices, [math.inf] * num_devices, [0.0] * num_devices
        for op, own in enumerate(self.own):
            if op in self.done:
                continue
            device, start = self.device[op], max(now, self._start_of(op, free_at))
            finish[op] = start + own
            longest = max(longest, finish[op] + self.tails[op])
            first[device] = min(first[device], start)
            rest[device] = min(rest[device], self.tails[op])
            load[device] += own
        for device in range(num_devices):
            if rest[device] < math.inf:
                longest = max(longest, first[device] + load[device] + rest[device])
        return longest
