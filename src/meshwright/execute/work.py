"""Communication under way: what there is to wait for, and collectives that wait in line.

Knows nothing of process groups.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from meshwright.execute.thread import Served

Finish = Callable[[], object]
"""What is done with what communication brought."""


class Waitable(Protocol):
    """Something whose end can be waited for."""

    def wait(self) -> None:
        """Return when it is done; on a CUDA stream, when what follows will find it done."""


@dataclass(slots=True)
class EventSpan:
    """When communication was ready to start and when it was done, as CUDA events."""

    start: Any
    finish: Any = None
    """None: not known yet, or to the host's clock only."""


class Communication(Waitable, Protocol):
    """Communication under way, whose end can be waited for in several ways."""

    def until_done(self) -> None:
        """Return when it is done; any thread may call it, because no stream is made to wait."""

    @property
    def is_done(self) -> bool:
        """Whether it is known to be done, so that nobody would wait."""

    def then(self, finish: Finish) -> None:
        """Do something when it is done: beside the main thread, or else before `wait` returns."""

    def watch(self) -> Sequence[EventSpan]:
        """Let the device time it; none: whoever waits until it is done knows when that is."""


@dataclass(slots=True)
class Plain:
    """torch's work, and what must stay alive until it is done."""

    work: Any
    keep: Any
    finishes: list[Finish] = field(default_factory=list)
    is_over: bool = False

    def until_done(self) -> None:
        """Return when it is done; gloo would wait for another message if it was asked twice."""
        if not self.is_over:
            self.work.wait()
            self.is_over = True

    def wait(self) -> None:
        """Return when it is done."""
        self.until_done()
        self.keep = None
        while self.finishes:
            self.finishes.pop(0)()

    @property
    def is_done(self) -> bool:
        """Whether it is known to be done; gloo tells those only who wait."""
        return bool(self.work.is_completed())

    def then(self, finish: Finish) -> None:
        """Do something in `wait`."""
        self.finishes.append(finish)

    def watch(self) -> Sequence[EventSpan]:
        """No span, because the host's clock times it."""
        return ()


@dataclass(slots=True)
class All:
    """Several works as one, which end in their order."""

    works: Sequence[Communication]

    def until_done(self) -> None:
        """Return when all are done."""
        for each in self.works:
            each.until_done()

    def wait(self) -> None:
        """Return when it is done."""
        for each in self.works:
            each.wait()

    @property
    def is_done(self) -> bool:
        """Whether all are known to be done."""
        return all(each.is_done for each in self.works)

    def then(self, finish: Finish) -> None:
        """Do something after the last."""
        self.works[-1].then(finish)

    def watch(self) -> Sequence[EventSpan]:
        """The spans of all works."""
        return [span for each in self.works for span in each.watch()]


class _Queued:
    """A collective that waits for its turn, and what is done when it ends."""

    def __init__(self, start: Callable[[], Waitable]) -> None:
        self.start: Callable[[], Waitable] | None = start
        self.finishes: list[Finish] = []
        self.is_over = False
        self.lock = threading.Lock()
        self.done = threading.Event()
        self.error: BaseException | None = None

    def run(self) -> None:
        assert self.start is not None
        try:
            self.start().wait()
            self.start = None  # and with it what was sent
            with self.lock:
                self.is_over = True
                while self.finishes:
                    self.finishes.pop(0)()
        except BaseException as error:  # raised again by whoever waits
            self.error = error
        self.done.set()

    def wait(self) -> None:
        self.done.wait()
        if self.error is not None:
            raise self.error

    until_done = wait

    @property
    def is_done(self) -> bool:
        return self.done.is_set()

    def watch(self) -> Sequence[EventSpan]:
        return ()

    def then(self, finish: Finish) -> None:
        with self.lock:
            if not self.is_over:
                self.finishes.append(finish)
                return
        finish()


class LaneQueue:
    """Runs collectives one after the other, beside the threads that ask for them."""

    def __init__(self) -> None:
        self.queue = Served(torch.no_grad()(_Queued.run), "collectives")

    def add(self, start: Callable[[], Waitable]) -> Communication:
        """Start a collective after all that came before."""
        queued = _Queued(start)
        self.queue.put(queued)
        return queued

    def close(self) -> None:
        """End the thread after what it has."""
        self.queue.close()


@dataclass(frozen=True, slots=True)
class Together:
    """torch's works for the pieces of a message."""

    pieces: Sequence[Any]

    def wait(self) -> None:
        """Return when all are done."""
        for each in self.pieces:
            each.wait()

    def is_completed(self) -> bool:
        """Whether all are known to be done, as torch's works say it."""
        return all(each.is_completed() for each in self.pieces)


def join_works(works: Sequence[Any]) -> Any:
    """One work for all pieces of a message."""
    return works[0] if len(works) == 1 else Together(works)
