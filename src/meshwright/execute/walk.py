"""Walks one rank's part of a program: what is computed, and communication beside it.

Receives are posted when the simulation has their transfers start: later, and the transfer would
wait; much earlier, and memory would be held that nobody has predicted. Sends and collectives run
beside the main thread. What an instruction does with tensors is its worker's business
(`meshwright.execute.tensors`, or `meshwright.execute.emulate`, which only waits).
"""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from meshwright.execute.exchange import RankExchange
from meshwright.execute.item import Item, Key, RankPart, Receive, RunSegment, StartItem
from meshwright.execute.progress import NOBODY, Progress
from meshwright.execute.thread import Served
from meshwright.execute.work import Communication, Finish
from meshwright.program.program import JOINS, Kind, Program

AHEAD_BYTES = 256 * 2**10
"""Receives are posted ahead of their time while they hold so little memory: about what a link of
10 Gbit/s carries while a message comes and goes."""

_COLLECTIVES = -1
"""Stands for the peer of collectives, which are complete in their order."""

clock = time.perf_counter
"""CLOCK_MONOTONIC: one clock for all processes of a host, also across network namespaces."""


@dataclass(slots=True)
class Times:
    """When each instruction of a rank started and finished, in seconds of its clock."""

    start: dict[int, float] = field(default_factory=dict)
    finish: dict[int, float] = field(default_factory=dict)
    spans: dict[int, Any] = field(default_factory=dict)
    """What a device times, a sequence of `EventSpan` each, until it is read as the step ends."""
    when_fed: Callable[[], None] | None = None
    """Called when the device has the batch, before the first instruction."""


class RankWorker(Protocol):
    """Does what instructions say, with tensors or by waiting."""

    def begin(self, inputs: Mapping[Key, torch.Tensor], times: Times | None) -> None:
        """Begin a step on these inputs, which is timed where there are times to fill."""

    def end(self) -> None:
        """End the step, of which nothing is needed any more."""

    def compute(self, item: RunSegment) -> None:
        """Run a segment of ops."""

    def join(self, item: StartItem) -> None:
        """Concatenate or add up."""

    def pack(self, item: StartItem) -> torch.Tensor:
        """What is sent, as bytes in a row; what nobody reads afterwards is let go of."""

    def collect(self, item: StartItem) -> tuple[Communication, Finish]:
        """Start a collective; returns what to wait for, and what to do then."""

    def empty(self, receive: Receive) -> torch.Tensor:
        """Room for what is received, as bytes in a row."""

    def accept(self, receive: Receive, flat: torch.Tensor) -> None:
        """Keep what was received."""


@dataclass(slots=True)
class _Pending:
    """Communication of this step that nobody has waited for yet."""

    work: Communication
    finish: Finish
    size: int = 0
    done: threading.Event | None = None
    """Set by the thread that waits for it, where its end is timed."""

    @property
    def is_done(self) -> bool:
        """Whether nobody would wait for it."""
        return self.work.is_done if self.done is None else self.done.is_set()


_Sent = list[Any]
"""A send, its instruction, and the times to fill if the step is timed; emptied by its thread."""
_Received = tuple[_Pending, int, Times]
"""A receive or collective, its instruction, and the times to fill."""


@dataclass(frozen=True, slots=True)
class Doing:
    """An instruction whose text is made only if somebody asks."""

    program: Program
    instruction: int

    def __str__(self) -> str:
        return self.program.describe(self.instruction)


class ProgramWalk:
    """One rank's part of a program, step after step."""

    def __init__(
        self,
        program: Program,
        part: RankPart,
        exchange: RankExchange,
        worker: RankWorker,
        progress: Progress | None = None,
    ) -> None:
        self.program, self.part, self.exchange, self.worker = program, part, exchange, worker
        self.progress: Progress = progress or Progress()
        starts = part.starts
        runs = [item.instructions[0] for item in part.items if isinstance(item, RunSegment)]
        self.peer = {each.instruction: each.peer for each in part.receives}
        numbers = (*runs, *(each.instruction for each in starts), *self.peer)
        self.doing = {each: Doing(program, each) for each in numbers}
        self.sent_to = {each.instruction: each.peer for each in starts if each.kind == Kind.SEND}
        self.group = {each.instruction: each.group for each in starts if each.group >= 0}
        self.others = {each: self._others(each) for each in set(self.group.values())}
        self.pending: dict[int, _Pending] = {}
        self.over: set[int] = set()
        """What was waited for in this step."""
        self.receives: deque[Receive] = deque()
        self.posted_bytes = 0
        self.sends, self.waiters = _Sends(), _Waiters()
        self.times: Times | None = None

    def run(self, inputs: Mapping[Key, torch.Tensor], times: Times | None = None) -> None:
        """One step; `times` asks for every instruction to be timed."""
        self.times = times
        self.worker.begin(inputs, times)
        self.receives = deque(self.part.receives)
        self.over.clear()
        for place, item in enumerate(self.part.items):
            self._post_until(place)
            self._finish_collectives()
            self._run(item)
        for instruction in list(self.pending):
            self._await(instruction)
        self._drain()
        self.worker.end()

    def close(self) -> None:
        """End the threads that wait for communication."""
        self.sends.queue.close()
        for each in self.waiters.queues.values():
            each.close()

    def _others(self, group: int) -> tuple[int, ...]:
        mine = self.exchange.rank_of[self.part.device]
        ranks = (self.exchange.rank_of[each] for each in self.program.groups[group])
        return tuple(rank for rank in ranks if rank != mine)

    def _run(self, item: Item) -> None:
        for instruction in item.waits:
            self._await_in_order(instruction)
        progress = self.progress
        progress.count += 1
        if isinstance(item, RunSegment):
            progress.doing = self.doing[item.instructions[0]]
            self.worker.compute(item)
            return
        progress.doing = self.doing[item.instruction]
        if item.kind == Kind.SEND:
            self._send(item)
        elif item.kind in JOINS:
            self.worker.join(item)
        else:
            if self.times is not None:
                self.times.start[item.instruction] = clock()
            self._wait_for(item.instruction, _Pending(*self.worker.collect(item)), _COLLECTIVES)

    def _send(self, item: StartItem) -> None:
        flat = self.worker.pack(item)
        if self.times is not None:
            self.times.start[item.instruction] = clock()
        work = self.exchange.send(flat, self.part.device, item.peer, item.task)
        if self.times is not None and (spans := work.watch()):
            self.times.spans[item.instruction] = spans
        self.sends.add(work, item.instruction, self.times)

    def _post_until(self, place: int) -> None:
        """Post the receives whose transfers start by an item, and small ones before their time."""
        while self.receives and (
            self.receives[0].place <= place
            or self.posted_bytes + self.receives[0].bytes <= AHEAD_BYTES
        ):
            self._post(self.receives.popleft())

    def _finish_collectives(self) -> None:
        """Let go of what collectives that are done have held."""
        for instruction in [each for each in self.pending if each in self.group]:
            if instruction in self.pending and self.pending[instruction].is_done:
                self._await_in_order(instruction)

    def _await_in_order(self, instruction: int) -> None:
        """Wait for what its group did before it, too, which is done by then: sums that collectives
        add to must have the same bits in every run."""
        group = self.group.get(instruction)
        if group is not None and instruction in self.pending:
            for each in [each for each in self.pending if self.group.get(each) == group]:
                if each == instruction:
                    break
                self._await(each)
        self._await(instruction)

    def _post(self, receive: Receive) -> None:
        flat = self.worker.empty(receive)
        if self.times is not None:
            self.times.start[receive.instruction] = clock()
        work = self.exchange.receive(flat, receive.peer, self.part.device, receive.task)
        pending = _Pending(work, lambda: self.worker.accept(receive, flat), flat.numel())
        self.posted_bytes += pending.size
        self._wait_for(receive.instruction, pending, receive.peer)

    def _wait_for(self, instruction: int, pending: _Pending, peer: int) -> None:
        self.pending[instruction] = pending
        if self.times is None:
            return
        if spans := pending.work.watch():
            self.times.spans[instruction] = spans
            return
        pending.done = threading.Event()
        self.waiters.add(peer, pending, instruction, self.times)

    def _await(self, instruction: int) -> None:
        """Wait for a transfer or collective, unless somebody has; post a receive at last."""
        if instruction in self.over:
            return
        if instruction in self.sent_to:
            self._await_send(instruction)
            return
        while instruction in self.peer and instruction not in self.pending:
            self._post(self.receives.popleft())
        assert instruction in self.pending, f"{self.doing[instruction]}: must start before"
        pending = self.pending.pop(instruction)
        self.over.add(instruction)
        peer = self.peer.get(instruction, -1)
        progress = self.progress
        progress.doing = self.doing[instruction]
        progress.waits_for = (
            self.exchange.rank_of[peer] if peer >= 0 else self.others[self.group[instruction]]
        )
        if pending.done is not None:
            pending.done.wait()
            if self.waiters.error is not None:
                raise self.waiters.error
        pending.work.wait()
        progress.waits_for = NOBODY
        progress.count += 1
        self.posted_bytes -= pending.size
        if self.times is not None:
            self.times.finish.setdefault(instruction, clock())
        pending.finish()

    def _await_send(self, instruction: int) -> None:
        progress = self.progress
        progress.doing = self.doing[instruction]
        progress.waits_for = self.exchange.rank_of[self.sent_to[instruction]]
        self.sends.wait(instruction)
        progress.waits_for = NOBODY
        progress.count += 1
        self.over.add(instruction)

    def _drain(self) -> None:
        progress = self.progress
        progress.doing = "the end of its sends"
        peers = set(self.sent_to.values())
        progress.waits_for = tuple({self.exchange.rank_of[each] for each in peers}) or NOBODY
        self.sends.wait()
        progress.waits_for = NOBODY
        progress.count += 1


class _Sends:
    """Waits for sends in the order in which they were started, beside the main thread.

    What is sent must stay until it is gone, and gloo tells that to those only who wait.
    """

    def __init__(self) -> None:
        self.count = self.done = 0
        self.number: dict[int, int] = {}
        """By instruction how many were started up to its last one."""
        self.error: BaseException | None = None
        self.idle = threading.Condition()
        self.queue = Served(self._serve, "sends")

    def add(self, work: Communication, instruction: int, times: Times | None) -> None:
        """Take care of a send."""
        self.count += 1
        self.number[instruction] = self.count
        self.queue.put([work, instruction, times])

    def wait(self, instruction: int | None = None) -> None:
        """Return when one is done, and all before it; None: when all are."""
        count = self.count if instruction is None else self.number[instruction]
        with self.idle:
            self.idle.wait_for(lambda: self.done >= count or self.error is not None)
        if self.error is not None:
            raise self.error

    def _serve(self, entry: _Sent) -> None:
        work, instruction, times = entry
        entry.clear()
        try:
            work.until_done()
        except BaseException as error:
            self.error = error
        if times is not None:
            times.finish[instruction] = clock()
        del work  # what was sent is let go of before anybody hears that it is gone
        with self.idle:
            self.done += 1
            self.idle.notify_all()


class _Waiters:
    """A thread for every peer that notes when each receive is complete, and one for collectives."""

    def __init__(self) -> None:
        self.queues: dict[int, Served[_Received]] = {}
        self.error: BaseException | None = None

    def add(self, peer: int, pending: _Pending, instruction: int, times: Times) -> None:
        """Let a peer's thread wait for a receive."""
        if peer not in self.queues:
            self.queues[peer] = Served(self._serve, "receives")
        self.queues[peer].put((pending, instruction, times))

    def _serve(self, entry: _Received) -> None:
        pending, instruction, times = entry
        try:
            pending.work.until_done()
        except BaseException as error:
            self.error = error
        times.finish[instruction] = clock()
        assert pending.done is not None
        pending.done.set()
