"""A Timeline as lines of text: what each device does over the step, one character a moment."""

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.graph.graph import Phase
from meshwright.program.program import Kind
from meshwright.simulate.timeline import Timeline


class Activity(IntEnum):
    """What a device is doing; the first three are the phases of a step."""

    FORWARD = 0
    BACKWARD = 1
    UPDATE = 2
    COMMUNICATION = 3
    IDLE = 4


GLYPHS = "█▓▒░·"
"""One an activity: told apart without colour too."""


def draw_activities(timeline: Timeline, devices: Sequence[int], width: int) -> list[str]:
    """For each device `width` characters, each of the activity that took most of its moment.

    A device that computes while it communicates counts as computing.
    """
    edges = np.linspace(0.0, timeline.step_seconds, width + 1)
    activity = _activity_of_rows(timeline)
    owner = timeline.program.instructions["device"]
    lines = []
    for device in devices:
        cover = np.zeros((len(Activity), width))
        for each in (*Activity,)[:-1]:
            rows = np.flatnonzero((owner == timeline.program.leader[device]) & (activity == each))
            cover[each] = covered_seconds(timeline.start[rows], timeline.finish[rows], edges)
        free = np.maximum(np.diff(edges) - cover[: Activity.COMMUNICATION].sum(axis=0), 0.0)
        cover[Activity.COMMUNICATION] = np.minimum(cover[Activity.COMMUNICATION], free)
        cover[Activity.IDLE] = free - cover[Activity.COMMUNICATION]
        lines.append("".join(GLYPHS[each] for each in cover.argmax(axis=0)))
    return lines


def covered_seconds(start: Floats, finish: Floats, edges: Floats) -> Floats:
    """How many seconds of intervals lie between each edge and the next.

    The seconds before a moment are the sum of (moment - start) over the starts before it less the
    same over the finishes: two running sums instead of a loop over intervals.
    """
    return np.diff(_seconds_since(start, edges) - _seconds_since(finish, edges))


def _seconds_since(moments: Floats, edges: Floats) -> Floats:
    moments = np.sort(moments)
    sums = np.concatenate(([0.0], np.cumsum(moments)))
    count = np.searchsorted(moments, edges)
    return np.asarray(count * edges - sums[count])


def _activity_of_rows(timeline: Timeline) -> Longs:
    rows = timeline.program.instructions
    phase = timeline.program.graph.phase[rows["op"]]
    assert [Activity[each.name].value for each in Phase] == [each.value for each in Phase]
    return np.where(rows["kind"] == Kind.COMPUTE, phase, Activity.COMMUNICATION).astype(np.int64)
