"""How much work a call is, counted in the lines of Python that it runs: the same on any machine,
however busy. What compiled code does is not counted."""

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, TypeVar

T = TypeVar("T")


def count_lines(call: Callable[[], T]) -> tuple[T, int]:
    """What the call returns, and the lines that it runs; one that is run again counts again."""
    lines = 0

    def trace(_frame: FrameType, event: str, _argument: object) -> Any:
        nonlocal lines
        lines += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        return call(), lines
    finally:
        sys.settrace(before)
