"""Events of the Chrome trace format, as plain objects."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from meshwright.array import Floats, Longs
from meshwright.export.perfetto.span import nanoseconds

Event = dict[str, Any]

DEVICES, LINKS = 1, 2
"""Process numbers of the two halves of the trace."""


def _metadata(kind: str, process: int, thread: int, **args: object) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": args}


def name_thread(process: int, thread: int, name: str) -> list[Event]:
    """A track of a process."""
    return [
        _metadata("thread_name", process, thread, name=name),
        _metadata("thread_sort_index", process, thread, sort_index=thread),
    ]


def name_process(process: int, name: str) -> list[Event]:
    """A heading, with tracks below it."""
    return [
        _metadata("process_name", process, 0, name=name),
        _metadata("process_sort_index", process, 0, sort_index=process),
    ]


def counter(
    process: int,
    name: str,
    unit: str,
    when: Floats,
    value: Floats,
    max_points: int | None = None,
) -> Iterator[Event]:
    """The last value of each nanosecond, where it differs from the one before; of more than
    `max_points` the highest in each of as many equal times."""
    moments = nanoseconds(when)
    is_last = np.append(moments[1:] != moments[:-1], True)
    moments, value = moments[is_last], value[is_last]
    changes = np.append(True, value[1:] != value[:-1])
    moments, value = moments[changes], value[changes]
    if max_points is not None and len(moments) > max_points:
        moments, value = _highest(moments, value, max_points)
    for moment, amount in zip((moments / 1000).tolist(), value.tolist(), strict=True):
        yield {"ph": "C", "name": name, "pid": process, "ts": moment, "args": {unit: amount}}


def _highest(moments: Longs, value: Floats, count: int) -> tuple[Longs, Floats]:
    """Each bin's highest value, from the bin's first moment on; the last point is kept."""
    bins = (moments - moments[0]) * (count - 1) // max(int(moments[-1] - moments[0]), 1)
    first = np.flatnonzero(np.append(True, bins[1:] != bins[:-1]))
    return moments[first], np.maximum.reduceat(value, first)
