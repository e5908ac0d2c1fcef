"""Graph partitioning with METIS (Karypis and Kumar, SIAM J. Sci. Comput. 1998).

Balances compute and minimises the bytes that cross devices. Knows nothing of order and of memory:
what it is compared with in the literature, not what it is best at.
"""

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.graph.coarsen.partition import (
    cut_graph,
    gather_neighbours,
    scaled_weights,
)
from meshwright.search.incumbent import Attempt
from meshwright.search.instance import (
    Instance,
    explain_nowhere,
    mean_type_seconds,
    placement_plan,
)
from meshwright.search.method.baseline import nearest_runnable
from meshwright.search.problem import Problem


def metis(problem: Problem, attempt: Attempt) -> None:
    """The partition of the units: loads by device speed, cut edges by bytes."""
    instance = problem.instance
    attempt.raise_bound(problem.placement_bound)
    placed = nearest_runnable(instance, partition_units(instance, problem.seed))
    if placed is None:
        attempt.refuse(explain_nowhere(instance))
        return
    plan = placement_plan(instance, placed[instance.unit_of])
    attempt.offer(plan, problem.settle(plan))


def partition_units(instance: Instance, seed: int) -> Ints:
    """METIS's device of each unit, whether or not it can run there."""
    speed = _device_speeds(instance)
    # Never more parts than units, and then on the fastest devices.
    devices = np.sort(np.argsort(-speed, kind="stable")[: instance.num_units])
    if len(devices) < 2:
        return np.full(instance.num_units, devices[0] if len(devices) else 0, dtype=np.int32)
    source, target = (instance.unit_of[ends].astype(np.int64) for ends in instance.graph.edges)
    size = instance.graph.tensor_bytes[instance.graph.use_tensor]
    start, neighbour, weight = gather_neighbours(source, target, size, instance.num_units)
    targets = speed[devices] / speed[devices].sum()
    found = cut_graph(
        len(devices),
        (start, neighbour),
        scaled_weights(mean_type_seconds(instance.unit_seconds)),
        scaled_weights(weight, whole=2 * weight.sum()),
        seed=seed,
        targets=targets.tolist(),
    )
    return devices[found].astype(np.int32)


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
