"""Functions that engines evaluate in tests; workers find them by the name of this module."""

import os
import signal
import time

from meshwright.errors import InputError


def add(context: int, item: int) -> int:
    return context + item


def add_slowly(context: int, item: int) -> int:
    time.sleep(0.05)
    return context + item


def where(_context: object, _item: object) -> int:
    time.sleep(0.05)
    return os.getpid()


def refuse_odd(_context: object, item: int) -> int:
    time.sleep(0.01 * (item % 3))
    if item % 2:
        raise InputError(f"item: must be even, got {item}")
    return item


def count_calls(context: list[int], _item: object) -> int:
    """How often this context, kept by a worker, was met."""
    time.sleep(0.02)
    context.append(1)
    return len(context)


def stop_elsewhere(context: tuple[int, int], item: int) -> int:
    """Send a signal to a process that is not the search's own."""
    time.sleep(0.05)
    if os.getpid() != context[0]:
        os.kill(os.getpid(), signal.Signals(context[1]))
    return item
