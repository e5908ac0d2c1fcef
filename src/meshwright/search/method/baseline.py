"""Plans that need no search: one device, ops dealt out in turn, data parallelism."""

from dataclasses import replace

import numpy as np

from meshwright.array import Ints
from meshwright.errors import InputError
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind, Sync
from meshwright.search.incumbent import Attempt
from meshwright.search.instance import Instance, placement_plan
from meshwright.search.problem import Problem
from meshwright.search.replica import divide_batch, replicate

_NO_DEVICE = "no device type of the cluster can run every op; place ops on several devices"


def single(problem: Problem, attempt: Attempt) -> None:
    """Everything on one device: of each type the one with most memory, the fastest that fits."""
    graph, cluster, instance = problem.graph, problem.cluster, problem.instance
    attempt.raise_bound(problem.placement_bound)
    for kind in range(len(cluster.type_names)):
        if np.isfinite(instance.seconds[:, kind]).all():
            members = np.flatnonzero(cluster.type_of == kind)
            device = int(members[np.argmax(cluster.memory_bytes[members])])
            plan = placement_plan(instance, np.full(graph.num_ops, device))
            attempt.offer(plan, problem.try_plan(plan))
    if attempt.plan is None:
        attempt.refuse(_NO_DEVICE)


def round_robin(problem: Problem, attempt: Attempt) -> None:
    """Op i on device i modulo devices; a co-location group where its first op goes.

    Where that device cannot run the unit, the next one that can.
    """
    instance = problem.instance
    attempt.raise_bound(problem.placement_bound)
    first_op = instance.unit_ops[instance.unit_start[:-1]]
    device_of_unit = nearest_runnable(instance, first_op % instance.num_devices)
    if device_of_unit is None:
        attempt.refuse("an op can run on no device type of the cluster")
        return
    plan = placement_plan(instance, device_of_unit[instance.unit_of])
    attempt.offer(plan, problem.settle(plan))


def nearest_runnable(instance: Instance, device_of_unit: Ints) -> Ints | None:
    """The same placement, with units that cannot run there on the next device that can run them."""
    can_run = np.isfinite(instance.unit_seconds)
    if not can_run.any(axis=1).all():
        return None
    placed = device_of_unit.astype(np.int32)
    for unit in np.flatnonzero(~can_run[np.arange(len(placed)), instance.type_of[placed]]).tolist():
        runs = np.flatnonzero(can_run[unit, instance.type_of])
        placed[unit] = runs[np.argmin((runs - placed[unit]) % instance.num_devices)]
    return placed


def data(problem: Problem, attempt: Attempt) -> None:
    """Data parallelism on all devices with equal shares of the batch."""
    _data_parallel(problem, attempt, by_speed=False)


def data_proportional(problem: Problem, attempt: Attempt) -> None:
    """Data parallelism on all devices with shares in proportion to their speed on this graph."""
    _data_parallel(problem, attempt, by_speed=True)


def horovod(problem: Problem, attempt: Attempt) -> None:
    """Data parallelism as Horovod runs it (Sergeev and Del Balso, 2018), equal shares.

    What is Horovod's: gradients are fused into buffers (our buckets; its own are of 64 MB), each is
    all-reduced by rings as soon as it is full, while backward goes on, and ops run as they become
    ready. `data` overlaps, too, but has a schedule: forward, pieces of backward and update are
    actions that run whole and in order; on six models of the zoo both took as long (2026-11-16).
    Under Horovod NCCL chooses the algorithm; plain rings and our fastest all-reduce are both
    simulated and the better one counts.
    """
    part = _replicate_all(problem, attempt, by_speed=False)
    if part is None:
        return
    for sync in (Sync.RING, Sync.ALL_REDUCE):
        plan = Plan(parts=(replace(part, sync=sync),))
        attempt.offer(plan, problem.try_plan(plan))


def _replicate_all(problem: Problem, attempt: Attempt, *, by_speed: bool) -> Part | None:
    """All ops on every device that can run them all; None: there is none, as the attempt says."""
    instance = problem.instance
    attempt.raise_bound(problem.plan_bound)
    device_seconds = instance.seconds.sum(axis=0)[instance.type_of]
    devices = np.flatnonzero(np.isfinite(device_seconds))
    if not len(devices):
        attempt.refuse(_NO_DEVICE)
        return None
    taken = device_seconds[devices]
    speed = np.ones(len(devices))
    if by_speed and (taken > 0).all():
        speed = taken.min() / taken  # of the fastest: one over the least of numbers is infinite
    shares = divide_batch(problem.graph.batch, speed)
    used = devices[shares > 0].astype(np.int32)
    attempt.statistics["replicas"] = float(len(used))
    return replicate(problem.graph, problem.cluster, used, shares[shares > 0])


def _data_parallel(problem: Problem, attempt: Attempt, *, by_speed: bool) -> None:
    part = _replicate_all(problem, attempt, by_speed=by_speed)
    if part is None:
        return
    plan = Plan(parts=(part,), schedule=Schedule(kind=ScheduleKind.GPIPE, microbatches=1))
    try:
        attempt.offer(plan, problem.settle(plan))
    except InputError:
        # No schedule can run it: phases out of order, or an op that needs the whole batch, and so
        # all replicas, in the middle of a stage. Without one, ops run as they become ready.
        plan = Plan(parts=(part,))
        attempt.offer(plan, problem.settle(plan))
