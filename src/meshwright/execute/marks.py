"""Moments during a step, from which the times of its instructions are read.

A mark is taken before the first call of a segment and after each; a call runs one instruction, or
those of a compiled region.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from meshwright.execute.walk import Times, clock


class Marks:
    """The marks of the segments of a step."""

    def __init__(self, device: torch.device, seconds: npt.NDArray[np.float64]) -> None:
        """`seconds`: how long each instruction of the program was predicted to take."""
        self.device, self.seconds = device, seconds
        self.taken: list[tuple[tuple[int, ...], tuple[int, ...], list[Any]]] = []

    def begin(self, instructions: tuple[int, ...], calls: tuple[int, ...]) -> Callable[[], None]:
        """What takes a mark, for a segment whose calls run so many instructions each."""
        marks: list[Any] = []
        self.taken.append((instructions, calls, marks))
        if self.device.type != "cuda":
            return lambda: marks.append(clock())

        def mark() -> None:
            event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            event.record()
            marks.append(event)

        return mark

    def read(self, times: Times) -> None:
        """Turn the marks into times of instructions, and forget them."""
        origin, began = None, 0.0
        if self.device.type == "cuda" and self.taken:
            origin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
            origin.record()
            origin.synchronize()
            began = clock()
        for instructions, calls, marks in self.taken:
            moments = marks
            if origin is not None:
                moments = [began - each.elapsed_time(origin) / 1000 for each in marks]
            first = 0
            for count, (start, finish) in zip(calls, pairwise(moments), strict=True):
                self._share(instructions[first : first + count], start, finish, times)
                first += count
        self.taken.clear()

    def _share(
        self, instructions: Sequence[int], start: float, finish: float, times: Times
    ) -> None:
        """Share the time of a call among its instructions, in proportion to what was predicted."""
        seconds = self.seconds[list(instructions)]
        shares = seconds / seconds.sum() if seconds.sum() > 0 else seconds + 1 / len(seconds)
        bounds = [start, *(start + (finish - start) * shares.cumsum()).tolist()]
        for instruction, between in zip(instructions, pairwise(bounds), strict=True):
            times.start[instruction], times.finish[instruction] = between
