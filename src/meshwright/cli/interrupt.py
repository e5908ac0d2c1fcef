"""Ctrl-C: notice it, or hold it back for a moment."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


class Notice:
    """Whether Ctrl-C was pressed."""

    was_pressed = False


@contextmanager
def noticed_interrupt() -> Iterator[Notice]:
    """Within this, Ctrl-C raises KeyboardInterrupt as ever, and is noted.

    A search catches it and returns its best plan so far: the note tells that from a search that
    ended by itself.
    """
    notice = Notice()

    def handle(number: int, frame: FrameType | None) -> None:
        notice.was_pressed = True
        signal.default_int_handler(number, frame)

    if threading.current_thread() is not threading.main_thread():
        yield notice  # no other thread receives signals
        return
    before = signal.signal(signal.SIGINT, handle)
    try:
        yield notice
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def held_interrupt() -> Iterator[None]:
    """Within this, Ctrl-C waits until the end."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    caught: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, _frame: caught.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if caught:
            signal.raise_signal(signal.SIGINT)
