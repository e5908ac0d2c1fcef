"""Answers and timelines as plain objects, for JSON."""

from typing import Any

import numpy as np

from meshwright.cli.console import finite
from meshwright.cluster.cluster import Cluster
from meshwright.cost.memory import usable_bytes
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.simulate.timeline import Timeline


def answer_document(
    answer: Answer, graph: Graph, cluster: Cluster, plan: str | None
) -> dict[str, Any]:
    """An answer; `plan` is the path of its plan file."""
    return {
        "model": graph.name,
        "cluster": cluster.name,
        "batch": finite(graph.batch),
        "method": answer.method,
        "step_seconds": finite(answer.step_seconds),
        "bound_seconds": finite(answer.bound_seconds),
        "gap": finite(answer.gap),
        "stop": answer.stop.value,
        "binding": answer.binding,
        "search_seconds": finite(answer.search_seconds),
        "peak_bytes": [finite(size) for size in answer.peak_bytes],
        "statistics": {name: finite(value) for name, value in answer.statistics.items()},
        "plan": plan,
    }


def timeline_document(timeline: Timeline, graph: Graph, cluster: Cluster) -> dict[str, Any]:
    """What a simulation predicts."""
    return {
        "model": graph.name,
        "cluster": cluster.name,
        "batch": finite(graph.batch),
        "sharing": timeline.sharing,
        "step_seconds": finite(timeline.step_seconds),
        "peak_bytes": [finite(size) for size in timeline.peak_bytes],
        "launch_bound": timeline.is_launch_bound,
        "fits": bool(np.all(np.array(timeline.peak_bytes) <= usable_bytes(graph, cluster))),
        "utilisation": [finite(share) for share in timeline.device_utilisation.tolist()],
        "attribution": {name: finite(value) for name, value in timeline.attribution.items()},
    }
