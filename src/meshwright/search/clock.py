"""The time that a search has, Ctrl-C, and whether enough was found: one object says whether a
search is to stop, and why.

A search asks its clock and nothing else. Parts of a search get clocks of their own, which end
earlier, hear the same Ctrl-C and tell the whole what they had to leave out. Knows nothing of what
is searched.
"""

import math
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter
from types import FrameType

from meshwright.plan.answer import Stop

GRACE_SECONDS = 0.25
"""How long a hurried search may go on after Ctrl-C, to judge the plan that it was at: a part of the
second within which a search ends."""


class Clock:
    """A budget that runs from now on, and whether Ctrl-C has been pressed."""

    def __init__(self, seconds: float = math.inf) -> None:
        self.started = perf_counter()
        self.until = self.started + seconds
        """When the time is over, by `perf_counter`."""
        self.is_cut = False
        """Whether the end of the time, or another limit, has left something out."""
        self._told: Clock | None = None
        self._press = _Press()

    @property
    def elapsed(self) -> float:
        """The seconds since it was started."""
        return perf_counter() - self.started

    @property
    def seconds(self) -> float:
        """The whole time, from start to end."""
        return self.until - self.started

    @property
    def left(self) -> float:
        """The seconds that are left; negative when the time is over."""
        return self.until - perf_counter()

    @property
    def is_over(self) -> bool:
        """Whether to stop now: a look at the time. That the time is over counts as a cut."""
        if self._press.is_heard or self._press.is_satisfied:
            return True
        is_late = perf_counter() >= self.until
        if is_late:
            self.cut()
        return is_late

    def look(self) -> None:
        """Note if the time is over: what a search has not come to by then is cut."""
        _ = self.is_over

    @property
    def is_interrupted(self) -> bool:
        """Whether Ctrl-C has been pressed."""
        return self._press.is_heard

    @property
    def is_satisfied(self) -> bool:
        """Whether what was asked for has been found."""
        return self._press.is_satisfied

    @property
    def stop(self) -> Stop:
        """Why a search that has proven nothing stopped."""
        if self._press.is_heard:
            return Stop.INTERRUPTED
        if self._press.is_satisfied:
            return Stop.GAP
        return Stop.LIMIT if self.is_cut else Stop.ENDED

    def cut(self) -> None:
        """Note that a limit has left something out, here and in all that this is a part of."""
        clock: Clock | None = self
        while clock is not None:
            clock.is_cut = True
            clock = clock._told

    def first(self, part: float, *, tells: bool = True) -> "Clock":
        """A clock for the first part of the whole time; without a look at the time.

        Unless it `tells`, what it cuts short does not count as a cut of the whole.
        """
        return self._part(self.started, part * self.seconds, tells=tells)

    def rest(self, part: float, *, tells: bool = True) -> "Clock":
        """A clock for a part of the time that is left."""
        now = perf_counter()
        return self._part(now, part * max(0.0, self.until - now), tells=tells)

    def within(self, seconds: float, *, tells: bool = True) -> "Clock":
        """A clock for so many seconds from now on, or for the time that is left if that is less."""
        now = perf_counter()
        return self._part(now, min(seconds, self.until - now), tells=tells)

    def more(self, seconds: float) -> "Clock":
        """A clock for so many seconds from now on, on top of what is left; it does not tell."""
        part = self._part(0.0, 0.0, tells=False)
        part.started = perf_counter()
        part.until = part.started + seconds
        return part

    def sooner(self, seconds: float) -> "Clock":
        """A clock that ends so many seconds earlier; without a look at the time."""
        return self._part(self.started, self.seconds - seconds, tells=True)

    def _part(self, started: float, seconds: float, *, tells: bool) -> "Clock":
        part = Clock.__new__(Clock)
        part.started, part.is_cut = started, False
        part.until = started + seconds
        part._told, part._press = self if tells else None, self._press
        return part

    def interrupt(self) -> None:
        """Note that Ctrl-C was pressed."""
        self._press.is_heard = True

    def satisfy(self) -> None:
        """Note that what was asked for has been found: all parts of the search end."""
        self._press.is_satisfied = True

    @contextmanager
    def heard(self) -> Iterator[None]:
        """A block that Ctrl-C ends, and no more than it: the rest of the search is told."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupt()

    @contextmanager
    def hurried(self, *, is_hurried: bool = True) -> Iterator[None]:
        """A block that may go on for a moment only after Ctrl-C, then it is pressed once more."""
        self._press.is_hurried = is_hurried
        try:
            yield
        finally:
            self._press.is_hurried = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """A block in which Ctrl-C is noted even if its exception is lost, as in a finaliser.

        Only the main thread receives signals: in others the block is run as it is.
        """
        before = signal.getsignal(signal.SIGINT)
        if threading.current_thread() is not threading.main_thread() or not callable(before):
            yield
            return
        press = self._press

        def handle(number: int, frame: FrameType | None) -> None:
            if press.is_own and not press.is_hurried:  # the search has ended in the meantime
                return
            press.is_heard = True
            press.repeat()
            before(number, frame)

        signal.signal(signal.SIGINT, handle)
        try:
            yield
        finally:
            press.stop()
            signal.signal(signal.SIGINT, before)


class _Press:
    """What all parts of a search hear: Ctrl-C, with the timer that presses it once more, and that
    enough was found."""

    is_heard = False
    """Whether Ctrl-C was pressed."""
    is_satisfied = False
    """Whether what was asked for has been found."""
    is_hurried = False
    """Whether it is to be pressed again after a moment."""
    is_own = False
    """Whether the timer has pressed."""
    _timer: threading.Timer | None = None

    def repeat(self) -> None:
        """Press again after a moment, once, where the search is hurried."""
        if self.is_hurried and self._timer is None:
            self._timer = threading.Timer(GRACE_SECONDS, self._again)
            self._timer.daemon = True
            self._timer.start()

    def _again(self) -> None:
        self.is_own = True
        # A signal, not _thread.interrupt_main, which does not wake a thread that waits.
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    def stop(self) -> None:
        """Send no further Ctrl-C."""
        if self._timer is not None:
            self._timer.cancel()
