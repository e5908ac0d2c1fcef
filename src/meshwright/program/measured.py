"""Measured times of ops that a plan divides: those of shards follow from those of whole ops."""

from dataclasses import replace

import numpy as np

from meshwright.array import Floats
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.cost.compute import estimated_seconds, measured_seconds
from meshwright.graph.graph import Graph
from meshwright.program.expand.expansion import Expansion


def carry_measured(expansion: Expansion, graph: Graph, cluster: Cluster) -> Expansion:
    """Time shards of measured ops in proportion to what models of times say of both.

    Layers are priced by the same rule (`cost.layer.seconds`), so that a plan takes as long op by op
    as by layer. `graph`: the planned one, whose measured times are of whole ops.
    """
    if not graph.seconds or expansion.graph is graph:
        return expansion
    seconds = dict(expansion.graph.seconds)
    for name, device_type in cluster.types.items():
        seconds[name] = _shard_seconds(expansion, graph, device_type)
    return replace(expansion, graph=replace(expansion.graph, seconds=seconds))


def _shard_seconds(expansion: Expansion, graph: Graph, device_type: DeviceType) -> Floats:
    """The time of each op of the expansion: measured, its share of a measured one, or NaN."""
    divided, batch = expansion.graph, graph.batch
    known = measured_seconds(divided, device_type, batch)
    whole = measured_seconds(graph, device_type, batch)
    own = np.full(divided.num_ops, np.nan) if known is None else known
    if whole is None:
        return own
    is_shard = np.isnan(own) & (expansion.origin >= 0) & ~np.isnan(whole[expansion.origin])
    if not is_shard.any():
        return own
    origin = expansion.origin[is_shard]
    of_whole = estimated_seconds(graph, device_type, batch)[origin]
    share = estimated_seconds(divided, device_type, batch)[is_shard]
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(of_whole > 0, share / of_whole, 1.0)
    own[is_shard] = whole[origin] * share
    return own
