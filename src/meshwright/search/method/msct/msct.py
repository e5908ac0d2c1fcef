"""Baechi's m-SCT: list scheduling that keeps favourite children with their parents, within memory.

Jeon et al., SoCC 2020, after Hanen and Munier's SCT. Favourites come from a linear programme
(`search/method/msct/favourite.py`). Ops are taken by their earliest start; an idle device whose
last op has a favourite child that is ready waits for it, and meanwhile takes only urgent ops: those
whose inputs would have reached every device by then. As in Baechi, a device sends or receives one
tensor at a time, each at most once, a unit (co-location group) goes where its first op does, and a
device without room for what the unit holds is passed over.

m-SCT assumes equal devices. Here an op goes to the device on which it would end first, queues
included, which on equal devices is the one on which it would start first; the programme counts with
mean times. Baechi also places forward ops only and lets backward ops follow; both are tried, with
transfers that queue and that do not, in the order of the schedule and first in, first out, and the
simulator chooses.
"""

from heapq import heapify, heappop, heappush
from typing import Any

import numpy as np

from meshwright.array import Floats, Ints, sum_rows
from meshwright.kernel.root import join_pairs
from meshwright.search.incumbent import Attempt
from meshwright.search.instance import Instance, explain_nowhere, order_plan, placement_plan
from meshwright.search.judge import tighten
from meshwright.search.method.msct.favourite import Favourites, find_favourites, mean_delays
from meshwright.search.problem import Problem

_TRIES = 6
"""Plans that lack memory are made again with less to fill, so often at most."""
_LP_SHARE = 0.25
"""Each of two linear programmes gets this part of the budget at most."""


def msct(problem: Problem, attempt: Attempt) -> None:
    """m-SCT's placement, the best of its variants."""
    instance, clock = problem.instance, problem.clock
    attempt.raise_bound(problem.placement_bound)
    if reason := explain_nowhere(instance):
        attempt.refuse(reason)
        return
    evaluations = 0
    for unit_of in (instance.unit_of, follow_forward(instance)):
        if unit_of is None or (evaluations and clock.is_over):
            break
        chain = find_favourites(mean_delays(instance, unit_of), _LP_SHARE * clock.seconds)
        for queues in (True, False):
            if not evaluations or not clock.is_over:
                evaluations += _fit(problem, attempt, unit_of, chain, queues=queues)
    attempt.statistics["evaluations"] = float(evaluations)
    clock.look()


def _fit(
    problem: Problem, attempt: Attempt, unit_of: Ints, chain: Favourites, *, queues: bool
) -> int:
    """Schedule, and again with less memory to fill while no plan fits; how many were simulated."""
    instance, limits = problem.instance, problem.cluster.memory_bytes
    tries, fits = 0, False
    while True:
        placed, order, seconds = schedule_msct(instance, chain, unit_of, limits, queues=queues)
        plans = (order_plan(instance, placed, order), placement_plan(instance, placed))
        judged = [(problem.try_plan(plan), plan) for plan in plans]
        tries += 1
        verdict, plan = min(judged, key=lambda each: each[0].rank)
        fits |= verdict.fits
        if attempt.offer(plan, verdict):
            attempt.statistics |= {
                "unshared_seconds": seconds,
                "relaxed_seconds": chain.relaxed_seconds,
                "favourites": float((chain.child >= 0).sum()),
            }
        if fits or tries == _TRIES or problem.clock.is_over:
            return 2 * tries
        limits = tighten(limits, verdict)


def follow_forward(instance: Instance) -> Ints | None:
    """Units in which every backward op is with its forward op; None where that joins nothing.

    None as well where no device could run such a unit.
    """
    graph = instance.graph
    backward = np.flatnonzero(graph.partner >= 0)
    root = np.arange(instance.num_units, dtype=np.int32)
    join_pairs(root, instance.unit_of[backward], instance.unit_of[graph.partner[backward]])
    _, joined = np.unique(root, return_inverse=True)
    seconds = sum_rows(joined, instance.unit_seconds, int(joined.max(initial=-1)) + 1)
    if len(seconds) == instance.num_units or not np.isfinite(seconds).any(axis=1).all():
        return None
    return joined[instance.unit_of].astype(np.int32)


def schedule_msct(
    instance: Instance,
    chain: Favourites,
    unit_of: Ints,
    memory_bytes: Floats | None = None,
    *,
    queues: bool = True,
) -> tuple[Ints, Ints, float]:
    """The device of each op, the ops by start time, and the time of the whole schedule.

    `memory_bytes` is what may be filled of each device; None: all. `queues`: a device sends or
    receives one tensor at a time; otherwise each transfer takes its own time alone.
    """
    limits = instance.cluster.memory_bytes if memory_bytes is None else memory_bytes
    schedule = _Schedule(instance, chain, unit_of, limits, queues=queues)
    order = schedule.run()
    return schedule.device.copy(), np.array(order, dtype=np.int32), float(schedule.finish.max())


class _Schedule:
    """The state of one pass."""

    def __init__(
        self, instance: Instance, chain: Favourites, unit_of: Ints, limits: Floats, *, queues: bool
    ) -> None:
        graph, num_devices = instance.graph, instance.num_devices
        self._chain, self._unit_of, self._queues = chain, unit_of.tolist(), queues
        self._seconds: Floats = instance.seconds[:, instance.type_of]
        first = instance.unit_ops[instance.unit_start[:-1]]
        joined = unit_of[first].astype(np.int64)
        self._can_run = np.isfinite(
            sum_rows(joined, instance.unit_seconds, int(joined.max(initial=-1)) + 1)
        )[:, instance.type_of]
        self._unit_bytes = np.bincount(joined, weights=instance.unit_bytes)
        self._unit_device = [-1] * len(self._unit_bytes)
        self._latency, self._per_byte = instance.latency, 1.0 / instance.bandwidth
        self._room = limits.astype(np.float64)
        self._free_at, self._channel_at = np.zeros(num_devices), np.zeros(num_devices)
        self._reserved, self._awake_at = np.full(num_devices, -1), np.full(num_devices, np.inf)
        self._last_op = [-1] * num_devices
        self._inputs: list[list[int]] = [
            graph.inputs[op].tolist() for op in range(instance.num_ops)
        ]
        self._sizes = graph.tensor_bytes.tolist()
        self._source = graph.tensor_source.tolist()
        self._arrival: dict[int, Floats] = {}
        """When tensors that were sent arrive on each device; infinite where they do not."""
        self._known: dict[int, tuple[int, Floats]] = {}
        self._transfers = 0
        """What `_ready` said of ops after so many transfers, each of which may delay others."""
        self._before, self._after = _neighbours(instance)
        self.device: Ints = np.full(instance.num_ops, -1, dtype=np.int32)
        self.finish = np.zeros(instance.num_ops)

    def run(self) -> list[int]:
        """Schedule everything; the ops in the order in which they were taken."""
        order: list[int] = []
        waits_for = [len(each) for each in self._before]
        heap = [(0.0, op) for op, count in enumerate(waits_for) if count == 0]
        heapify(heap)
        while heap:
            op, device, start = self._take(heap)
            self._place(op, device, start)
            order.append(op)
            for reader in self._after[op]:
                waits_for[reader] -= 1
                if waits_for[reader] == 0:
                    heappush(heap, (self._announce(reader), reader))
        return order

    def _take(self, heap: list[tuple[float, int]]) -> tuple[int, int, float]:
        """The ready op that starts first, its device and its start.

        Keys are starts when last looked at: an op whose device has got a queue since then, or waits
        for nobody any more, may find a better start only when its turn comes.
        """
        looked_at: list[tuple[float, int]] = []
        best, device = (np.inf, False, -1), -1
        while heap and (device < 0 or heap[0][0] <= best[0]):
            _, op = heappop(heap)
            at, start = self._choose(op)
            looked_at.append((start, op))
            rank = start, self._reserved[at] != op, op  # whom a device waits for goes first
            if device < 0 or rank < best:
                best, device = rank, at
        for entry in looked_at:
            if entry[1] != best[2]:
                heappush(heap, entry)
        return best[2], device, best[0]

    def _choose(self, op: int) -> tuple[int, float]:
        """The device on which an op ends first, and its start there."""
        known = self._known.get(op)
        if known is None or known[0] != self._transfers:
            known = self._known[op] = self._transfers, self._ready(op)
        placed = self._unit_device[self._unit_of[op]]
        if placed >= 0:  # it is urgent when it is ready there
            return placed, max(float(known[1][placed]), float(self._free_at[placed]))
        start = np.maximum(known[1], self._free_at)
        seconds = self._seconds[op] + self._lack(self._unit_of[op])
        is_awake = (start >= self._awake_at) & (self._reserved != op)
        if is_awake.any():
            urgent = start[np.isfinite(seconds)].max()
            start = np.where(is_awake, np.maximum(start, urgent), start)
        end = start + seconds
        end[is_awake] = np.nextafter(end[is_awake], np.inf)  # of equals one that waits for nobody
        device = int(end.argmin())
        parent = int(self._chain.parent[op])
        if parent >= 0:
            home = int(self.device[parent])
            if end[home] <= end[device]:
                device = home
        return device, float(start[device])

    def _lack(self, unit: int) -> Floats:
        """Infinite where a unit cannot go, else 0; where none has room, the roomiest is left."""
        fits = self._can_run[unit] & (self._room >= self._unit_bytes[unit])
        if not fits.any():  # the simulator decides
            fits[np.where(self._can_run[unit], self._room, -np.inf).argmax()] = True
        return np.where(fits, 0.0, np.inf)

    def _ready(self, op: int) -> Floats:
        """When all inputs of an op would be on each device."""
        ready = np.zeros(len(self._room))
        for source in self._before[op]:  # what is SAVED, where it is
            at = self.device[source]
            ready[at] = max(ready[at], self.finish[source])
        channel = self._channel_at
        for tensor in self._by_finish(op):
            made, at = self._made(tensor)
            begin = np.maximum(made, np.maximum(channel, self._channel_at[at]))
            there = begin + self._move(tensor, at)
            there[at] = made
            sent = self._arrival.get(tensor)
            if sent is not None:
                is_sent = np.isfinite(sent)
                there[is_sent] = sent[is_sent]
            ready = np.maximum(ready, there)
            if self._queues:
                channel = np.maximum(channel, there)
        return ready

    def _by_finish(self, op: int) -> list[int]:
        tensors = self._inputs[op]
        if len(tensors) < 2:
            return tensors
        return sorted(tensors, key=lambda each: (self.finish[self._source[each]], each))

    def _made(self, tensor: int) -> tuple[float, int]:
        source = self._source[tensor]
        return float(self.finish[source]), int(self.device[source])

    def _move(self, tensor: int, at: int) -> Floats:
        moved: Floats = self._latency[at] + self._sizes[tensor] * self._per_byte[at]
        return moved

    def _place(self, op: int, device: int, start: float) -> None:
        self._receive(op, device)
        del self._known[op]
        unit = self._unit_of[op]
        if self._unit_device[unit] < 0:
            self._unit_device[unit] = device
            self._room[device] -= self._unit_bytes[unit]
        self.device[op] = device
        self.finish[op] = self._free_at[device] = start + self._seconds[op, device]
        self._last_op[device] = op
        if self._chain.parent[op] >= 0:
            self._release(int(self.device[self._chain.parent[op]]), op)
        self._release(device, int(self._reserved[device]))  # it was for the child of the op before

    def _receive(self, op: int, device: int) -> None:
        """Send what is not there yet; both channels are taken meanwhile."""
        for tensor in self._by_finish(op):
            made, at = self._made(tensor)
            if at == device:
                continue
            arrival = self._arrival.setdefault(tensor, np.full(len(self._room), np.inf))
            if not np.isfinite(arrival[device]):
                begin = max(made, self._channel_at[at], self._channel_at[device])
                arrival[device] = begin + self._move(tensor, at)[device]
                if self._queues:
                    self._channel_at[at] = self._channel_at[device] = arrival[device]
                    self._transfers += 1

    def _release(self, device: int, child: int) -> None:
        if child >= 0 and self._reserved[device] == child:
            self._reserved[device], self._awake_at[device] = -1, np.inf

    def _announce(self, op: int) -> float:
        """An op has become ready: reserve its parent's device if it would go there.

        Its parent must be the last op there, and it is waited for from when the last of its
        sources ends: before, it is not ready.
        """
        device, start = self._choose(op)
        parent = int(self._chain.parent[op])
        if parent >= 0 and self._last_op[device] == parent:
            self._reserved[device] = op
            self._awake_at[device] = max(self.finish[each] for each in self._before[op])
        return start


def _neighbours(instance: Instance) -> tuple[list[list[int]], list[list[int]]]:
    """The ops that each op waits for, each once, and those that wait for it."""
    before: list[list[int]] = []
    after: list[list[int]] = [[] for _ in range(instance.num_ops)]
    sources: Any = instance.in_edges["op"]
    for op in range(instance.num_ops):
        low, high = instance.in_start[op], instance.in_start[op + 1]
        before.append(sorted(set(sources[low:high].tolist())))
        for source in before[op]:
            after[source].append(op)
    return before, after
