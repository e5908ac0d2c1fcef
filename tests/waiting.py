"""Waiting for other processes, however busy the machine is."""

from collections.abc import Callable
from time import sleep
from typing import TypeVar

T = TypeVar("T")
_LOOKS = 20_000
"""Minutes on an idle machine, and more of them on a busy one: only what hangs needs them."""


def wait_until(claim: Callable[[], T]) -> T:
    """What the claim returns, as soon as that is true; it is looked at again and again."""
    for _ in range(_LOOKS):
        if found := claim():
            return found
        sleep(0.01)
    raise AssertionError("it did not come true")
