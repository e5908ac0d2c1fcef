"""Answers and timelines as plain objects, for JSON."""

import math
from dataclasses import asdict
from typing import Any

import numpy as np

from meshwright.cli.console import finite
from meshwright.cli.hybrid_facts import HybridFacts, StageFacts, name_devices
from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import time_sources
from meshwright.cost.memory import usable_bytes
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.plan.degrees import word_degrees
from meshwright.plan.plan import Plan
from meshwright.simulate.timeline import Timeline


def answer_document(
    answer: Answer,
    graph: Graph,
    cluster: Cluster,
    plan: str | None,
    facts: HybridFacts | None = None,
) -> dict[str, Any]:
    """An answer; `plan` is the path of its plan file, `facts` are of a plan of teams."""
    return {
        "model": graph.name,
        "cluster": cluster.name,
        "batch": finite(graph.batch),
        "method": answer.method,
        "step_seconds": finite(answer.step_seconds),
        "uniform_seconds": finite(answer.statistics.get("uniform_seconds", math.nan)),
        "bound_seconds": finite(answer.bound_seconds),
        "gap": finite(answer.gap),
        "stop": answer.stop.value,
        "times": None if answer.times is None else asdict(answer.times),
        "binding": answer.binding,
        "search_seconds": finite(answer.search_seconds),
        "peak_bytes": [finite(size) for size in answer.peak_bytes],
        "statistics": {name: finite(value) for name, value in answer.statistics.items()},
        "plan": plan,
        "allocations": [
            {
                "source": each.source,
                "target": each.target,
                "bytes_per_second": each.bytes_per_second,
                "shares": list(each.shares),
            }
            for each in (answer.plan.allocations if answer.plan is not None else ())
        ],
        "runner_ups": [
            {"step_seconds": finite(each.step_seconds), "description": each.description}
            for each in answer.runner_ups
        ],
        "notes": list(answer.notes),
        "hybrid": facts_document(answer.plan, cluster, facts),
    }


def facts_document(
    plan: Plan | None, cluster: Cluster, facts: HybridFacts | None
) -> dict[str, Any] | None:
    """A plan of stages and teams; None: there is none, or not such a one."""
    if facts is None or plan is None:
        return None
    return {
        "description": plan.description,
        "degrees": None if facts.degrees is None else word_degrees(facts.degrees),
        "schedule": facts.schedule,
        "microbatches": facts.microbatches,
        "num_devices": facts.num_devices,
        "tokens_per_sample": finite(facts.tokens),
        "tokens_per_second": finite(facts.tokens_per_second),
        "samples_per_second": finite(facts.samples_per_second),
        "model_flops": finite(facts.model_flops),
        "mfu": finite(facts.mfu),
        "precision": facts.precision,
        "binding": facts.binding,
        "stages": [_stage_document(cluster, stage) for stage in facts.stages],
    }


def _stage_document(cluster: Cluster, stage: StageFacts) -> dict[str, Any]:
    part = stage.part
    return {
        "layers": list(stage.layers),
        "num_layers": stage.num_layers,
        "devices": name_devices(cluster, part.devices),
        "num_devices": len(part.devices),
        "replicas": part.num_replicas,
        "tensor": part.tensor,
        "context": part.context,
        "keys": str(part.keys),
        "expert": part.expert,
        "sequence": part.sequence,
        "zero": part.zero,
        "recompute": str(part.recompute),
        "microbatch_samples": finite(stage.samples),
        "forward_seconds": finite(stage.forward_seconds),
        "backward_seconds": finite(stage.backward_seconds),
        "forward_collective_seconds": finite(stage.forward_call_seconds),
        "backward_collective_seconds": finite(stage.backward_call_seconds),
        "busy": finite(stage.busy),
        "memory_bytes": {name: finite(size) for name, size in stage.memory.items()},
        "peak_bytes": finite(stage.peak_bytes),
        "usable_bytes": finite(stage.usable_bytes),
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
        "times": asdict(time_sources(graph, cluster)),
        "launch_bound": timeline.is_launch_bound,
        "fits": bool(np.all(np.array(timeline.peak_bytes) <= usable_bytes(graph, cluster))),
        "utilisation": [finite(share) for share in timeline.device_utilisation.tolist()],
        "attribution": {name: finite(value) for name, value in timeline.attribution.items()},
    }
