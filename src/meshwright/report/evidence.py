"""What a run says of predictions: the record of it that a cluster's file keeps."""

from collections import Counter
from datetime import date

import numpy as np

from meshwright.cluster.cluster import Calibration, Cluster
from meshwright.graph.graph import Graph
from meshwright.report.hybrid_facts import main_precision
from meshwright.simulate.measured import TIMED_STEPS, Run
from meshwright.simulate.timeline import Timeline


def wall_seconds(run: Run) -> float:
    """The median step by the clock on the wall. NaN: none.

    The first warms up, and the last are slowed down by being timed: they count only where there are
    no others.
    """
    steps = run.step_seconds[1:-TIMED_STEPS] or run.step_seconds[1:] or run.step_seconds
    return float(np.median(steps)) if steps else np.nan


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
