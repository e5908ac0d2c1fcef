"""Signals that are handled otherwise for a while. Knows nothing of what they are for."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

Handler = Callable[[int, FrameType | None], None] | signal.Handlers


@contextmanager
def handled_signals(handle: Handler, *numbers: int) -> Iterator[None]:
    """Within this some signals are handled so; in a thread that receives none they are not."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def held_signals(*numbers: int) -> Iterator[None]:
    """Within this some signals wait until the end."""
    caught: list[int] = []
    try:
        with handled_signals(lambda number, _frame: caught.append(number), *numbers):
            yield
    finally:
        if caught:
            signal.raise_signal(caught[0])
