"""Proven lower bounds on the time of a step, and proofs that no plan fits.

Each bound is the larger of two. The path bound: along every path each op runs after the one before
it. The work bound: for any weights w_d >= 0 of the devices that add up to one, a step takes at
least the weighted mean of the devices' loads, hence at least sum over ops of min over devices of
w_d times the op's time there. With equal devices and weights that is total work / devices.
"""

import math

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import op_seconds
from meshwright.cost.fitted import LEAST_SHARE
from meshwright.errors import quoted
from meshwright.graph.graph import Graph, Phase
from meshwright.search.bound.window import ROUNDING, longest_path, window_bound
from meshwright.search.instance import Instance
from meshwright.units import format_bytes

_ROUNDS = 100


def placement_bound(instance: Instance) -> float:
    """No plan that runs every op whole on one device is faster.

    A co-location group's ops share a device, so the work bound may count a group as one op. In
    place of the longest path stand the windows around it, which are at least as long.
    """
    work = work_bound(instance.unit_seconds, _type_counts(instance.cluster))
    return max(window_bound(instance), ROUNDING * work)


def plan_bound(instance: Instance) -> float:
    """No plan at all is faster, whatever its replicas and microbatches.

    Work: t(share) >= share * t(1) for an op on a share of the batch, because its time is the
    largest of functions a + b * share with a >= 0 (the roofline's two), or b * share (measured), or
    held to it (fitted; measured at several numbers of samples: `meshwright.graph.ladder`).
    So splitting an op among devices cannot lower the weighted mean below its time whole on the
    best of them, and accumulating microbatches cannot either. An update op runs once, on no
    samples: it counts by the part that does not depend on the batch.

    Path: whatever the shares, an op takes its time at almost no samples, and for each of its
    replicas one of the op before it has run. Updates count only where there is one device: others
    divide them (ZeRO), which saves no work.
    """
    graph, cluster = instance.graph, instance.cluster
    types = [cluster.types[name] for name in cluster.type_names]
    tiny = np.stack([op_seconds(graph, each, graph.batch * LEAST_SHARE) for each in types], axis=1)
    is_update = graph.phase == Phase.UPDATE
    work = np.where(is_update[:, None], tiny, instance.seconds)
    is_divided = is_update & (cluster.num_devices > 1)
    path = longest_path(instance, np.where(is_divided, 0.0, tiny.min(axis=1)))
    return ROUNDING * max(path, work_bound(work, _type_counts(cluster)))


def work_bound(seconds: Floats, counts: Floats) -> float:
    """The best weighted bound found; rows of `seconds` are indivisible, columns device types.

    Any weights give a bound: these start from the types' speeds and follow the subgradient by
    multiplicative steps (devices that the cheapest assignment overloads get more weight).
    """
    is_known = np.isfinite(seconds)
    if not is_known.any(axis=1).all():
        return math.inf
    if len(counts) == 1:
        return float(seconds.sum() / counts[0])
    seconds = np.where(is_known, seconds, np.inf)
    totals = np.where(is_known, seconds, 0.0).sum(axis=0)
    weight = 1.0 / np.maximum(totals, totals.max(initial=0.0) * 1e-9 + 1e-300)
    best = 0.0
    for number in range(_ROUNDS):
        weight = weight / (weight * counts).sum()
        costs = seconds * weight
        kind = costs.argmin(axis=1)
        rows = np.arange(len(seconds))
        value = float(costs[rows, kind].sum())
        best = max(best, value)
        loads = np.bincount(kind, weights=seconds[rows, kind], minlength=len(counts)) / counts
        if value <= 0:
            break
        step = 0.5 / math.sqrt(1 + number)
        weight = np.maximum(weight * np.exp(step * np.clip(loads / value - 1, -2, 2)), 1e-12)
    return best


def memory_bound(graph: Graph, cluster: Cluster) -> str | None:
    """Why no plan can fit, and the nearest change that would; None when that is not proven.

    All state must be somewhere. That of one op, or of a co-location group, is on one device, unless
    an update can be divided among several (ZeRO): then the weights of one op, while it runs.
    """
    capacity = cluster.memory_bytes
    largest = float(capacity.max())
    total = float(graph.state_bytes.sum())
    unit, need = _largest_unit(graph, divides=cluster.num_devices > 1)
    if need > largest:
        return (
            f"{unit} needs {format_bytes(need)} of weights and optimiser state on one device, the "
            f"largest has {format_bytes(largest)}: {format_bytes(need - largest)} "
            f"({need - largest:,.0f} bytes) are missing; a device of {format_bytes(need)} would do"
        )
    missing = total - float(capacity.sum())
    if missing > 0:
        return (
            f"weights and optimiser state need {format_bytes(total)}, the {cluster.num_devices:,} "
            f"devices of cluster {quoted(cluster.name)} have {format_bytes(float(capacity.sum()))}:"
            f" {format_bytes(missing)} ({missing:,.0f} bytes) are missing; "
            f"{devices_needed(graph, cluster):,} devices of {format_bytes(largest)} would hold them"
        )
    return None


def devices_needed(graph: Graph, cluster: Cluster) -> int:
    """How many devices like the cluster's largest hold weights and optimiser state, at least."""
    total = float(graph.state_bytes.sum())
    return max(1, math.ceil(total / float(cluster.memory_bytes.max())))


def _largest_unit(graph: Graph, *, divides: bool) -> tuple[str, float]:
    """The op or group that one device holds the most for, in words, and its bytes."""
    held, group = graph.state_bytes, graph.group
    if divides and not graph.mixes.any():
        updated = np.unique(group[(graph.phase == Phase.UPDATE) & (group >= 0)])
        is_divided = np.isin(group, updated)
        held = np.where(is_divided, np.minimum(graph.parameter_bytes, held), held)
        group = np.where(is_divided, -1, group)
    alone = np.where(group < 0, held, 0.0)
    op = int(np.argmax(alone)) if graph.num_ops else -1
    name, most = (f"op {quoted(graph.op_names[op])}", float(alone[op])) if op >= 0 else ("", 0.0)
    members = np.flatnonzero(group >= 0)
    if len(members):
        numbers, inverse = np.unique(group[members], return_inverse=True)
        sums = np.bincount(inverse, weights=held[members])
        top = int(np.argmax(sums))
        if sums[top] > most:
            first = members[inverse == top][0]
            name = f"group {numbers[top]} (op {quoted(graph.op_names[first])} ...)"
            most = float(sums[top])
    return name, most


def _type_counts(cluster: Cluster) -> Floats:
    return np.bincount(cluster.type_of, minlength=len(cluster.type_names)).astype(np.float64)
