"""Times the steps of a run by a clock that all ranks share."""

from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from meshwright.capture.torch_private import spin
from meshwright.execute.group import CommonClock, waiting
from meshwright.execute.lowered import Lowered
from meshwright.execute.message import gather
from meshwright.execute.progress import Progress
from meshwright.execute.walk import Times
from meshwright.simulate.measured import TIMED_STEPS, Run

T = TypeVar("T")

_BEHIND = 2
"""So many steps later a GPU is done with a step, or nearly so: nobody waits for its times."""
_CYCLES = 1_000_000
"""Half a millisecond of a GPU."""
Mark = float | torch.cuda.Event
"""A moment of the common clock, or one that a GPU comes to."""


class Recorder:
    """Times steps, and the last of them instruction by instruction.

    A GPU's steps are timed by its own clock while its host runs ahead: as training goes on, a step
    does not wait for its first kernels to be launched, nor its host for the last ones. Only where
    ranks must begin together does a step begin on an idle device.

    A GPU that waits for no other rank is held until its host has launched what is timed in full:
    an op then takes what the GPU takes for it, as in a step that is replayed, and not what the host
    takes to come to it.
    """

    def __init__(
        self,
        lowered: Lowered,
        num_steps: int,
        watch: Progress | None,
        device: torch.device,
        *,
        is_measured: bool = True,
    ) -> None:
        """`is_measured`: steps of several ranks start together, which costs a barrier a step, and
        the last ones are timed in full."""
        self.lowered, self.num_steps = lowered, num_steps
        self.watch, self.device, self.is_measured = watch, device, is_measured
        with waiting(watch, "setting the clock"):
            self.clock = CommonClock()
        self.marks: deque[tuple[Mark, Mark]] = deque()
        """When steps began and ended, of those that are not read yet."""
        self.spans: list[tuple[float, float]] = []
        """The same of those before, by the common clock."""
        self.began: Mark = 0.0
        """The step that runs now."""
        self.times: dict[int, Times] = {}
        if device.type == "cuda":
            torch.cuda.synchronize(device)
            self.known = _gpu_mark(), self.clock.now()

    def step(self, run: Callable[[Times | None], T]) -> T:
        """Run a step, with times to fill where it is one of the last; what it returns."""
        number, times = len(self.spans) + len(self.marks), None
        if self.is_measured and number >= self.num_steps - TIMED_STEPS:
            times = self.times[number] = Times()
        if times is not None or (self.is_measured and dist.is_initialized()):
            self.began = self._start_together()
        else:
            self.began = self._mark()
        if times is not None and self.device.type == "cuda" and not dist.is_initialized():
            times.when_fed = self._hold
        made = run(times)
        self.marks.append((self.began, self._mark()))
        while len(self.marks) > _BEHIND:
            self._read()
        return made

    def _hold(self) -> None:
        """Keep the GPU at work until the step is launched, which begins after that."""
        timed = (self.spans[number] for number in self.times if number < len(self.spans))
        # The first one that is timed waited for its host, and took no less than its launches.
        seconds = max((ended - began for began, ended in timed), default=0.0)
        if seconds > 0:
            _spin(seconds)
            self.began = self._mark()

    def _start_together(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
            while self.marks:
                self._read()
            self.known = _gpu_mark(), self.clock.now()  # a GPU's clock goes its own way
        with waiting(self.watch, "the common start of a step"):
            return self.clock.start_together()

    def _mark(self) -> Mark:
        """This moment: a GPU's comes when it is done with what it was given so far."""
        return _gpu_mark() if self.device.type == "cuda" else self.clock.now()

    def _read(self) -> None:
        """Read the oldest marks, once they are there."""
        began, ended = map(self._moment, self.marks.popleft())
        self.spans.append((began, ended))

    def _moment(self, mark: Mark) -> float:
        if isinstance(mark, float):
            return mark
        mark.synchronize()
        # Milliseconds come in 32 bits: from mark to mark they are few, since the start they are
        # not.
        event, moment = self.known
        self.known = mark, moment + float(event.elapsed_time(mark)) / 1000
        return self.known[1]

    def measure_next(self) -> int:
        """Time the next step in full, where that is asked for and no step was; how many steps are
        still needed for it."""
        if not self.is_measured or self.times:
            return 0
        self.num_steps = len(self.spans) + len(self.marks) + 1
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
        while self.marks:
            self._read()
        with waiting(self.watch, "the end"):
            spans = np.array(gather(self.spans, list[tuple[float, float]]))
        if self.is_measured:
            seconds = spans[:, :, 1].max(axis=0) - spans[:, :, 0].min(axis=0)
        else:  # ranks did not begin together, and their GPUs' clocks are apart
            seconds = (spans[:, :, 1] - spans[:, :, 0]).max(axis=0)
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


def _gpu_mark() -> torch.cuda.Event:
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _spin(seconds: float) -> None:
    """Keep a GPU at work for so long, by the pace at which it does that now."""
    began = _gpu_mark()
    spin(_CYCLES)  # type: ignore[no-untyped-call]
    ended = _gpu_mark()
    ended.synchronize()
    cycles = round(_CYCLES * 1000 * seconds / began.elapsed_time(ended))
    spin(cycles)  # type: ignore[no-untyped-call]
