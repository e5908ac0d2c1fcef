"""What each device's step went to: compute, communication, waiting, overhead.

A moment in which a device computes is compute. In any other moment it waits for something, and the
chain of what waited for what (`Timeline.cause`) says what was going on there. The four add up to
the step. Knows nothing of which of two timelines is the prediction.
"""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats
from meshwright.program.program import JOINS, Kind
from meshwright.simulate.timeline import Timeline

COMPUTING = (Kind.COMPUTE, *JOINS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds of one device's step, or of several devices' steps."""

    compute_seconds: float
    communication_seconds: float
    """Idle while what is awaited is under way on the network."""
    waiting_seconds: float
    """Idle until another device has computed what is awaited, or has got round to it."""
    overhead_seconds: float
    """Idle although all that the next instruction needs is there."""

    @property
    def total_seconds(self) -> float:
        """The step; of several devices the sum."""
        busy = self.compute_seconds + self.communication_seconds
        return busy + self.waiting_seconds + self.overhead_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tasks:
    """Tasks as plain lists, which a walk from one to the next reads faster than arrays."""

    start: list[float]
    finish: list[float]
    cause: list[int]
    communicates: list[bool]

    @staticmethod
    def of(timeline: Timeline) -> "_Tasks":
        rows = timeline.program.instructions
        start, finish = task_times(timeline)
        communicates = np.zeros(len(timeline.cause), dtype=np.bool_)
        communicates[rows["task"]] = ~np.isin(rows["kind"], COMPUTING)
        return _Tasks(
            start=start.tolist(),
            finish=finish.tolist(),
            cause=timeline.cause.tolist(),
            communicates=communicates.tolist(),
        )


def task_times(timeline: Timeline) -> tuple[Floats, Floats]:
    """By task: when its last member was ready, and when it was done."""
    start, finish = np.zeros(len(timeline.cause)), np.zeros(len(timeline.cause))
    np.maximum.at(start, timeline.program.instructions["task"], timeline.start)
    np.maximum.at(finish, timeline.program.instructions["task"], timeline.finish)
    return start, finish


def break_down(timeline: Timeline) -> tuple[Breakdown, ...]:
    """The breakdown of each device's step."""
    rows = timeline.program.instructions
    tasks = _Tasks.of(timeline)
    computes = np.isin(rows["kind"], COMPUTING)
    last = int(rows["task"][int(np.argmax(timeline.finish))]) if len(rows) else -1
    return tuple(
        _break_down_device(
            timeline, tasks, np.flatnonzero(computes & (rows["device"] == device)), last
        )
        for device in range(timeline.program.num_devices)
    )


def sum_breakdowns(breakdowns: tuple[Breakdown, ...]) -> Breakdown:
    """Of several devices together."""
    names = [each.name for each in fields(Breakdown)]
    return Breakdown(**{name: sum(getattr(each, name) for each in breakdowns) for name in names})


def _break_down_device(
    timeline: Timeline, tasks: _Tasks, members: npt.NDArray[np.intp], last: int
) -> Breakdown:
    """From gap to gap between the instructions that the device computes."""
    members = members[np.lexsort((timeline.finish[members], timeline.start[members]))]
    task_of = timeline.program.instructions["task"][members].tolist()
    spans = zip(timeline.start[members].tolist(), timeline.finish[members].tolist(), strict=True)
    compute, idle, now = 0.0, np.zeros(3), 0.0
    for task, (start, finish) in zip(task_of, spans, strict=True):
        if start > now:
            idle += _split_gap(tasks, tasks.cause[task], now, start)
            now = start
        compute += max(0.0, finish - now)
        now = max(now, finish)
    idle += _split_gap(tasks, last, now, timeline.device_seconds)
    return Breakdown(
        compute_seconds=compute,
        communication_seconds=float(idle[0]),
        waiting_seconds=float(idle[1]),
        # Where hosts take longer to launch the step than devices to run it, the rest is theirs.
        overhead_seconds=float(idle[2]) + timeline.step_seconds - timeline.device_seconds,
    )


def _split_gap(tasks: _Tasks, cause: int, low: float, high: float) -> tuple[float, float, float]:
    """Communication, waiting and overhead from `low` to `high`, when something started that had
    waited for the task `cause`: backwards from one cause to the next."""
    communication, waiting = 0.0, 0.0
    now = _done(tasks, cause, low, high)
    overhead = high - now
    while now > low and cause >= 0:
        begin = max(low, min(now, tasks.start[cause]))
        if tasks.communicates[cause]:
            communication += now - begin
        else:
            waiting += now - begin
        cause, now = tasks.cause[cause], begin
        done = _done(tasks, cause, low, now)
        waiting += now - done
        now = done
    return communication, waiting, overhead


def _done(tasks: _Tasks, cause: int, low: float, high: float) -> float:
    """When a task was done, within limits; the lower one where there is no task."""
    return low if cause < 0 else max(low, min(high, tasks.finish[cause]))
