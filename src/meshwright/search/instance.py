"""A graph and a cluster as the arrays that searches for placements work on.

A unit is what moves as one: a co-location group, or an op without one. Knows nothing of schedules.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from meshwright.array import Floats, Ints, Records, places_in, sum_by, sum_rows
from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import op_seconds
from meshwright.graph.build import topological_order
from meshwright.graph.graph import Graph, Phase
from meshwright.kernel.row import gather_rows
from meshwright.plan.plan import Discipline, Plan, place_ops

EDGE = np.dtype([("op", np.int32), ("bytes", np.float64)], align=True)
"""One use of a tensor, seen from its source (the op is the reader) or its reader (the source)."""

SAVED = -1.0
"""In place of the bytes of an edge that no tensor stands for: a backward op reads what its forward
op has saved. On one device it runs after it; on two the simulator lets it run when it likes, so
bounds skip such edges. Searches may count with this number: nothing to move, to a byte."""


class StepArrays(NamedTuple):
    """The arrays of an instance that kernels read; `Instance` says what is in each."""

    in_edges: Any
    in_start: Any
    out_edges: Any
    out_start: Any
    seconds: Any
    type_of: Any
    bandwidth: Any
    latency: Any
    unit_of: Any
    unit_start: Any
    unit_ops: Any
    unit_seconds: Any
    unit_bytes: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class Instance:
    """What decides the time and the memory of a placement."""

    graph: Graph
    cluster: Cluster
    seconds: Floats
    """Seconds of each op (row) on each device type (column, as in `cluster.type_names`) for the
    whole batch."""
    type_of: Ints
    """The type of each device, a column of `seconds`."""
    bandwidth: Floats
    latency: Floats
    out_edges: Records
    """EDGEs to readers, op after op."""
    out_start: Ints
    """Where the edges of each op begin in `out_edges`; one entry more than ops."""
    in_edges: Records
    """EDGEs from what an op reads, op after op."""
    in_start: Ints
    """Where the edges of each op begin in `in_edges`; one entry more than ops."""
    unit_of: Ints
    """The unit of each op; units are numbered by their first op."""
    unit_start: Ints
    unit_ops: Ints
    """The ops of unit u are `unit_ops[unit_start[u]:unit_start[u + 1]]`, rising."""
    unit_seconds: Floats
    """Unit x device type: the sum over its ops."""
    unit_bytes: Floats
    """Memory that a unit holds at the turn from forward to backward; see `held_bytes`."""

    @property
    def arrays(self) -> StepArrays:
        """Read-only views, so that a kernel is compiled once, whoever made the arrays."""
        views = [getattr(self, name).view() for name in StepArrays._fields]
        for view in views:
            view.setflags(write=False)
        return StepArrays(*views)

    @property
    def num_ops(self) -> int:
        """The number of ops in the step."""
        return len(self.seconds)

    @property
    def num_units(self) -> int:
        """The number of units, which are what moves as one."""
        return len(self.unit_start) - 1

    @property
    def num_devices(self) -> int:
        """The number of devices of the cluster."""
        return len(self.type_of)


def make_instance(graph: Graph, cluster: Cluster) -> Instance:
    """The arrays of a graph on a cluster."""
    types = [cluster.types[name] for name in cluster.type_names]
    seconds = np.stack([op_seconds(graph, each, graph.batch) for each in types], axis=1)
    unit_of, unit_start, unit_ops = _find_units(graph)
    num_units = len(unit_start) - 1
    source, target, size = _all_edges(graph)
    out_edges, out_start = edges_by(source, target, size, graph.num_ops)
    in_edges, in_start = edges_by(target, source, size, graph.num_ops)
    return Instance(
        graph=graph,
        cluster=cluster,
        seconds=np.ascontiguousarray(seconds),
        type_of=cluster.type_of,
        bandwidth=cluster.bandwidth,
        latency=cluster.latency,
        out_edges=out_edges,
        out_start=out_start,
        in_edges=in_edges,
        in_start=in_start,
        unit_of=unit_of,
        unit_start=unit_start,
        unit_ops=unit_ops,
        unit_seconds=sum_rows(unit_of, seconds, num_units),
        unit_bytes=sum_by(unit_of, held_bytes(graph), num_units),
    )


def held_bytes(graph: Graph) -> Floats:
    """For each op what its device holds for it when forward ends, at least.

    Its weights and optimiser state, what it saves, and those of its outputs that a backward op
    reads or that inference returns. Copies that other devices receive, workspace and gradients come
    on top: a placement that fits by this may still not fit in the simulator, which decides.
    """
    reads_back = (graph.phase[graph.use_op] == Phase.BACKWARD) & (
        graph.phase[graph.tensor_source[graph.use_tensor]] == Phase.FORWARD
    )
    kept = np.union1d(graph.use_tensor[reads_back], np.flatnonzero(graph.is_returned))
    held = graph.state_bytes + graph.saved_bytes
    np.add.at(held, graph.tensor_source[kept], graph.tensor_bytes[kept])
    return held


def placement_plan(
    instance: Instance,
    device_of_op: Sequence[int] | Ints,
    priorities: Sequence[float] | Floats = (),
    discipline: Discipline = Discipline.FIFO,
) -> Plan:
    """The plan that runs each op whole on one device."""
    return place_ops(
        instance.graph.op_names,
        np.asarray(device_of_op).tolist(),
        [device.name for device in instance.cluster.devices],
        np.asarray(priorities, dtype=np.float64).tolist(),
        discipline,
    )


def order_plan(
    instance: Instance, device_of_op: Sequence[int] | Ints, order: Sequence[int] | Ints
) -> Plan:
    """The plan in which each device runs its ops in this order of all ops.

    An order that does not know what is `SAVED`, as that of merged ops, is changed where an op would
    run before one on its device that it waits for.
    """
    place = places_in(np.asarray(order), len(order), np.int32)
    device = np.asarray(device_of_op)
    reader = np.repeat(np.arange(instance.num_ops), np.diff(instance.in_start))
    source = instance.in_edges["op"]
    waits = (instance.in_edges["bytes"] >= 0) | (device[source] == device[reader])
    first, second = place[source[waits]], place[reader[waits]]
    if (first > second).any():
        names = [instance.graph.op_names[op] for op in np.argsort(place)]
        followed = topological_order(first, second, names, f"graph {instance.graph.name}")
        moved = np.empty_like(place)
        moved[followed] = np.arange(len(order), dtype=np.int32)
        place = moved[place]
    return placement_plan(instance, device_of_op, -place.astype(np.float64), Discipline.ORDER)


def devices_of_units(instance: Instance, plan: Plan) -> Ints:
    """Where a plan of whole ops has each unit."""
    index = instance.cluster.index
    device = {op: index[part.devices[0]] for part in plan.parts for op in part.ops}
    of_op = np.array([device[name] for name in instance.graph.op_names], np.int32)
    return of_op[instance.unit_ops[instance.unit_start[:-1]]]


def explain_nowhere(instance: Instance) -> str:
    """Name a unit that no device can run; empty where every unit can run on some device."""
    nowhere = ~np.isfinite(instance.unit_seconds).any(axis=1)
    if not nowhere.any():
        return ""
    unit = int(np.flatnonzero(nowhere)[0])
    op = instance.unit_ops[instance.unit_start[unit]]
    return (
        f"op {instance.graph.op_names[op]!r} (with its group) can run on no device type of the "
        f"cluster; a device type on which its seconds are finite would do"
    )


def mean_device_seconds(instance: Instance) -> Floats:
    """Mean seconds of each op over the devices that can run it."""
    counts = np.bincount(instance.type_of, minlength=instance.seconds.shape[1])
    can_run = np.isfinite(instance.seconds)
    total = np.where(can_run, instance.seconds, 0.0) @ counts
    return total / np.maximum(can_run @ counts, 1)


def mean_type_seconds(seconds: Floats) -> Floats:
    """Of each row, over the device types (columns) that can run it, however many devices each has.

    For sizes of units that do not change with the number of devices.
    """
    can_run = np.isfinite(seconds)
    mean: Floats = np.where(can_run, seconds, 0.0).sum(axis=1) / np.maximum(can_run.sum(axis=1), 1)
    return mean


def mean_transfer(instance: Instance) -> tuple[float, float]:
    """Latency and seconds a byte, mean over pairs of different devices."""
    num_devices = instance.num_devices
    pairs = num_devices * (num_devices - 1)
    if pairs == 0:
        return 0.0, 0.0
    latency = float(instance.latency.sum()) / pairs  # zero on the diagonal
    per_byte = float((1.0 / instance.bandwidth).sum()) / pairs  # likewise: 1 / infinity
    return latency, per_byte


def _find_units(graph: Graph) -> tuple[Ints, Ints, Ints]:
    """The unit of each op, and the ops of each unit."""
    group = graph.group.astype(np.int64)
    # Ops without a group get a number of their own above all groups'.
    label = np.where(group >= 0, group, group.max(initial=0) + 1 + np.arange(graph.num_ops))
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    rank = places_in(np.argsort(first), len(first), np.int32)
    unit_of = rank[inverse]
    order, start = gather_rows(unit_of, len(first))
    return unit_of, start, order.astype(np.int32)


def _all_edges(graph: Graph) -> tuple[Ints, Ints, Floats]:
    """Source, reader and bytes of every use, then the edges of what is `SAVED`."""
    source, target = graph.edges
    size = graph.tensor_bytes[graph.use_tensor]
    backward = np.flatnonzero(graph.partner >= 0).astype(np.int32)
    backward = backward[graph.saved_bytes[graph.partner[backward]] > 0]
    forward = graph.partner[backward]
    # Of a coarse graph an op may stand before the one that has saved for a part of it.
    backward, forward = backward[forward < backward], forward[forward < backward]
    is_new = ~np.isin(
        forward.astype(np.int64) * graph.num_ops + backward,
        source.astype(np.int64) * graph.num_ops + target,
    )
    return (
        np.concatenate((source, forward[is_new])),
        np.concatenate((target, backward[is_new])),
        np.concatenate((size, np.full(int(is_new.sum()), SAVED))),
    )


def edges_by(rows: Ints, entries: Ints, size: Floats, num_ops: int) -> tuple[Records, Ints]:
    """EDGEs gathered under `rows`, and where those of each begin."""
    order, start = gather_rows(rows, num_ops)
    edges = np.zeros(len(order), EDGE)
    edges["op"], edges["bytes"] = entries[order], size[order]
    return edges, start
