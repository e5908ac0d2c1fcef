"""Ctrl-C: notice it, or hold it back for a moment."""

import signal
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType

from meshwright.signals import handled_signals, held_signals


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

    with handled_signals(handle, signal.SIGINT):
        yield notice


def held_interrupt() -> AbstractContextManager[None]:
    """Within this, Ctrl-C waits until the end."""
    return held_signals(signal.SIGINT)
