"""Timelines as plain objects, for JSON."""

from pathlib import Path
from typing import Any

from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import time_sources
from meshwright.cost.runtime import MESHWRIGHT
from meshwright.graph.graph import Graph
from meshwright.plan.facts import HybridFacts
from meshwright.plan.record import ErrorRecord, MemoryRecord, TimesRecord
from meshwright.report.expected import expected_error
from meshwright.simulate.footprint import footprint
from meshwright.simulate.record import FORMAT, VERSION, SimulationRecord
from meshwright.simulate.timeline import Timeline


def timeline_document(
    timeline: Timeline,
    graph: Graph,
    cluster: Cluster,
    facts: HybridFacts | None = None,
    plan: Path | None = None,
    trace: Path | None = None,
    runtime: str = MESHWRIGHT.name,
) -> dict[str, Any]:
    """What a simulation predicts; `facts` are of a plan of whole layers."""
    memory = footprint(graph, cluster, timeline)
    return SimulationRecord(
        format=FORMAT,
        version=VERSION,
        model=graph.name,
        cluster=cluster.name,
        batch=graph.batch,
        runtime=runtime,
        sharing=timeline.sharing,
        step_seconds=timeline.step_seconds,
        peak_bytes=tuple(timeline.peak_bytes),
        memory=MemoryRecord.of_footprint(memory),
        times=TimesRecord.of(time_sources(graph, cluster)),
        expected_error=ErrorRecord.of_error(expected_error(graph, cluster, timeline)),
        launch_bound=timeline.is_launch_bound,
        fits=bool((memory.peak_bytes <= memory.usable_bytes).all()),
        utilisation=tuple(timeline.device_utilisation.tolist()),
        attribution=dict(timeline.attribution),
        plan=None if plan is None else str(plan),
        trace=None if trace is None else str(trace),
        hybrid=None if facts is None else facts.record,
    ).to_dict()
