"""The mapping problem of a graph that is cut into stages. Knows nothing of how it was cut.

Times and bytes are of the whole batch: a replica computes its share of it, a stage's gradients are
reduced once.
"""

from collections.abc import Sequence

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.cluster.cluster import Cluster
from meshwright.cost.compute import op_seconds
from meshwright.graph.graph import Graph
from meshwright.search.method.pipeline.map.problem import MappingProblem


def stage_problem(
    graph: Graph,
    cluster: Cluster,
    slot_of_op: Ints,
    replicas_of_slot: Sequence[int],
    memory_bytes: Floats | None = None,
) -> MappingProblem:
    """Slots as numbered by `slot_of_op`; memory is each slot's, by default its lasting state."""
    slots = len(replicas_of_slot)
    if memory_bytes is None:
        memory_bytes = _sum_by(slot_of_op, graph.state_bytes, slots)
    return MappingProblem(
        seconds=_slot_seconds(graph, cluster, slot_of_op, replicas_of_slot),
        replicas_of_slot=np.array(replicas_of_slot, np.int32),
        wire_bytes=_wire_bytes(graph, slot_of_op, slots),
        sync_bytes=_sum_by(slot_of_op, graph.parameter_bytes, slots),
        memory_bytes=memory_bytes,
        type_of_device=cluster.type_of,
        device_memory_bytes=cluster.memory_bytes,
        bandwidth=cluster.bandwidth,
    )


def _sum_by(labels: Ints, values: Floats, count: int) -> Floats:
    return np.bincount(labels, weights=values, minlength=count).astype(np.float64)


def _slot_seconds(
    graph: Graph, cluster: Cluster, slot_of_op: Ints, replicas_of_slot: Sequence[int]
) -> Floats:
    """Slot x type: what one replica computes for its share of the batch."""
    seconds = np.zeros((len(replicas_of_slot), len(cluster.type_names)))
    for replicas in sorted(set(replicas_of_slot)):
        rows = np.flatnonzero(np.asarray(replicas_of_slot) == replicas)
        for column, name in enumerate(cluster.type_names):
            each = op_seconds(graph, cluster.types[name], graph.batch / replicas)
            seconds[rows, column] = _sum_by(slot_of_op, each, len(replicas_of_slot))[rows]
    return seconds


def _wire_bytes(graph: Graph, slot_of_op: Ints, slots: int) -> Floats:
    """What two slots exchange both ways: a tensor goes once to every slot that reads it."""
    source = slot_of_op[graph.tensor_source[graph.use_tensor]]
    target = slot_of_op[graph.use_op]
    moves = source != target
    pairs = np.unique(np.stack((graph.use_tensor[moves], target[moves])), axis=1)
    wire = np.zeros((slots, slots))
    tensor = pairs[0].astype(np.int64)
    size = graph.tensor_bytes[tensor]
    np.add.at(wire, (slot_of_op[graph.tensor_source[tensor]], pairs[1]), size)
    total: Floats = wire + wire.T
    return total
