"""Runs plans of graphs whose ops are merged as a compiler does (`capture --compile`).

A rank runs a traced step op by op or in compiled regions, in any case from all its ops. So a merged
op's ops are found again, and put where the plan has it; they share the time that it was predicted
to take.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from meshwright.array import Floats
from meshwright.capture.capture import capture_traced
from meshwright.capture.trace import Trace
from meshwright.capture.workload import Workload
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.cost.compute import op_seconds
from meshwright.errors import InputError
from meshwright.execute.groups import open_optimizer
from meshwright.execute.settings import Settings
from meshwright.graph.fuse import find_sets
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan


def unmerge(
    graph: Graph, cluster: Cluster, plan: Plan, workload: Workload, settings: Settings
) -> tuple[Graph, Plan, Settings, Trace]:
    """The graph and the plan in the ops of the workload's step, the settings, and its trace.

    Settings compile what was planned as compiled, unless they say not to. All are as given if the
    graph's ops are the step's.
    """
    optimizer = open_optimizer(settings.optimizer, workload.model, settings.learning_rate)
    for untie in (False, True):
        whole, trace = capture_traced(workload, optimizer, settings.autocast, untie=untie)
        whole = whole.at_batch(graph.batch)
        if whole.op_names == graph.op_names:
            return graph, plan, settings, trace
        names = [whole.op_names[last] for last in find_sets(whole).tolist()]
        if set(names) == set(graph.op_names):
            if settings.compiles is None:
                settings = replace(settings, compiles=True)
            whole = _with_seconds(whole, names, graph, cluster)
            return whole, _with_ops(plan, whole, names), settings, trace
    raise InputError(
        f"graph {graph.name}: its {graph.num_ops:,} ops must be those of the model's step, as they "
        f"are or merged, but are others; plan again with the same model, options and versions"
    )


def _with_ops(plan: Plan, whole: Graph, names: Sequence[str]) -> Plan:
    """The plan with the ops that every merged one stands for, by its name."""
    members: dict[str, list[str]] = {}
    for op, name in zip(whole.op_names, names, strict=True):
        members.setdefault(name, []).append(op)
    parts = []
    for part in plan.parts:
        counts = [len(members[name]) for name in part.ops]
        ops = tuple(op for name in part.ops for op in members[name])
        priorities = tuple(np.repeat(part.priorities, counts).tolist()) if part.priorities else ()
        parts.append(replace(part, ops=ops, priorities=priorities))
    return replace(plan, parts=tuple(parts))


def _with_seconds(whole: Graph, names: Sequence[str], graph: Graph, cluster: Cluster) -> Graph:
    """The graph with the predicted times of the merged one, each shared out among its ops, and
    with its calls, which the last of them make."""
    merged = np.array([graph.index[name] for name in names], dtype=np.int64)

    def share_out(device_type: DeviceType, samples: float) -> Floats:
        own = op_seconds(whole, device_type, samples)
        total = op_seconds(graph, device_type, samples)
        sums = np.bincount(merged, weights=own, minlength=graph.num_ops)
        with np.errstate(invalid="ignore"):  # infinite: a type that cannot run it
            shares = own * (total / np.where(sums > 0, sums, 1.0))[merged]
        return np.where(np.isfinite(shares), shares, np.nan)

    seconds = {name: share_out(each, graph.batch) for name, each in cluster.types.items()}
    ladders = {
        name: {samples: share_out(each, samples) for samples in graph.ladders.get(name, {})}
        for name, each in cluster.types.items()
    }
    is_last = np.array([op == name for op, name in zip(whole.op_names, names, strict=True)])
    calls = np.where(is_last, graph.calls[merged], 0.0)
    return replace(whole, seconds=seconds, ladders=ladders, calls=calls)
