"""Communication under way: what there is to wait for, and collectives that wait in line.

Knows nothing of process groups.
"""

import queue
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from meshwright.execute.thread import start_thread

_JOIN_SECONDS = 2.0
"""As in `meshwright.execute.walk`."""


class Work(Protocol):
    """Communication under way."""

    def wait(self) -> None:
        """Return when it is done; on a CUDA stream, when what follows will find it done."""


@dataclass(slots=True)
class Plain:
    """torch's work, and what must stay alive until it is done."""

    work: Any
    keep: Any

    def wait(self) -> None:
        """Return when it is done."""
        self.work.wait()
        self.keep = None


@dataclass(slots=True)
class All:
    """Several works as one."""

    works: Sequence[Work]

    def wait(self) -> None:
        """Return when it is done."""
        for each in self.works:
            each.wait()


@dataclass(slots=True)
class Staged:
    """Work on a copy on the host, brought to the device when it is done."""

    work: Any
    host: torch.Tensor
    target: torch.Tensor

    def wait(self) -> None:
        """Return when it is done."""
        self.work.wait()
        self.target.copy_(self.host)


@dataclass(slots=True)
class _Queued:
    """A collective that waits for its turn."""

    start: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.start().wait()
        except BaseException as error:  # raised again by whoever waits
            self.error = error
        self.done.set()

    def wait(self) -> None:
        self.done.wait()
        if self.error is not None:
            raise self.error


class Line:
    """Runs collectives one after the other, beside the threads that ask for them."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self.thread = start_thread(self._serve, "collectives")

    def add(self, start: Callable[[], Any]) -> Work:
        """Start a collective after all that came before."""
        queued = _Queued(start)
        self.queue.put(queued)
        return queued

    def close(self) -> None:
        """End the thread after what it has."""
        self.queue.put(None)
        self.thread.join(_JOIN_SECONDS)

    def _serve(self) -> None:
        while (queued := self.queue.get()) is not None:
            queued.run()
            del queued


@dataclass(slots=True)
class StagedMany:
    """Like `Staged`, for several tensors."""

    work: Any
    hosts: list[torch.Tensor]
    targets: list[torch.Tensor]

    def wait(self) -> None:
        """Return when it is done."""
        self.work.wait()
        for host, target in zip(self.hosts, self.targets, strict=True):
            target.copy_(host)


def join_works(works: Sequence[Any]) -> Work:
    """One work for all pieces of a message."""
    only: Work = works[0]
    return only if len(works) == 1 else All(works)
