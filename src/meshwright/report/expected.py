"""What a predicted step is worth: which parts of its time are known how, and what they come to.

Reads simulated steps. The held-out measurements are `meshwright.cost.evidence`'s.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import op_seconds, op_sources
from meshwright.cost.evidence import (
    ExpectedError,
    Extent,
    KnownBy,
    TimeShare,
    find_evidence,
    own_evidence,
)
from meshwright.graph.fuse import may_be_fused
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.report.hybrid_facts import hybrid_facts, main_precision
from meshwright.search.method.name import LAYERED
from meshwright.simulate.footprint import footprint
from meshwright.simulate.timeline import Timeline

_OP_SOURCES = (KnownBy.MEASURED, KnownBy.FITTED, KnownBy.ESTIMATED)
"""As `op_sources` numbers them."""


_INFERENCE = (
    "the step has no loss (inference): `meshwright run` emulates its plans, and trains none"
)


def with_facts(graph: Graph, cluster: Cluster, answer: Answer, timeline: Timeline) -> Answer:
    """An answer with what is read off the simulated step of its plan: its expected error, its
    memory, where layers are divided what the plan comes to, and that a step of inference is only
    emulated."""
    assert answer.plan is not None
    is_hybrid = answer.method.removeprefix("auto:") in LAYERED
    return replace(
        answer,
        notes=(*answer.notes, _INFERENCE) if graph.is_inference else answer.notes,
        expected_error=expected_error(graph, cluster, timeline),
        memory=footprint(graph, cluster, timeline),
        waits=dict(timeline.attribution),
        hybrid=hybrid_facts(graph, cluster, answer.plan, timeline, answer.binding)
        if is_hybrid
        else None,
    )


def expected_error(graph: Graph, cluster: Cluster, timeline: Timeline) -> ExpectedError:
    """How far off a simulated step is expected to be.

    The critical path is divided into ops and transfers; what it waits for beside these is left out.
    Ops are divided by how their times are known, each by its time on the device types that run the
    plan. A step that launches bound is all launches. Steps of a compiler have not been held out.
    """
    rows = timeline.program.instructions
    used = [cluster.devices[place] for place in np.unique(rows["device"]).tolist()]
    hosts = {device.host for device in used}
    reach = Extent.DEVICE if len(used) == 1 else Extent.HOST if len(hosts) == 1 else Extent.HOSTS
    types = tuple(dict.fromkeys(device.type for device in used))
    precision, is_fused = main_precision(graph), may_be_fused(graph)
    weights = [sum(device.type == name for device in used) / len(used) for name in types]
    shares, own_rows = [], own_evidence(cluster.calibrations)
    for name, weight in zip(types, weights, strict=True):
        for source, share in _divide(graph, cluster, timeline, name):
            row = None if is_fused else find_evidence(source, name, precision, reach, own_rows)
            shares.append(
                TimeShare(
                    source=source,
                    type=name,
                    precision=precision,
                    share=weight * share,
                    evidence=row,
                )
            )
    return ExpectedError(shares=tuple(shares))


def _divide(
    graph: Graph, cluster: Cluster, timeline: Timeline, type_name: str
) -> Iterator[tuple[KnownBy, float]]:
    """The parts of a step's time, were all its devices of this type."""
    if timeline.is_launch_bound:
        yield KnownBy.LAUNCHES, 1.0
        return
    spent = timeline.attribution
    network = spent["transfer"] + spent["collective"]
    total = spent["compute"] + network or 1.0
    device_type = cluster.types[type_name]
    seconds = op_seconds(graph, device_type, graph.batch)
    seconds = np.where(np.isfinite(seconds), seconds, 0.0)
    of_ops = np.bincount(op_sources(graph, device_type), weights=seconds, minlength=3)
    scale = spent["compute"] / total / (float(of_ops.sum()) or 1.0)
    shares = dict(zip(_OP_SOURCES, (of_ops * scale).tolist(), strict=True))
    for source, share in (shares | {KnownBy.NETWORK: network / total}).items():
        if share > 0:
            yield source, share
