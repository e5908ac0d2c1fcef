"""Graph partitioning with METIS (Karypis and Kumar, SIAM J. Sci. Comput. 1998).

Balances compute and minimises the bytes that cross devices. Knows nothing of order and of memory:
what it is compared with in the literature, not what it is best at.
"""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import perf_counter

import numpy as np
import numpy.typing as npt
import pymetis

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.search.baseline import nearest_runnable
from meshwright.search.bound import placement_bound
from meshwright.search.instance import Floats, Instance, Ints, make_instance, placement_plan
from meshwright.search.judge import judge, refuse
from meshwright.search.mcmc import no_device_message

_WEIGHT_SUM = 2**30
"""METIS counts in 32 bits: weights are scaled to add up to this at most."""


def metis(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,
    budget_seconds: float = 30.0,  # noqa: ARG001 - all methods are called alike
    sharing: str = "fair",
) -> Answer:
    """The partition of the units: loads by device speed, cut edges by bytes."""
    started = perf_counter()
    instance = make_instance(graph, cluster)
    bound = placement_bound(instance)
    placed = nearest_runnable(instance, partition_units(instance, seed))
    if placed is None:
        return refuse("metis", no_device_message(instance), bound, started)
    plan = placement_plan(instance, placed[instance.unit_of])
    return judge("metis", graph, cluster, plan, bound, started, {}, sharing)


def partition_units(instance: Instance, seed: int) -> Ints:
    """METIS's device of each unit, whether or not it can run there."""
    speed = _device_speeds(instance)
    # Never more parts than units, and then on the fastest devices.
    devices = np.sort(np.argsort(-speed, kind="stable")[: instance.num_units])
    if len(devices) < 2:
        return np.full(instance.num_units, devices[0] if len(devices) else 0, dtype=np.int32)
    start, neighbour, weight = _unit_graph(instance)
    targets = speed[devices] / speed[devices].sum()
    with _quiet_output():
        found = pymetis.part_graph(
            len(devices),
            pymetis.CSRAdjacency(start.tolist(), neighbour.tolist()),
            vweights=_scaled(_unit_weights(instance)).tolist(),
            eweights=_scaled(weight, whole=2 * weight.sum()).tolist() if len(weight) else None,
            tpwgts=targets.tolist(),
            recursive=len(devices) <= 8,  # METIS's manual: better for few parts
            options=pymetis.Options(seed=seed % 2**31),
        )
    placed: Ints = devices[np.array(found.vertex_part, dtype=np.int64)].astype(np.int32)
    return placed


@contextmanager
def _quiet_output() -> Iterator[None]:
    """METIS prints remarks ("Cannot bisect a graph with 0 vertices!") to the standard output.

    That is where `--json` writes its one object, so the C library's output goes nowhere meanwhile.
    """
    sys.stdout.flush()
    flush = ctypes.CDLL(None).fflush
    flush(None)
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        flush(None)
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _device_speeds(instance: Instance) -> Floats:
    """1 / time of all ops that the device can run; equal where nothing takes time."""
    can_run = np.isfinite(instance.seconds)
    totals = np.where(can_run, instance.seconds, 0.0).sum(axis=0)
    share = can_run.mean(axis=0)  # a device that can run few ops is no faster for it
    speed = np.where(totals > 0, share / np.maximum(totals, 1e-300), 0.0)
    if not speed.any():
        speed = np.ones_like(speed)
    floored: Floats = np.maximum(speed, speed.max() * 1e-3)[instance.type_of]
    return floored


def _unit_weights(instance: Instance) -> Floats:
    """Mean time of each unit over the types that can run it."""
    can_run = np.isfinite(instance.unit_seconds)
    total = np.where(can_run, instance.unit_seconds, 0.0).sum(axis=1)
    mean: Floats = total / np.maximum(can_run.sum(axis=1), 1)
    return mean


def _unit_graph(
    instance: Instance,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], Floats]:
    """The undirected graph of units, compressed by rows, with the bytes of each edge."""
    source, target = (instance.unit_of[ends].astype(np.int64) for ends in instance.graph.edges)
    size = instance.graph.tensor_bytes[instance.graph.use_tensor]
    is_cut = source != target
    ends = np.concatenate((source[is_cut], target[is_cut]))
    other = np.concatenate((target[is_cut], source[is_cut]))
    sizes = np.concatenate((size[is_cut], size[is_cut]))
    pairs, inverse = np.unique(ends * instance.num_units + other, return_inverse=True)
    weight = np.bincount(inverse, weights=sizes, minlength=len(pairs)).astype(np.float64)
    start = np.searchsorted(pairs, np.arange(instance.num_units + 1) * instance.num_units)
    return start.astype(np.int64), pairs % max(1, instance.num_units), weight


def _scaled(values: Floats, whole: float | None = None) -> npt.NDArray[np.int64]:
    """Positive integers in proportion that together stay within what METIS can count."""
    total = float(values.sum()) if whole is None else whole
    if total <= 0:
        return np.ones(len(values), dtype=np.int64)
    return np.maximum(1, np.rint(values / total * _WEIGHT_SUM)).astype(np.int64)
