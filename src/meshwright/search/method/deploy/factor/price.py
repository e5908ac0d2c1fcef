"""What sufficient factor broadcasting costs and saves, op by op and tensor by tensor.

Knows which ops every replica may compute whole, and what that takes; does not choose.

TAG's programme has, for D replicas whose slowest pair sends tau bytes a second: (D - 1) T for an op
that takes T on one replica's share, D (D - 1) L / tau for a tensor of which each holds L bytes, and
2 (D - 1) / D L / tau saved for a gradient of L bytes. Here they are what the simulator charges.
The first is the difference between an op's time on the whole batch and on the share, on the replica
where it is largest: the same where time is in proportion to samples, less where it is not. The
second is an all-gather, which lowering inserts and which takes a D-th of D (D - 1) transfers one
after the other. The third is the fastest all-reduce; a ring's on links as fast as tau is TAG's.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import fsum

import numpy as np

from meshwright.array import sum_by
from meshwright.cluster.cluster import Cluster
from meshwright.cost.collective import Collective, CollectiveModel, collective_model
from meshwright.cost.compute import op_seconds
from meshwright.errors import InputError
from meshwright.graph.graph import Bools, Floats, Graph, Phase, Split
from meshwright.plan.part import SHARES_TOLERANCE
from meshwright.program.bucket import gradient_tensors


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FactorPrices:
    """The coefficients of the programme, in seconds."""

    duplicate: Floats
    """By op: how much longer the whole batch takes a replica than its own rows, on the replica
    where that is most; zero where all run it in full anyway, infinite where it must not be."""
    broadcast: Floats
    """By tensor: to gather its rows on all replicas; zero where all have it whole anyway, infinite
    where it is each replica's own, a sum over its rows: it is computed whole or is not whole."""
    saved: Floats
    """By op: the all-reduce of the gradients that it makes for updates; zero: it makes none."""


def price_factors(
    graph: Graph,
    cluster: Cluster,
    devices: Sequence[int],
    shares: Sequence[float] = (),
    within: Collection[int] | None = None,
) -> FactorPrices:
    """The prices for replicas on these devices; ops outside `within` are none of theirs."""
    portions = _check_shares(devices, shares)
    is_inside = np.full(graph.num_ops, within is None)
    if within is not None:
        is_inside[list(within)] = True
    gather = collective_model(cluster, Collective.ALL_GATHER, devices)
    reduce = collective_model(cluster, Collective.ALL_REDUCE, devices)
    # Of messages that fill buckets: no latency is saved with one gradient of many.
    less, more = (reduce.cost(size).seconds for size in (8e6, 16e6))
    return FactorPrices(
        duplicate=_duplicate_seconds(graph, cluster, devices, portions, is_inside),
        broadcast=_broadcast_seconds(graph, gather),
        saved=np.where(is_inside, gradient_bytes(graph) * ((more - less) / 8e6), 0.0),
    )


def gradient_bytes(graph: Graph) -> Floats:
    """By op: what its replicas would have to synchronise."""
    tensors = gradient_tensors(graph)
    source = graph.tensor_source[tensors]
    return sum_by(source, graph.tensor_bytes[tensors], graph.num_ops)


def _check_shares(devices: Sequence[int], shares: Sequence[float]) -> tuple[float, ...]:
    portions = tuple(shares) or (1 / len(devices),) * len(devices)
    if len(portions) != len(devices):
        raise InputError(f"factors: shares must be one a device ({len(devices)}), got {portions}")
    if abs(fsum(portions) - 1) > SHARES_TOLERANCE or min(portions) <= 0:
        raise InputError(f"factors: shares must be positive and add up to 1, got {portions}")
    return portions


def _duplicate_seconds(
    graph: Graph,
    cluster: Cluster,
    devices: Sequence[int],
    portions: tuple[float, ...],
    is_inside: Bools,
) -> Floats:
    more = np.zeros(graph.num_ops)
    for name, share in {
        (cluster.devices[device].type, share)
        for device, share in zip(devices, portions, strict=True)
    }:
        kind = cluster.types[name]
        whole = op_seconds(graph, kind, graph.batch)
        with np.errstate(invalid="ignore"):  # what cannot run there: infinity less infinity
            grown = whole - op_seconds(graph, kind, graph.batch * share)
        more = np.maximum(more, np.where(np.isfinite(whole), grown, np.inf))
    more[graph.split == Split.NONE] = 0.0
    more[~is_inside | (graph.phase == Phase.UPDATE)] = np.inf
    return more


def _broadcast_seconds(graph: Graph, gather: CollectiveModel) -> Floats:
    growing = graph.tensor_bytes - graph.fixed_tensor_bytes
    sizes, place = np.unique(growing, return_inverse=True)
    times = np.array([gather.cost(size).seconds if size else 0.0 for size in sizes.tolist()])
    seconds: Floats = times[place]
    seconds[graph.split[graph.tensor_source] == Split.NONE] = 0.0
    seconds[_find_own(graph)] = np.inf
    return seconds


def _find_own(graph: Graph) -> Bools:
    """The tensors that are each replica's own and no rows: sums, and what is made of them alone.

    Backward starts from such a number: the replica's share of the batch, which its loss counts for.
    """
    is_own = graph.tensor_partial.copy()
    for op in np.flatnonzero(graph.split == Split.NONE).tolist():  # in a topological order
        if graph.phase[op] == Phase.BACKWARD or is_own[graph.inputs[op]].any():
            is_own[graph.outputs[op]] = graph.phase[op] != Phase.UPDATE
    return is_own
