"""Threads that call torch, and how a process ends that still has some.

A daemon thread that comes back from torch's code while the interpreter ends is made to exit in the
midst of C++, which aborts the process ("terminate called without an active exception"). A thread
that has to be joined instead may keep the process from ending at all, because a call of the store
blocks as long as another process is stopped. So before the interpreter ends threads are told to end
(after a fault nobody else has told them) and waited for, for a bounded time, and what is left then
is left to the operating system.
"""

import atexit
import os
import queue
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from typing import Any, Generic, TypeVar

END_SECONDS = 10.0
"""So long the end of the process waits for its threads; those of a run that has ended are done as
soon as the store answers or has gone. torchrun kills the other ranks 30 s after one has failed."""

_JOIN_SECONDS = 2.0
"""A thread is waited for so long when its queue is closed: it may be stuck in a lost connection."""

_started: "weakref.WeakKeyDictionary[threading.Thread, Callable[[], None]]" = (
    weakref.WeakKeyDictionary()
)
"""The threads, and what tells each of them to end."""


def start_thread(
    work: Callable[..., None], name: str, *args: Any, end: Callable[[], None] = lambda: None
) -> threading.Thread:
    """Start a thread that may call torch; `end` tells it to end when it has done what it has."""
    thread = threading.Thread(target=work, args=args, name=f"meshwright-{name}", daemon=True)
    _started[thread] = end
    thread.start()
    return thread


Entry = TypeVar("Entry")


class Served(Generic[Entry]):
    """A queue whose entries a thread of its own takes one after the other."""

    def __init__(self, serve: Callable[[Entry], None], name: str) -> None:
        """`serve` is called with each entry."""
        self._serve = serve
        self._queue: queue.SimpleQueue[Entry | None] = queue.SimpleQueue()
        self.thread = start_thread(self._run, name, end=partial(self._queue.put, None))

    def put(self, entry: Entry) -> None:
        """Add an entry after all others."""
        self._queue.put(entry)

    def close(self) -> None:
        """End the thread after what it has, so that none is in torch when the interpreter ends."""
        self._queue.put(None)
        self.thread.join(_JOIN_SECONDS)

    def _run(self) -> None:
        while (entry := self._queue.get()) is not None:
            self._serve(entry)
            del entry  # and with it the buffers of the communication that it was


@atexit.register
def _wait_for_threads() -> None:
    until = time.monotonic() + END_SECONDS
    for end in tuple(_started.values()):
        end()
    for thread in tuple(_started):
        thread.join(max(0.0, until - time.monotonic()))
    if any(thread.is_alive() for thread in _started):
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(int(hasattr(sys, "last_value")))  # it is there after an error that nobody caught
