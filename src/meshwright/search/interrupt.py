"""Ctrl-C while several searches follow each other: each may finish, but only for a moment.

A search that is interrupted judges its best plan so far, which on a large step takes seconds. Where
others have answered already, Ctrl-C is pressed once more for the user after that moment, and what
the search had is left out.
"""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

GRACE_SECONDS = 0.25
"""Of the second within which a search ends, for the plan that it was at."""


class Press:
    """Whether Ctrl-C is to be pressed again, and the clock that does it."""

    is_armed = False
    was_pressed = False
    """Whether the user has pressed; a search may have taken it for something else, or lost it."""
    is_own = False
    """Whether the clock has pressed."""
    _clock: threading.Timer | None = None

    def start(self) -> None:
        """Press again after the moment, once; it does nothing where nothing is armed."""
        if self.is_armed and self._clock is None:
            self._clock = threading.Timer(GRACE_SECONDS, self._press)
            self._clock.daemon = True
            self._clock.start()

    def _press(self) -> None:
        self.is_own = True
        # A signal, not _thread.interrupt_main, which does not wake a thread that waits.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def stop(self) -> None:
        """Press no more."""
        if self._clock is not None:
            self._clock.cancel()


@contextmanager
def pressed_again() -> Iterator[Press]:
    """Within this, Ctrl-C does what it did, and again after a moment where that is armed."""
    press = Press()
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or not callable(before):
        yield press  # no other thread receives signals
        return

    def handle(number: int, frame: FrameType | None) -> None:
        if press.is_own and not press.is_armed:  # the search has ended in the meantime
            return
        press.was_pressed = True
        press.start()
        before(number, frame)

    signal.signal(signal.SIGINT, handle)
    try:
        yield press
    finally:
        press.stop()
        signal.signal(signal.SIGINT, before)
