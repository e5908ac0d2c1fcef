"""HEFT (Topcuoglu, Hariri, Wu, IEEE TPDS 2002): list scheduling by upward rank.

Ops are taken by falling rank, the longest path to the end by mean times of ops and transfers; each
goes to the device on which it finishes first, in the earliest gap that it fits in. A co-location
group goes where its first op (by rank) finishes first: the later ones, backward ops and updates,
are not known yet. A device without room for what the group holds is passed over; when none has
room, the one with the most is taken and the simulator decides.
"""

from time import perf_counter
from typing import Any

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.compiled import compiled, inlined
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.plan.plan import Discipline
from meshwright.search.bound import placement_bound
from meshwright.search.instance import Floats, Instance, Ints, make_instance, placement_plan
from meshwright.search.judge import judge, refuse, tighten, try_plan
from meshwright.search.list_schedule import move_seconds
from meshwright.search.mcmc import no_device_message

TASK = np.dtype(
    [
        ("start", np.float64),
        ("finish", np.float64),
        ("rank", np.float64),
        ("device", np.int32),
        ("before", np.int32),  # its neighbours on its device, in time; -1: none
        ("after", np.int32),
        ("first_in", np.int32),
    ],
    align=True,
)
"""One op; arrays of it have one entry more than ops."""

HOME = np.dtype([("room", np.float64), ("type", np.int32), ("last", np.int32)], align=True)
"""One device: memory that is left, and the last of its ops."""


_TRIES = 6
"""Plans that lack memory are made again with less to fill, so often at most."""


def heft(
    graph: Graph,
    cluster: Cluster,
    *,
    seed: int = 0,  # noqa: ARG001 - all methods are called alike
    budget_seconds: float = 30.0,  # noqa: ARG001
    sharing: str = "fair",
) -> Answer:
    """HEFT's placement and order."""
    started = perf_counter()
    instance = make_instance(graph, cluster)
    bound = placement_bound(instance)
    if not np.isfinite(instance.unit_seconds).any(axis=1).all():
        return refuse("heft", no_device_message(instance), bound, started)
    limits = cluster.memory_bytes
    for _ in range(_TRIES):
        device_of_op, order, seconds = schedule_heft(instance, limits)
        priorities = np.empty(instance.num_ops)
        priorities[order] = -np.arange(instance.num_ops, dtype=np.float64)
        plan = placement_plan(instance, device_of_op, priorities, Discipline.ORDER)
        verdict = try_plan(graph, cluster, plan, sharing)
        if verdict.fits:
            break
        limits = tighten(limits, verdict)
    statistics = {"unshared_seconds": seconds}
    return judge("heft", graph, cluster, plan, bound, started, statistics, sharing, verdict)


def schedule_heft(
    instance: Instance,
    memory_bytes: Floats | None = None,
    transfer: tuple[float, float] | None = None,
) -> tuple[Ints, Ints, float]:
    """The device of each op, the ops by start time, and the time of the whole schedule.

    `memory_bytes` is what may be filled of each device; None: all. `transfer`: latency and seconds
    a byte that ranks count with; None: HEFT's own, the means over pairs of devices.
    """
    if memory_bytes is None:
        memory_bytes = instance.cluster.memory_bytes
    tasks = np.zeros(instance.num_ops + 1, TASK)
    tasks["first_in"] = instance.in_start
    tasks["device"] = tasks["before"] = tasks["after"] = -1
    homes = np.zeros(instance.num_devices, HOME)
    homes["room"], homes["type"] = memory_bytes, instance.type_of
    homes["last"] = -1
    latency, per_byte = transfer or mean_transfer(instance)
    _fill_ranks(tasks, instance.in_edges, _mean_seconds(instance), latency, per_byte)
    by_rank = np.lexsort((np.arange(instance.num_ops), -tasks["rank"][:-1])).astype(np.int32)
    unit_device = np.full(instance.num_units, -1, dtype=np.int32)
    seconds = _place_all(
        tasks, homes, by_rank, instance.in_edges, instance.seconds, instance.latency,
        instance.bandwidth, instance.unit_of, instance.unit_bytes, instance.unit_seconds,
        unit_device,
    )  # fmt: skip
    # An op of no time may start with the next one on its device: it finishes first.
    order = np.lexsort((np.arange(instance.num_ops), tasks["finish"][:-1], tasks["start"][:-1]))
    return tasks["device"][:-1].copy(), order.astype(np.int32), seconds


def _mean_seconds(instance: Instance) -> Floats:
    """Of each op over the devices that can run it."""
    counts = np.bincount(instance.type_of, minlength=instance.seconds.shape[1])
    can_run = np.isfinite(instance.seconds)
    total = np.where(can_run, instance.seconds, 0.0) @ counts
    mean: Floats = total / np.maximum(can_run @ counts, 1)
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


@compiled
def _fill_ranks(
    tasks: Any, in_edges: Any, mean_seconds: Any, latency: float, per_byte: float
) -> None:
    """Upward ranks, from the last op back: own mean time plus the longest way on."""
    for op in range(len(mean_seconds) - 1, -1, -1):
        rank = tasks[op].rank + mean_seconds[op]
        tasks[op].rank = rank
        for e in range(tasks[op].first_in, tasks[op + 1].first_in):
            source = in_edges[e].op
            way = rank + latency + in_edges[e].bytes * per_byte
            tasks[source].rank = max(tasks[source].rank, way)


@compiled
def _place_all(
    tasks: Any, homes: Any, by_rank: Any, in_edges: Any, seconds: Any, latency: Any,
    bandwidth: Any, unit_of: Any, unit_bytes: Any, unit_seconds: Any, unit_device: Any,
) -> float:  # fmt: skip
    total = 0.0
    for k in range(len(by_rank)):
        op = np.int64(by_rank[k])
        unit = unit_of[op]
        first, end = np.int64(0), np.int64(len(homes))
        is_fixed = unit_device[unit] >= 0
        if is_fixed:
            first, end = np.int64(unit_device[unit]), np.int64(unit_device[unit]) + 1
        # Smallest (lack of room, finish): lack is zero wherever the unit fits.
        best: Any = np.int64(-1)
        best_lack, best_start, best_finish = np.inf, 0.0, np.inf
        for device in range(first, end):
            kind = homes[device].type
            if unit_seconds[unit, kind] == np.inf:
                continue
            lack = 0.0 if is_fixed else max(0.0, unit_bytes[unit] - homes[device].room)
            if lack > best_lack:
                continue
            ready = _ready_on(tasks, in_edges, latency, bandwidth, op, device)
            start = _earliest_start(tasks, homes, device, ready, seconds[op, kind])
            finish = start + seconds[op, kind]
            if lack < best_lack or finish < best_finish:
                best, best_lack, best_start, best_finish = device, lack, start, finish
        if not is_fixed:
            unit_device[unit] = best
            homes[best].room -= unit_bytes[unit]
        _insert(tasks, homes, op, best, best_start, best_finish)
        total = max(total, best_finish)
    return total


@inlined
def _ready_on(
    tasks: Any, in_edges: Any, latency: Any, bandwidth: Any, op: Any, device: Any
) -> float:
    ready = 0.0
    for e in range(tasks[op].first_in, tasks[op + 1].first_in):
        source = in_edges[e].op
        moved = move_seconds(latency, bandwidth, tasks[source].device, device, in_edges[e].bytes)
        ready = max(ready, tasks[source].finish + moved)
    return ready


@inlined
def _earliest_start(tasks: Any, homes: Any, device: Any, ready: float, needed: float) -> float:
    """The earliest start not before `ready` in a gap of at least `needed`."""
    after = np.int64(-1)
    at = np.int64(homes[device].last)
    while at >= 0 and tasks[at].finish > ready:  # back to the first op that ends after `ready`
        after = at
        at = np.int64(tasks[at].before)
    start = ready  # what is at `at` ends by then
    while after >= 0 and start + needed > tasks[after].start:
        start = max(start, tasks[after].finish)
        after = np.int64(tasks[after].after)
    return start


@inlined
def _insert(tasks: Any, homes: Any, op: Any, device: Any, start: float, finish: float) -> None:
    """Put an op into its device's list: before the first one that starts at its finish or later."""
    tasks[op].device = device
    tasks[op].start = start
    tasks[op].finish = finish
    after = np.int64(-1)
    at = np.int64(homes[device].last)
    while at >= 0 and tasks[at].start >= finish and tasks[at].finish > start:
        after = at
        at = np.int64(tasks[at].before)
    tasks[op].before = at
    tasks[op].after = after
    if at >= 0:
        tasks[at].after = op
    if after >= 0:
        tasks[after].before = op
    else:
        homes[device].last = op
