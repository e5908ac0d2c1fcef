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
        """Turn the marks, and what the device timed of communication, into times of instructions;
        forget them."""
        seconds = self._reader() if self.taken or times.spans else float
        for instructions, calls, marks in self.taken:
            moments = [seconds(each) for each in marks]
            first = 0
            for count, (start, finish) in zip(calls, pairwise(moments), strict=True):
                self._share(instructions[first : first + count], start, finish, times)
                first += count
        for instruction, spans in times.spans.items():
            times.start[instruction] = seconds(spans[0].start)
            if spans[-1].finish is not None:
                times.finish[instruction] = seconds(spans[-1].finish)
        self.taken.clear()
        times.spans.clear()

    def _reader(self) -> Callable[[Any], float]:
        """What gives the moment of a mark by the host's clock."""
        if self.device.type != "cuda":
            return float
        origin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(self.device)
        origin.record()
        origin.synchronize()
        began = clock()
        return lambda event: began - float(event.elapsed_time(origin)) / 1000

    def _share(
        self, instructions: Sequence[int], start: float, finish: float, times: Times
    ) -> None:
        """Share the time of a call among its instructions, in proportion to what was predicted."""
        seconds = self.seconds[list(instructions)]
        shares = seconds / seconds.sum() if seconds.sum() > 0 else seconds + 1 / len(seconds)
        bounds = [start, *(start + (finish - start) * shares.cumsum()).tolist()]
        for instruction, between in zip(instructions, pairwise(bounds), strict=True):
            times.start[instruction], times.finish[instruction] = between
