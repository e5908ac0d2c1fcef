"""Walks over all orders of the ops of one placement, and leaves out what bounds rule out.

An order of ops on each device can be merged into one order of all ops in several ways. Only the one
whose start times rise (ties: by number, where neither op waits for the other) is walked: the start
times of the first ops of an order are final, so an op that would have to start before the last one
is refused at once. Times on the way are those without sharing, which sharing never makes shorter.
That does not hold for memory, which depends on what happens at the same time: there only buffers
count that are held whatever the times are.
"""

import math
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from meshwright.graph.graph import Split
from meshwright.plan.plan import Plan
from meshwright.search.clock import Clock
from meshwright.search.instance import Instance, order_plan
from meshwright.search.judge import Verdict, try_plan
from meshwright.search.method.placement.exhaustive.memory import PlacementMemory, make_memory

T = TypeVar("T")

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


def walk_orders(best: Exhausted, device: list[int], lack: float, seconds: float) -> None:
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
    memory = make_memory(instance, device)
    is_shared = best.sharing == "fair" and _count_copies(instance, device) > 1
    walk = _OrderWalk(
        best=best, device=device, own=own, arrivals=arrivals, tails=tails, lack=lack, floor=seconds,
        memory=memory, leaves_no_gaps=memory.is_safe and not is_shared,
    )  # fmt: skip
    walk.extend([0.0] * instance.num_devices, [0] * instance.num_devices, walk.hold_in_any_order())


def _count_copies(instance: Instance, device: list[int]) -> int:
    """How many transfers a placement has; one device may get a tensor's rows and the whole."""
    graph = instance.graph
    uses = zip(graph.use_tensor.tolist(), graph.use_op.tolist(), strict=True)
    return len({
        (tensor, device[op], graph.split[op] == Split.NONE)
        for tensor, op in uses
        if device[graph.tensor_source[tensor]] != device[op]
    })  # fmt: skip


@dataclass(slots=True, kw_only=True)
class _OrderWalk:
    """One placement, and the order that the walk has come to. Sets of ops are bits."""

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
    memory: PlacementMemory
    leaves_no_gaps: bool
    """Whether memory and links do not matter. Then an op that fits in before another one of its
    device delays nothing there: of the best orders that with the least sum of start times has no
    gap that another op could fill."""
    order: list[int] = field(default_factory=list)
    done: int = 0
    start: list[float] = field(init=False)
    finish: list[float] = field(init=False)
    """When each op finishes; the earliest, by the last bound, for ops that are not in the order
    yet."""
    before: list[int] = field(init=False)
    """The ops that have finished when an op starts, whatever the times."""
    waits: list[int] = field(init=False)
    """The ops that each op waits for."""

    def __post_init__(self) -> None:
        self.start, self.finish = [0.0] * len(self.own), [0.0] * len(self.own)
        self.before = [0] * len(self.own)
        self.waits = [sum(1 << source for source in sources) for sources in self.arrivals]

    def hold_in_any_order(self) -> list[float]:
        """The most bytes that each device holds at least, whatever the order."""
        before, after = [0] * len(self.own), [0] * len(self.own)
        for op, sources in enumerate(self.arrivals):
            for source in sources:
                before[op] |= before[source] | 1 << source
        for op in range(len(self.own) - 1, -1, -1):
            for source in self.arrivals[op]:
                after[source] |= after[op] | 1 << op
        held = list(self.memory.base)
        for op, device in enumerate(self.device):
            held[device] = max(held[device], self.memory.held_bytes(op, before[op], after[op]))
        return held

    def extend(self, free_at: list[float], before_on: list[int], held: list[float]) -> None:
        """Go on with every op that may come next.

        By device: when it is free, which ops have finished when its next op starts, and how many
        bytes it holds at some moment at least.
        """
        best = self.best
        for start, _, op in self._candidates(free_at):
            best.num_nodes += 1
            if best.num_nodes % _NODES_A_LOOK == 0 and best.clock.is_over:
                best.is_late = True
            if best.is_late:
                return
            device = self.device[op]
            self.order.append(op)
            self.done |= 1 << op
            self.start[op], self.finish[op] = start, start + self.own[op]
            before = before_on[device] | self.waits[op]
            for source in self.arrivals[op]:
                before |= self.before[source]
            self.before[op] = before
            now_held = self._hold(op, held)
            lack = max(self.lack, self.memory.lack_bytes(now_held))
            now_free = _put(free_at, device, self.finish[op])
            if best.is_beaten_by(lack, 0.0) and best.is_beaten_by(
                lack, self._least_seconds(op, now_free)
            ):
                if len(self.order) == len(self.own):
                    best.judge(self.device, self.order)
                else:
                    self.extend(now_free, _put(before_on, device, before | 1 << op), now_held)
            self.done ^= 1 << op
            self.order.pop()

    def _hold(self, op: int, held: list[float]) -> list[float]:
        """The most bytes that each device holds at least, once an op has started."""
        if self.memory.is_safe:
            return held
        now = self.memory.held_bytes(op, self.before[op], ~self.done)
        return _put(held, self.device[op], max(now, held[self.device[op]]))

    def _start_of(self, op: int, free_at: list[float]) -> float:
        """When an op can start, if all that it waits for finishes as is known."""
        start = free_at[self.device[op]]
        for source, way in self.arrivals[op].items():
            start = max(start, self.finish[source] + way)
        return start

    def _candidates(self, free_at: list[float]) -> list[tuple[float, float, int]]:
        """The ops that may come next, by start time, then by what comes after them."""
        ready = {
            op: self._start_of(op, free_at)
            for op, waits in enumerate(self.waits)
            if not self.done >> op & 1 and not waits & ~self.done
        }
        return sorted(
            (start, -self.tails[op], op)
            for op, start in ready.items()
            if self._is_in_turn(op, start) and not self._leaves_a_gap(op, ready)
        )

    def _leaves_a_gap(self, op: int, ready: dict[int, float]) -> bool:
        """Whether another op could run on the device before this one and not delay it."""
        return self.leaves_no_gaps and any(
            start < ready[op]
            and start + self.own[other] <= ready[op]
            and self.device[other] == self.device[op]
            for other, start in ready.items()
        )

    def _is_in_turn(self, op: int, start: float) -> bool:
        """Whether the merged order stays the one that is walked: by start time, then by number."""
        for other in reversed(self.order):
            if self.device[other] == self.device[op] or self.waits[op] >> other & 1:
                return True
            if self.start[other] < start:
                return True
            if self.start[other] > start or other > op:
                return False
        return True

    def _least_seconds(self, last: int, free_at: list[float]) -> float:
        """What any order takes that goes on like this: nothing more starts before the last op.

        Infinite where nothing can go on: what is left for a device could all have started before.
        """
        finish, now, num_devices = self.finish, self.start[last], len(free_at)
        longest = max(self.floor, finish[last] + self.tails[last], *free_at)
        first, rest, load = [math.inf] * num_devices, [math.inf] * num_devices, [0.0] * num_devices
        for op, own in enumerate(self.own):
            if self.done >> op & 1:
                continue
            device, start = self.device[op], self._start_of(op, free_at)
            # What could have started before the last op waits for another op of its device.
            if start >= now or self.waits[op] & ~self.done:
                first[device] = min(first[device], max(start, now))
            finish[op] = max(start, now) + own
            longest = max(longest, finish[op] + self.tails[op])
            rest[device] = min(rest[device], self.tails[op])
            load[device] += own
        for device in range(num_devices):
            if rest[device] < math.inf:
                longest = max(longest, first[device] + load[device] + rest[device])
        return longest


def _put(values: list[T], place: int, value: T) -> list[T]:
    """The values with another one at one place."""
    changed = values.copy()
    changed[place] = value
    return changed
