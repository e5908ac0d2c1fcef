"""What was going on while something was awaited: back from task to task, along what each waited for
last. Knows tasks as spans of time, not what they do."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats
from meshwright.simulate.timeline import Timeline


def task_times(timeline: Timeline) -> tuple[Floats, Floats]:
    """By task: when its last member was ready, and when it was done."""
    start, finish = np.zeros(len(timeline.cause)), np.zeros(len(timeline.cause))
    np.maximum.at(start, timeline.program.instructions["task"], timeline.start)
    np.maximum.at(finish, timeline.program.instructions["task"], timeline.finish)
    return start, finish


@dataclass(frozen=True, slots=True, kw_only=True)
class Waits:
    """Tasks as plain lists, which a walk from one to the next reads faster than arrays."""

    start: list[float]
    finish: list[float]
    cause: list[int]
    """By task: the task that it waited for last; -1: none."""
    last: int
    """The task that finishes last; -1: there is none."""

    @staticmethod
    def of(timeline: Timeline) -> "Waits":
        """The tasks of a timeline."""
        rows = timeline.program.instructions
        start, finish = task_times(timeline)
        return Waits(
            start=start.tolist(),
            finish=finish.tolist(),
            cause=timeline.cause.tolist(),
            last=int(rows["task"][int(np.argmax(timeline.finish))]) if len(rows) else -1,
        )

    def back(self, task: int, low: float, high: float) -> Iterator[tuple[int, float, float]]:
        """From `high` back to `low` what was under way, as a task with its first and last moment,
        when something began at `high` that had waited for `task`. Task -1 is nothing at all: what
        was awaited had not begun, or was done. The spans leave nothing out."""
        now = high
        while now > low:
            done = low if task < 0 else max(low, min(now, self.finish[task]))
            if done < now:
                yield -1, done, now
            if task < 0:
                return
            begin = max(low, min(done, self.start[task]))
            if begin < done:
                yield task, begin, done
            task, now = self.cause[task], begin
