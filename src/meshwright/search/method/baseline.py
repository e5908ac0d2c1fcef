"""Plans that need no search: one device, ops dealt out in turn, data parallelism."""

from dataclasses import replace
from time import perf_counter

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind, Sync
from meshwright.search.bound.work import placement_bound, plan_bound
from meshwright.search.instance import Instance, make_instance, placement_plan
from meshwright.search.judge import judge, refuse, try_plan

_NO_DEVICE = "no device type of the cluster can run every op; place ops on several devices"


def single(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,  # noqa: ARG001 - all methods are called alike
    budget_seconds: float = 30.0,  # noqa: ARG001
    sharing: str = "fair",
) -> Answer:
    """Everything on one device: of each type the one with most memory, the fastest that fits."""
    started = perf_counter()
    instance = make_instance(graph, cluster)
    bound = placement_bound(instance)
    tried = []
    for kind in range(len(cluster.type_names)):
        if np.isfinite(instance.seconds[:, kind]).all():
            members = np.flatnonzero(cluster.type_of == kind)
            device = int(members[np.argmax(cluster.memory_bytes[members])])
            plan = placement_plan(instance, np.full(graph.num_ops, device))
            tried.append((try_plan(graph, cluster, plan, sharing), plan))
    if not tried:
        return refuse("single", _NO_DEVICE, bound, started)
    verdict, plan = min(tried, key=lambda each: each[0].rank)
    return judge("single", graph, cluster, plan, bound, started, {}, sharing, verdict)


def round_robin(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,  # noqa: ARG001
    budget_seconds: float = 30.0,  # noqa: ARG001
    sharing: str = "fair",
) -> Answer:
    """Op i on device i modulo devices; a co-location group where its first op goes.

    Where that device cannot run the unit, the next one that can.
    """
    started = perf_counter()
    instance = make_instance(graph, cluster)
    bound = placement_bound(instance)
    first_op = instance.unit_ops[instance.unit_start[:-1]]
    device_of_unit = nearest_runnable(instance, first_op % cluster.num_devices)
    if device_of_unit is None:
        binding = "an op can run on no device type of the cluster"
        return refuse("round-robin", binding, bound, started)
    plan = placement_plan(instance, device_of_unit[instance.unit_of])
    return judge("round-robin", graph, cluster, plan, bound, started, {}, sharing)


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


def data(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,  # noqa: ARG001
    budget_seconds: float = 30.0,  # noqa: ARG001
    sharing: str = "fair",
) -> Answer:
    """Data parallelism on all devices with equal shares of the batch."""
    return _data_parallel("data", graph, cluster, sharing, by_speed=False)


def data_proportional(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,  # noqa: ARG001
    budget_seconds: float = 30.0,  # noqa: ARG001
    sharing: str = "fair",
) -> Answer:
    """Data parallelism on all devices with shares in proportion to their speed on this graph."""
    return _data_parallel("data-proportional", graph, cluster, sharing, by_speed=True)


def horovod(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,  # noqa: ARG001
    budget_seconds: float = 30.0,  # noqa: ARG001
    sharing: str = "fair",
) -> Answer:
    """Data parallelism as Horovod runs it (Sergeev and Del Balso, 2018), equal shares.

    What is Horovod's: gradients are fused into buffers (our buckets; its own are of 64 MB), each is
    all-reduced by rings as soon as it is full, while backward goes on, and ops run as they become
    ready. `data` overlaps, too, but has a schedule: forward, pieces of backward and update are
    actions that run whole and in order; on six models of the zoo both took as long (2026-11-16).
    Under Horovod NCCL chooses the algorithm; plain rings and our fastest all-reduce are both
    simulated and the better one counts.
    """
    started = perf_counter()
    instance = make_instance(graph, cluster)
    bound = plan_bound(instance)
    devices = _able_devices(instance)
    if not len(devices):
        return refuse("horovod", _NO_DEVICE, bound, started)
    shares = divide_batch(graph.batch, np.ones(len(devices)))
    used = devices[shares > 0].astype(np.int32)
    part = replicate(graph, cluster, used, shares[shares > 0])
    plans = [Plan(parts=(replace(part, sync=each),)) for each in (Sync.RING, Sync.ALL_REDUCE)]
    tried = [(try_plan(graph, cluster, plan, sharing), plan) for plan in plans]
    verdict, plan = min(tried, key=lambda each: each[0].rank)
    statistics = {"replicas": float(len(used))}
    return judge("horovod", graph, cluster, plan, bound, started, statistics, sharing, verdict)


def _able_devices(instance: Instance) -> npt.NDArray[np.int_]:
    """The devices that can run every op."""
    device_seconds = instance.seconds.sum(axis=0)[instance.type_of]
    return np.flatnonzero(np.isfinite(device_seconds))


def _data_parallel(
    method: str, graph: Graph, cluster: Cluster, sharing: str, *, by_speed: bool
) -> Answer:
    started = perf_counter()
    instance = make_instance(graph, cluster)
    bound = plan_bound(instance)
    device_seconds = instance.seconds.sum(axis=0)[instance.type_of]
    devices = _able_devices(instance)
    if not len(devices):
        return refuse(method, _NO_DEVICE, bound, started)
    speed = np.ones(len(devices))
    if by_speed and (device_seconds[devices] > 0).all():
        taken = device_seconds[devices]
        speed = taken.min() / taken  # of the fastest: one over the least of numbers is infinite
    shares = divide_batch(graph.batch, speed)
    used = devices[shares > 0].astype(np.int32)
    part = replicate(graph, cluster, used, shares[shares > 0])
    statistics = {"replicas": float(len(used))}
    plan = Plan(parts=(part,), schedule=Schedule(kind=ScheduleKind.GPIPE, microbatches=1))
    try:
        return judge(method, graph, cluster, plan, bound, started, statistics, sharing)
    except InputError:
        # No schedule can run it: phases out of order, or an op that needs the whole batch, and so
        # all replicas, in the middle of a stage. Without one, ops run as they become ready.
        plan = Plan(parts=(part,))
        return judge(method, graph, cluster, plan, bound, started, statistics, sharing)


def replicate(graph: Graph, cluster: Cluster, devices: Ints, shares: Floats) -> Part:
    """All ops on these devices."""
    is_equal = bool((shares == shares[0]).all())
    return Part(
        ops=graph.op_names,
        devices=tuple(cluster.devices[each].name for each in devices.tolist()),
        shares=() if is_equal else tuple(shares.tolist()),
    )


def divide_batch(batch: float, speed: Floats) -> Floats:
    """Shares in proportion to speed, in whole samples where the batch counts samples.

    What rounding down leaves goes one by one to the largest remainders; a share may be zero. A
    batch of one may be a profile that does not count samples, so it is divided freely.
    """
    shares: Floats = speed / speed.sum()
    if batch <= 1 or not float(batch).is_integer():
        return shares
    samples = np.floor(shares * batch + 1e-9)
    left = round(batch - samples.sum())
    order = np.argsort(-(shares * batch - samples), kind="stable")
    samples[order[:left]] += 1
    divided: Floats = samples / batch
    return divided
