"""Random instances and plain re-implementations for the tests of the search for placements."""

import itertools
import math

import numpy as np
from hypothesis import strategies as st

from meshwright.array import Ints
from meshwright.cluster.cluster import Cluster, Device, DeviceType, Link
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.search.instance import Instance, make_instance

EXACT = (0.0, 1.0, 2.0, 2.5, 7.0)
"""Sums of these have no rounding, so that equal times are equal numbers; the first takes none."""
ROUNDED = (0.1, 0.7, 1.1, 1 / 3, 2.3)


@st.composite
def steps(draw: st.DrawFn, min_ops: int, max_ops: int, times: tuple[float, ...] = EXACT) -> Graph:
    """Graphs with groups, ops of no time, ops that run on one type only, and saved tensors."""
    num_ops = draw(st.integers(min_ops, max_ops))
    builder = GraphBuilder("random", 4)
    phases = sorted(draw(st.sampled_from(Phase)) for _ in range(num_ops))
    sizes = st.sampled_from([0.0, 0.0, 1.0, 3.0])
    for number, phase in enumerate(phases):
        forward = [i for i in range(number) if phases[i] == Phase.FORWARD]
        has_partner = phase == Phase.BACKWARD and forward and draw(st.booleans())
        fast = draw(st.sampled_from(times))
        builder.add_op(
            f"op{number}",
            phase=phase,
            split=Split.NONE if phase == Phase.UPDATE else Split.BATCH,
            group=draw(st.sampled_from([-1, -1, -1, 0, 1])),
            partner=draw(st.sampled_from(forward)) if has_partner else -1,
            seconds={"fast": fast, "slow": draw(st.sampled_from([2 * fast, 1.0, math.inf]))},
            state_bytes=draw(sizes),
            saved_bytes=draw(sizes) if phase == Phase.FORWARD else 0.0,
        )
    for source in range(num_ops - 1):
        later = st.sampled_from(range(source + 1, num_ops))
        for _ in range(draw(st.integers(0, 2))):
            size = draw(st.sampled_from([0.0, 0.75, 1.0, 4.0]))
            builder.add_tensor(source, size, draw(st.lists(later, max_size=3, unique=True)))
    return builder.finish()


@st.composite
def machines(draw: st.DrawFn, min_devices: int, max_devices: int) -> Cluster:
    """One fast device at least; every ordered pair has a rate of its own."""
    num_devices = draw(st.integers(min_devices, max_devices))
    kinds = ["fast", *(draw(st.sampled_from(["fast", "slow"])) for _ in range(num_devices - 1))]
    names = [f"d{place}" for place in range(num_devices)]
    latency = draw(st.sampled_from([0.0, 0.25, 1.0]))
    rate = st.sampled_from([0.5, 1.0, 4.0, 128.0])
    return Cluster(
        name="random",
        types={kind: _device_type(kind) for kind in dict.fromkeys(kinds)},
        devices=tuple(
            Device(name=name, type=kind, host=f"h{name}", memory_bytes=1e12)
            for name, kind in zip(names, kinds, strict=True)
        ),
        links=tuple(
            Link(source=a, target=b, bytes_per_second=draw(rate), latency_seconds=latency)
            for a, b in itertools.permutations(names, 2)
        ),
    )


def _device_type(name: str) -> DeviceType:
    return DeviceType(
        name=name,
        flops_per_second={"fp32": 1.0},
        memory_bytes=1e12,
        memory_bytes_per_second=1.0,
    )


@st.composite
def instances(
    draw: st.DrawFn,
    min_ops: int = 1,
    max_ops: int = 12,
    min_devices: int = 1,
    max_devices: int = 3,
    times: tuple[float, ...] = EXACT,
) -> Instance:
    """What `steps` and `machines` make; every unit can run on a fast device."""
    graph = draw(steps(min_ops, max_ops, times))
    return make_instance(graph, draw(machines(min_devices, max_devices)))


def random_devices(instance: Instance, seed: int) -> Ints:
    """A device for each unit, one that can run it."""
    generator = np.random.default_rng(seed)
    can_run = np.isfinite(instance.unit_seconds)[:, instance.type_of]
    draws = generator.random(can_run.shape) * can_run
    chosen: Ints = draws.argmax(axis=1).astype(np.int32)
    return chosen


def random_order(instance: Instance, seed: int) -> Ints:
    """A random topological order, along what is saved, too."""
    generator = np.random.default_rng(seed)
    edges = list_edges(instance)
    waits = [sum(target == op for _, target, _ in edges) for op in range(instance.num_ops)]
    ready = [op for op in range(instance.num_ops) if waits[op] == 0]
    order = []
    while ready:
        op = ready.pop(int(generator.integers(len(ready))))
        order.append(op)
        for source, target, _ in edges:
            if source == op:
                waits[target] -= 1
                if waits[target] == 0:
                    ready.append(target)
    return np.array(order, np.int32)


def list_edges(instance: Instance) -> list[tuple[int, int, float]]:
    """Source, reader and bytes."""
    source = np.repeat(np.arange(instance.num_ops), np.diff(instance.out_start))
    columns = source, instance.out_edges["op"], instance.out_edges["bytes"]
    return list(zip(*(column.tolist() for column in columns), strict=True))


def is_topological(instance: Instance, order: Ints, devices: Ints) -> bool:
    """Whether sources come first; what is saved on another device counts for nothing."""
    place = np.argsort(order)
    return sorted(order.tolist()) == list(range(instance.num_ops)) and all(
        place[source] < place[target] or (size < 0 and devices[source] != devices[target])
        for source, target, size in list_edges(instance)
    )


def list_waits(instance: Instance, devices: Ints) -> list[list[tuple[int, float]]]:
    """For each op what it waits for under a placement: ops, and the seconds from their end on.

    What is saved on another device is waited for by none.
    """
    waits: list[list[tuple[int, float]]] = [[] for _ in range(instance.num_ops)]
    for source, target, size in list_edges(instance):
        pair = int(devices[source]), int(devices[target])
        if pair[0] == pair[1]:
            waits[target].append((source, 0.0))
        elif size >= 0:
            moved = instance.latency[pair] + size / instance.bandwidth[pair]
            waits[target].append((source, float(moved)))
    return waits


def own_seconds(instance: Instance, devices: Ints) -> list[float]:
    """Of each op where it is."""
    own = instance.seconds[np.arange(instance.num_ops), instance.type_of[devices]]
    return [float(each) for each in own]


def run_in_order(instance: Instance, devices: Ints, order: Ints) -> float:
    """The time of the step when every device runs its ops in this order."""
    waits, own = list_waits(instance, devices), own_seconds(instance, devices)
    finish = [0.0] * instance.num_ops
    free = [0.0] * instance.num_devices
    for op in order.tolist():
        here = int(devices[op])
        start = max([free[here], *(finish[source] + moved for source, moved in waits[op])])
        finish[op] = free[here] = start + own[op]
    return max(finish)


def least_step(instance: Instance) -> float:
    """The optimum over all placements of units and all orders, each transfer alone."""
    best = math.inf
    for homes in itertools.product(range(instance.num_devices), repeat=instance.num_units):
        devices = np.array(homes, np.int32)[instance.unit_of]
        waits, own = list_waits(instance, devices), own_seconds(instance, devices)
        best = least_order(waits, own, devices.tolist(), best)
    return best


def least_order(
    waits: list[list[tuple[int, float]]], own: list[float], devices: list[int], best: float
) -> float:
    """The least time over all orders, or `best`; an order is left where it cannot be faster."""
    num_ops = len(own)

    def extend(finish: dict[int, float], free: dict[int, float], best: float) -> float:
        if len(finish) == num_ops:
            return max(finish.values())
        for op in range(num_ops):
            if op in finish or any(source not in finish for source, _ in waits[op]):
                continue
            here = devices[op]
            start = max([free.get(here, 0.0), *(finish[s] + moved for s, moved in waits[op])])
            if start + own[op] < best:
                end = start + own[op]
                best = min(best, extend({**finish, op: end}, {**free, here: end}, best))
        return best

    return extend({}, {}, best)
