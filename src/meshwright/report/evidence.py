"""What a run says of predictions: the record of it that a cluster's file keeps."""

from collections import Counter
from dataclasses import replace
from datetime import date

import numpy as np

from meshwright.cluster.cluster import Calibration, Cluster
from meshwright.graph.graph import Graph
from meshwright.report.hybrid_facts import main_precision
from meshwright.simulate.measured import TIMED_STEPS, Run
from meshwright.simulate.timeline import Timeline

_FIRST_STEPS = 3
"""The first steps of a run warm up, and in the third a GPU's step is recorded."""
_FEWEST_STEADY = 3
"""A median of fewer steps than this says less than one of all but the first."""


def steady_seconds(run: Run) -> tuple[float, ...]:
    """The steps by the clock on the wall that are as all others of a long training.

    The first ones warm up, and the last ones are slowed down by being timed: they count only where
    too few others are there.
    """
    return _untimed_seconds(run) or run.step_seconds[1:] or run.step_seconds


def _untimed_seconds(run: Run) -> tuple[float, ...]:
    steady = run.step_seconds[_FIRST_STEPS:-TIMED_STEPS]
    return steady if len(steady) >= _FEWEST_STEADY else ()


def wall_seconds(run: Run) -> float:
    """The median of those steps. NaN: there are none."""
    steps = steady_seconds(run)
    return float(np.median(steps)) if steps else np.nan


def at_steady_pace(run: Run, measured: Timeline) -> Timeline:
    """The step of a run that was timed, as fast as the others where one device does all of it.

    Marks between its ops take time, and on a GPU its host launches them one by one where it replays
    the others' at once. Where devices wait for each other, a step stays as it was measured.
    """
    rows, others = measured.program.instructions, _untimed_seconds(run)
    busy = float((measured.finish - measured.start).sum())
    if not others or len(np.unique(rows["device"])) != 1 or busy <= 0:
        return measured
    pace = min(1.0, float(np.median(others)) / busy)
    return replace(measured, start=measured.start * pace, finish=measured.finish * pace)


def make_calibration(
    graph: Graph, cluster: Cluster, predicted: Timeline, run: Run, day: date
) -> Calibration | None:
    """The record of a run that computed; None: its devices only waited, or it has no steps."""
    measured = wall_seconds(run)
    if run.is_emulated or not measured > 0:
        return None
    used = [
        cluster.devices[place]
        for place in np.unique(predicted.program.instructions["device"]).tolist()
    ]
    return Calibration(
        model=graph.name,
        device_type=Counter(device.type for device in used).most_common(1)[0][0],
        num_devices=len(used),
        num_hosts=len({device.host for device in used}),
        precision=main_precision(graph),
        date=day.isoformat(),
        predicted_seconds=predicted.step_seconds,
        measured_seconds=measured,
    )
