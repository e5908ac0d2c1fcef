"""Plays a device: waits for the planned time of every op, and sends as many bytes as planned.

One machine can so run a plan for many devices over a real network. What is computed takes exactly
its planned time: an op begins when the device is free and its inputs are there, and ends its
seconds later, whatever the operating system makes of a sleep.
"""

import contextlib
import ctypes
import os
import time
from collections.abc import Mapping

import torch

from meshwright.execute.exchange import RankExchange
from meshwright.execute.item import Key, RankPart, Receive, RunSegment, StartItem
from meshwright.execute.talk import nothing
from meshwright.execute.walk import Times, clock
from meshwright.execute.work import Communication, Finish
from meshwright.program.program import Kind, Program

_AT_ONCE = 1e-4
"""Seconds: who did not wait longer than this before a segment did not wait at all."""
_PRIORITY = 10
_SLACK_NANOSECONDS = 1000


class Emulation:
    """The worker that waits."""

    def __init__(self, program: Program, part: RankPart, exchange: RankExchange) -> None:
        self.program, self.exchange = program, exchange
        self.seconds: list[float] = program.instructions["seconds"].tolist()
        self.bytes: list[float] = program.instructions["bytes"].tolist()
        communicated = [each.instruction for each in part.starts]
        communicated += [each.instruction for each in part.receives]
        largest = max([1.0, *(self.bytes[each] for each in communicated)])
        # What is sent is never looked at, so all share one piece of memory; to allocate it anew
        # would take the device's time, 10 ms for a bucket of gradients.
        self.scratch = torch.zeros(int(largest) + 8, dtype=torch.uint8)
        most_members = max(map(len, exchange.members.values()), default=1)
        self.sums = torch.zeros(int(largest) // 4 + most_members, dtype=torch.float32)
        self.free_at = 0.0
        self.times: Times | None = None

    def begin(self, inputs: Mapping[Key, torch.Tensor], times: Times | None) -> None:
        """Begin a step, whose first op finds the device free."""
        assert not inputs
        self.times = times
        self.free_at = clock()

    def end(self) -> None:
        """Do nothing: a step that was emulated leaves nothing."""

    def compute(self, item: RunSegment) -> None:
        """Wait for as long as the segment takes."""
        self._occupy(item.instructions)

    def join(self, item: StartItem) -> None:
        """Wait for as long as it takes."""
        self._occupy((item.instruction,))

    def _occupy(self, instructions: tuple[int, ...]) -> None:
        now = clock()
        # A device whose inputs came late starts now; one that was busy goes on without a gap.
        moment = now if now - self.free_at > _AT_ONCE else self.free_at
        for instruction in instructions:
            if self.times is not None:
                self.times.start[instruction] = moment
            moment += self.seconds[instruction]
            if self.times is not None:
                self.times.finish[instruction] = moment
        self.free_at = moment
        left = moment - clock()
        if left > 0:
            time.sleep(left)

    def pack(self, item: StartItem) -> torch.Tensor:
        """As many bytes as are sent."""
        return self.scratch[: self._size(item.instruction)]

    def empty(self, receive: Receive) -> torch.Tensor:
        """As many bytes as are received."""
        return self.scratch[: self._size(receive.instruction)]

    def accept(self, receive: Receive, flat: torch.Tensor) -> None:
        """Do nothing: the bytes that arrive have no meaning."""

    def collect(self, item: StartItem) -> tuple[Communication, Finish]:
        """Start a collective over as many bytes."""
        size, exchange, group = self._size(item.instruction), self.exchange, item.group
        members = len(self.program.groups[group])
        piece = max(1, size // members)
        if item.kind in (Kind.ALL_GATHER, Kind.ALL_TO_ALL):
            parts = [self.scratch[k * piece : (k + 1) * piece] for k in range(members)]
            if item.kind == Kind.ALL_TO_ALL:
                return exchange.all_to_all(parts, [piece] * members, group)[0], nothing
            own = torch.zeros(piece, dtype=torch.uint8)
            return exchange.all_gather(parts, own, group), nothing
        if item.kind == Kind.REDUCE_SCATTER:
            piece = max(1, size // 4 // members)
            rows = self.sums[: members * piece].view(members, piece)
            return exchange.reduce_scatter(rows[0].clone(), rows, group), nothing
        if item.kind == Kind.SHIFT:
            own = torch.zeros(size, dtype=torch.uint8)
            return exchange.shift(self.scratch[:size], own, group), nothing
        start = exchange.all_reduce if item.kind == Kind.ALL_REDUCE else exchange.broadcast
        return start(self.sums[: max(1, size // 4)], group), nothing

    def _size(self, instruction: int) -> int:
        return max(1, round(self.bytes[instruction]))


def hasten_wakeups() -> None:
    """Let this process wake up on time, where the system allows: sleeps overshoot by 0.03 ms then,
    instead of 0.1 ms, and gloo's threads answer at once (2 cores, 16 ranks, 2026-11).

    Must be called before torch starts threads of its own, which inherit it.
    """
    with contextlib.suppress(OSError):  # not root: good enough for a look
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(_PRIORITY))
    set_timer_slack = 29
    ctypes.CDLL(None).prctl(set_timer_slack, _SLACK_NANOSECONDS, 0, 0, 0)
