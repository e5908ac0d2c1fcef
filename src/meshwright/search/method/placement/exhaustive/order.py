"""Walks over all orders of the ops of one placement, and leaves out what bounds rule out.

An order of ops on each device can be merged into one order of all ops in several ways. Only the one
whose start times rise (ties: by number, where neither op waits for the other) is walked: the start
times of the first ops of an order are final, so an op that would have to start before the last one
is refused at once. Times on the way are those without sharing, which sharing never makes shorter.
"""

import math
from dataclasses import dataclass, field

from meshwright.search.clock import Clock
from meshwright.search.method.placement.exhaustive.leaf import LeafPlacement

_NEAR = 1e-12
"""Relative. What is better by less is rounding."""

_NODES_A_LOOK = 256
"""Nodes between two looks at the clock."""


@dataclass(slots=True, kw_only=True)
class Best:
    """The best order so far, of any placement."""

    seconds: float
    lack_bytes: float
    clock: Clock
    """When to give up."""
    device: list[int] = field(default_factory=list)
    order: list[int] = field(default_factory=list)
    num_nodes: int = 0
    is_late: bool = False

    def is_beaten_by(self, lack_bytes: float, seconds: float) -> bool:
        """Whether a plan that lacks and takes this is better.

        What fits comes first. Of two plans that do not fit the one that lacks less is better,
        whatever they take.
        """
        if self.lack_bytes > 0:
            return lack_bytes < self.lack_bytes * (1 - _NEAR) and seconds < math.inf
        return lack_bytes <= 0 and seconds < self.seconds * (1 - _NEAR)

    def count_node(self) -> None:
        """Count a node and look at the clock now and then."""
        self.num_nodes += 1
        if self.num_nodes % _NODES_A_LOOK == 0 and self.clock.is_over:
            self.is_late = True


def search_orders(placed: LeafPlacement, best: Best) -> None:
    """Improve the best by the orders of a placement."""
    problem = placed.problem
    floor = placed.base_bytes.copy()
    for op, device in enumerate(placed.device):
        held = placed.held_bytes(op, problem.before[op], problem.after[op])
        floor[device] = max(floor[device], held)
    walk = _OrderWalk(placed=placed, best=best)
    walk.extend(0, [0.0] * problem.num_devices, [0] * problem.num_devices, floor)


@dataclass(slots=True, kw_only=True)
class _OrderWalk:
    """Where the walk is. Sets of ops are the bits of an integer."""

    placed: LeafPlacement
    best: Best
    order: list[int] = field(default_factory=list)
    start: list[float] = field(init=False)
    finish: list[float] = field(init=False)
    """When each op finishes; the earliest, by the last bound, for ops that are not in the order
    yet."""
    before: list[int] = field(init=False)
    """What has finished when an op starts, whatever the times."""

    def __post_init__(self) -> None:
        num_ops = len(self.placed.own)
        self.start, self.finish, self.before = [0.0] * num_ops, [0.0] * num_ops, [0] * num_ops

    def extend(
        self, done: int, free_at: list[float], before_on: list[int], floor: list[float]
    ) -> None:
        """Go on with every op that may come next after those that are `done`.

        By device: when it is free, what has finished when its next op starts, and how many bytes it
        holds at some moment at least.
        """
        placed, best = self.placed, self.best
        for start, _, op in self._candidates(done, free_at):
            best.count_node()
            if best.is_late:
                return
            device, now_done = placed.device[op], done | 1 << op
            self.order.append(op)
            self.start[op] = start
            self.finish[op] = finish = start + placed.own[op]
            now_free = free_at.copy()
            now_free[device] = finish
            before = before_on[device]
            for source, _ in placed.arrivals[op]:
                before |= self.before[source] | 1 << source
            self.before[op] = before
            now_floor = floor
            if not placed.is_safe:
                held = placed.held_bytes(op, before, ~now_done)
                if held > floor[device]:
                    now_floor = floor.copy()
                    now_floor[device] = held
            lack = placed.problem.lack_bytes(now_floor)
            if best.is_beaten_by(lack, 0.0) and best.is_beaten_by(
                lack, self._least_seconds(op, now_done, now_free)
            ):
                if len(self.order) == len(placed.own):
                    self._finish()
                else:
                    now_before = before_on.copy()
                    now_before[device] = before | 1 << op
                    self.extend(now_done, now_free, now_before, now_floor)
            self.order.pop()

    def _finish(self) -> None:
        """Judge a complete order."""
        best = self.best
        lack, seconds = self.placed.judge(self.order, self.finish)
        if best.is_beaten_by(lack, seconds):
            best.lack_bytes, best.seconds = lack, seconds
            best.device, best.order = self.placed.device, self.order.copy()

    def _candidates(self, done: int, free_at: list[float]) -> list[tuple[float, float, int]]:
        """The ops that may come next, by start time, then by what comes after them."""
        placed, finish = self.placed, self.finish
        ready: dict[int, float] = {}
        for op, needed in enumerate(placed.waits_for):
            if not done >> op & 1 and not needed & ~done:
                start = free_at[placed.device[op]]
                for source, moved in placed.arrivals[op]:
                    start = max(start, finish[source] + moved)
                ready[op] = start
        is_active = placed.is_safe and not placed.is_shared
        return sorted(
            (start, -placed.tails[op], op)
            for op, start in ready.items()
            if self._is_in_turn(op, start) and not (is_active and self._leaves_a_gap(op, ready))
        )

    def _is_in_turn(self, op: int, start: float) -> bool:
        """Whether the merged order stays the one that is walked: by start time, then by number."""
        placed = self.placed
        for other in reversed(self.order):
            if placed.device[other] == placed.device[op] or placed.problem.before[op] >> other & 1:
                return True
            if self.start[other] < start:
                return True
            if self.start[other] > start or other > op:
                return False
        return True

    def _leaves_a_gap(self, op: int, ready: dict[int, float]) -> bool:
        """Whether another op could run on the device before this one and not delay it.

        Running that one first delays nothing at all, so where memory and links do not matter some
        best order has no such gap: of the best ones that with the smallest sum of start times.
        """
        device, own = self.placed.device, self.placed.own
        return any(
            start < ready[op] and start + own[other] <= ready[op] and device[other] == device[op]
            for other, start in ready.items()
        )

    def _least_seconds(self, last: int, done: int, free_at: list[float]) -> float:
        """What any order takes that goes on like this: nothing more starts before the last op.

        Infinite where nothing can go on: what is left for a device could all have started before.
        """
        placed, finish, now = self.placed, self.finish, self.start[last]
        tails, num_devices = placed.tails, len(free_at)
        longest = max(finish[last] + tails[last], placed.launch_seconds, *free_at)
        first, rest, load = [math.inf] * num_devices, [math.inf] * num_devices, [0.0] * num_devices
        for op, own in enumerate(placed.own):
            if done >> op & 1:
                continue
            device = placed.device[op]
            start = free_at[device]
            for source, moved in placed.arrivals[op]:
                start = max(start, finish[source] + moved)
            # What could have started before the last op waits for another op of its device.
            if start >= now or placed.waits_for[op] & ~done:
                first[device] = min(first[device], max(start, now))
            finish[op] = max(start, now) + own
            longest = max(longest, finish[op] + tails[op])
            rest[device] = min(rest[device], tails[op])
            load[device] += own
        for device in range(num_devices):
            if rest[device] < math.inf:
                longest = max(longest, first[device] + load[device] + rest[device])
        return longest
