"""Plans of layered models by their degrees, for benchmarks."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.graph.stack.find import find_layers
from meshwright.graph.stack.stack import Stack
from meshwright.plan.part import Part, Schedule, ScheduleKind
from meshwright.plan.plan import Plan


def stage_parts(stack: Stack, cluster: Cluster, count: int) -> Iterator[Part]:
    """Stages of about as many layers, each on as many neighbouring devices."""
    graph, names = stack.graph, [device.name for device in cluster.devices]
    each = len(names) // count
    bounds = [round(k * stack.num_layers / count) for k in range(count + 1)]
    for stage in range(count):
        here = range(bounds[stage], bounds[stage + 1])
        ops = zip(graph.op_names, stack.layer_of_op.tolist(), strict=True)
        yield Part(
            ops=tuple(name for name, layer in ops if layer in here),
            devices=tuple(names[stage * each : (stage + 1) * each]),
        )


def hybrid_plan(
    graph: Graph,
    cluster: Cluster,
    *,
    stages: int = 1,
    microbatches: int = 1,
    kind: ScheduleKind = ScheduleKind.ONE_F_ONE_B,
    parts: Sequence[dict[str, Any]] = (),
    **every: Any,
) -> Plan:
    """All devices in stages, with the same for every part, or (`parts`) something else for each."""
    own = parts or [{}] * stages
    found = zip(stage_parts(find_layers(graph), cluster, stages), own, strict=True)
    return Plan(
        parts=tuple(replace(part, **every, **more) for part, more in found),
        schedule=Schedule(kind=kind, microbatches=microbatches),
    )
