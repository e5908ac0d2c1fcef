"""Communication of a CUDA device's tensors beside what the device computes.

Copies run on a stream of their own, by way of pinned memory, and a thread of their lane waits for
them: the thread that launches kernels waits for no copy, and kernels wait for one only where its
result is read. Gloo needs this, which moves the host's memory only; NCCL brings its own streams,
which are waited for here without holding up the main one. Pinned memory is taken when the turn of
a transfer has come, so that there is as much as lanes at work need; torch keeps it for the next,
and gives none away that a copy still reads (`torch.empty(..., pin_memory=True)`).
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from meshwright.execute.work import (
    Communication,
    EventSpan,
    Finish,
    LaneQueue,
    Plain,
    Together,
    Waitable,
)

Begin = Callable[[Sequence[torch.Tensor], Sequence[torch.Tensor]], Any]
"""Starts to send tensors and to fill others with what arrives; returns torch's work."""


class Side(Protocol):
    """A stream beside the main one of a device, for the work of one lane."""

    def mark(self) -> Any:
        """An event of the main stream: it has done all that it was given so far."""

    def fetch(self, tensors: Sequence[torch.Tensor], after: Any) -> list[torch.Tensor]:
        """Copy tensors to the host after an event; returns when they are there."""

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        """Memory of the host for the numbers of a tensor."""

    def bring(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], after: Any) -> Any:
        """Start to fill tensors with those of the host after an event; the event of its end."""

    def follow(self, work: Waitable) -> Any:
        """An event of this stream: torch's work on a third stream is done."""

    def hold_back(self, event: Any) -> None:
        """Let the main stream wait for an event."""


class CudaSide:
    """A CUDA stream; the main one is the current one of the thread that asks."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def mark(self) -> Any:
        """An event of the main stream."""
        return self._record(torch.cuda.current_stream(self.device))

    def fetch(self, tensors: Sequence[torch.Tensor], after: Any) -> list[torch.Tensor]:
        """Copy tensors to the host."""
        if not tensors:
            return []
        hosts = [self.room(each) for each in tensors]
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(after)
            for host, tensor in zip(hosts, tensors, strict=True):
                host.copy_(tensor, non_blocking=True)
        self._record(self.stream).synchronize()
        return hosts

    def room(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pinned memory for the numbers of a tensor."""
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)

    def bring(self, pairs: Iterable[tuple[torch.Tensor, torch.Tensor]], after: Any) -> Any:
        """Start to fill tensors, whose memory others may have used until the event."""
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(after)
            for host, tensor in pairs:
                tensor.copy_(host, non_blocking=True)
        return self._record(self.stream)

    def follow(self, work: Waitable) -> Any:
        """An event after torch's work."""
        with torch.cuda.stream(self.stream):
            work.wait()
        return self._record(self.stream)

    def hold_back(self, event: Any) -> None:
        """Let the main stream wait."""
        torch.cuda.current_stream(self.device).wait_event(event)

    def _record(self, stream: Any) -> Any:
        # A thread that waits sleeps: lanes wait for as long as the device computes.
        event = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        event.record(stream)
        return event


class Staged:
    """Communication by way of the host: a turn in a line copies out, communicates and copies back.

    What is read and filled stays until the device is known to be done with it. So the allocator,
    which orders by the main stream, hands none of it out too early.
    """

    def __init__(
        self,
        side: Side,
        given: Sequence[torch.Tensor],
        found: Sequence[torch.Tensor],
        begin: Begin,
    ) -> None:
        """`given` is sent and `found` filled, which may be the same tensors."""
        self.side, self.given, self.found, self.begin = side, given, found, begin
        self.span = EventSpan(start=side.mark())
        self.rooms: list[torch.Tensor] = []
        self.work: Plain | None = None
        self.turn: Communication | None = None
        self.finishes: list[Finish] = []

    def post(self) -> None:
        """Begin before its turn, as receives do: their turn is to wait for them."""
        self.rooms = [self.side.room(each) for each in self.found]
        self.work = Plain(self.begin((), self.rooms), self.rooms)

    def enter(self, line: LaneQueue) -> "Staged":
        """Stand in a line."""
        self.turn = line.add(self._carry)
        return self

    def _carry(self) -> Waitable:
        if self.work is None:
            hosts = self.side.fetch(self.given, self.span.start)
            known = dict(zip(map(id, self.given), hosts, strict=True))
            self.rooms = [
                known[id(each)] if id(each) in known else self.side.room(each)
                for each in self.found
            ]
            self.given = ()  # on the host by now
            self.work = Plain(self.begin(hosts, self.rooms), (hosts, self.rooms))
        if self.found:
            self.work.wait()
            pairs = zip(self.rooms, self.found, strict=True)
            self.span.finish = self.side.bring(pairs, self.span.start)
            self.rooms = []
        # What brings nothing is waited for by who wants to know, so that the line goes on.
        return Together(())

    def until_done(self) -> None:
        """Return when it is done."""
        assert self.turn is not None
        self.turn.wait()
        if self.span.finish is not None:
            self.span.finish.synchronize()
        elif self.work is not None:
            self.work.wait()

    def wait(self) -> None:
        """Return when what follows on the main stream will find it done."""
        assert self.turn is not None
        self.turn.wait()
        if self.span.finish is None:
            self.until_done()
        elif self.found:
            self.side.hold_back(self.span.finish)
        self.found = ()
        while self.finishes:
            self.finishes.pop(0)()

    @property
    def is_done(self) -> bool:
        """Whether nothing would wait for it, the device neither."""
        assert self.turn is not None
        finish = self.span.finish
        return self.turn.is_done and (finish is None or bool(finish.query()))

    def then(self, finish: Finish) -> None:
        """Do something in `wait`, on the main stream."""
        self.finishes.append(finish)

    def watch(self) -> Sequence[EventSpan]:
        """The events that it has anyway: the host runs ahead of its device, so communication is
        ready, and a receive posted, when the main stream has come to it."""
        return (self.span,)


@dataclass(slots=True)
class Launched:
    """torch's work on a stream of its own, as NCCL's is: its `wait` holds up the main stream."""

    plain: Plain
    side: Side

    def until_done(self) -> None:
        """Return when it is done, without the main stream."""
        self.side.follow(self.plain.work).synchronize()

    def wait(self) -> None:
        """Let the main stream wait for it."""
        self.plain.wait()

    @property
    def is_done(self) -> bool:
        """Whether the device is done with it."""
        return self.plain.is_done

    def then(self, finish: Finish) -> None:
        """Do something in `wait`, on the main stream."""
        self.plain.then(finish)

    def watch(self) -> Sequence[EventSpan]:
        """Events from when the main stream had come to it until it was done."""
        return (EventSpan(start=self.side.mark(), finish=self.side.follow(self.plain.work)),)
