"""Times the steps of a run by a clock that all ranks share."""

from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

from meshwright.execute.group import CommonClock, waiting
from meshwright.execute.lowered import Lowered
from meshwright.execute.message import gather
from meshwright.execute.progress import Progress
from meshwright.execute.walk import Times
from meshwright.simulate.measured import Run

T = TypeVar("T")

TIMED_STEPS = 3
"""The last so many steps are timed instruction by instruction; the middle one is kept."""


class Recorder:
    """Times steps, and the last of them instruction by instruction."""

    def __init__(
        self,
        lowered: Lowered,
        num_steps: int,
        watch: Progress | None,
        *,
        is_measured: bool = True,
    ) -> None:
        """`is_measured`: steps start together and the last ones are timed in full, which costs a
        barrier a step."""
        self.lowered, self.num_steps = lowered, num_steps
        self.watch, self.is_measured = watch, is_measured
        with waiting(watch, "setting the clock"):
            self.clock = CommonClock()
        self.spans: list[tuple[float, float]] = []
        self.times: dict[int, Times] = {}

    def step(self, run: Callable[[Times | None], T]) -> T:
        """Run a step, with times to fill where it is one of the last; what it returns."""
        number = len(self.spans)
        times = None
        if self.is_measured:
            with waiting(self.watch, "the common start of a step"):
                began = self.clock.start_together()
            if number >= self.num_steps - TIMED_STEPS:
                times = self.times[number] = Times()
        else:
            began = self.clock.now()
        made = run(times)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.spans.append((began, self.clock.now()))
        return made

    def measure_next(self) -> int:
        """Time the next step in full, where that is asked for and no step was; how many steps are
        still needed for it."""
        if not self.is_measured or self.times:
            return 0
        self.num_steps = len(self.spans) + 1
        return 1

    def finish(
        self,
        *,
        is_emulated: bool,
        losses: Any,
        software: dict[str, str],
        calls: dict[str, str] | None = None,
    ) -> Run:
        """The run; all ranks call it."""
        with waiting(self.watch, "the end"):
            spans = np.array(gather(self.spans, list[tuple[float, float]]))
        seconds = spans[:, :, 1].max(axis=0) - spans[:, :, 0].min(axis=0)
        program = self.lowered.program
        start, finish = np.full((2, program.num_instructions), np.nan)
        middle = 0
        if self.times:
            timed = sorted(self.times)
            middle = timed[int(np.argsort(seconds[timed])[len(timed) // 2])]
            origin = float(spans[:, middle, 0].min()) + self.clock.offset
            with waiting(self.watch, "the end"):
                known = gather((self.clock.offset, self.times[middle]), tuple[float, Times])
            for offset, own in known:
                shift = origin - self.clock.offset + offset
                for instruction, moment in own.start.items():
                    start[instruction] = moment - shift
                for instruction, moment in own.finish.items():
                    finish[instruction] = moment - shift
            finish = np.fmax(finish, start)
        return Run(
            device_names=program.device_names,
            losses=tuple(losses),
            step_seconds=tuple(seconds.tolist()),
            start=start[: self.lowered.num_planned],
            finish=finish[: self.lowered.num_planned],
            is_emulated=is_emulated,
            software=software,
            measured_step=middle,
            calls=calls or {},
        )
