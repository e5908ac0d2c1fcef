"""Turns a Program and the Cluster it runs on into the tasks, streams and flows of the engine."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.cluster.cluster import Cluster
from meshwright.cost.collective import Algorithm, Collective, CollectiveCost, collective_model
from meshwright.errors import InputError
from meshwright.program.program import PAIR, Kind, Program, StreamRule
from meshwright.simulate.edge import count_edges, fill_edges, set_tasks
from meshwright.simulate.engine import BY_PRIORITY, BY_READY_TIME, STREAM, TASK
from meshwright.simulate.share import FLOW_CLASS, LINK, USE

Records = npt.NDArray[np.void]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]

SHARINGS = ("none", "fair")

COLLECTIVES = {
    Kind.ALL_REDUCE: Collective.ALL_REDUCE,
    Kind.ALL_GATHER: Collective.ALL_GATHER,
    Kind.BROADCAST: Collective.BROADCAST,
}


@dataclass(frozen=True, kw_only=True, eq=False)
class FlowClass:
    """Flows that use the same links in the same way."""

    links: Ints
    weights: Floats
    """Bytes on each link for each byte of a flow."""
    cap: float
    """The highest rate of one flow."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """The flows of a program: classes, the class of each task, and the links they share."""

    classes: tuple[FlowClass, ...]
    link_bytes_per_second: Floats
    """The cluster's links, then one for each allocation of the plan."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Engine:
    """The arguments of `run_tasks`."""

    tasks: Records
    task_of: Ints
    """The task of each instruction."""
    following: Ints
    streams: Records
    flow_bytes: Floats
    """What each task puts through its busiest link; empty without sharing."""
    network: Network


def prepare_engine(program: Program, cluster: Cluster, sharing: str) -> Engine:
    """Everything the engine needs; `sharing` is "none" or "fair"."""
    if sharing not in SHARINGS:
        raise InputError(f"sharing: must be one of {', '.join(SHARINGS)}, got {sharing}")
    rows = program.instructions
    num_tasks = int(rows["task"].max()) + 1 if len(rows) else 0
    tasks = np.empty(num_tasks + 1, TASK)
    task_of, ordered = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)
    capacity = np.append(
        cluster.link_bytes_per_second, [each.bytes_per_second for each in program.allocations]
    )
    allocation = _allocated_pairs(program, cluster)
    bandwidth = _pair_bandwidth(cluster, allocation, capacity)
    num_devices = cluster.num_devices if sharing == "fair" else 0
    pairs = np.full((num_devices, num_devices), -1, np.int32)
    queued = np.zeros(len(program.stream_rule), np.int64)
    flow_bytes = np.zeros(num_tasks if sharing == "fair" else 0)
    routes = (cluster.latency, bandwidth, pairs)
    num_ordered, num_collective = set_tasks(
        rows, program.stream_rule, tasks, *routes, task_of, ordered, queued, flow_bytes
    )
    classes = _pair_classes(cluster, pairs, bandwidth, allocation)
    if num_collective:
        classes += _time_collectives(program, cluster, tasks, flow_bytes, sharing, len(classes))
    writer_of = np.ascontiguousarray(program.buffers["writer"])
    chains = _chain_rows(program, ordered[:num_ordered])
    edges = (task_of, writer_of, program.reads, program.orders, chains, tasks)
    following = np.empty(count_edges(*edges), np.int32)
    fill_edges(*edges, following)
    return Engine(
        tasks=tasks,
        task_of=task_of,
        following=following,
        streams=_make_streams(program, queued),
        flow_bytes=flow_bytes,
        network=Network(classes=tuple(classes), link_bytes_per_second=capacity),
    )


def _allocated_pairs(program: Program, cluster: Cluster) -> dict[tuple[int, int], int]:
    """The link that stands for an allocation, for the pairs of devices that are under one."""
    on_host: dict[str, list[int]] = {}
    for number, device in enumerate(cluster.devices):
        on_host.setdefault(device.host, []).append(number)
    return {
        (source, target): len(cluster.links) + k
        for k, each in enumerate(program.allocations)
        for source in on_host[each.source]
        for target in on_host[each.target]
        if source != target
    }


def _pair_bandwidth(
    cluster: Cluster, allocation: dict[tuple[int, int], int], capacity: Floats
) -> Floats:
    """Bytes a second of one transfer alone from device to device, within the allocations."""
    if not allocation:
        return cluster.bandwidth
    bandwidth = cluster.bandwidth.copy()
    for pair, link in allocation.items():
        bandwidth[pair] = min(bandwidth[pair], capacity[link])
    bandwidth.setflags(write=False)
    return bandwidth


def _pair_classes(
    cluster: Cluster, pairs: Ints, bandwidth: Floats, allocation: dict[tuple[int, int], int]
) -> list[FlowClass]:
    """A class of flows for each pair of devices in use, in the order of their numbers."""
    used = np.argwhere(pairs >= 0)
    classes = []
    for source, target in used[np.argsort(pairs[pairs >= 0])].tolist():
        route = cluster.routing.links(source, target)
        if (source, target) in allocation:
            route = np.append(route, np.int32(allocation[source, target]))
        cap = float(bandwidth[source, target])
        classes.append(FlowClass(links=route, weights=np.ones(len(route)), cap=cap))
    return classes


def _chain_rows(program: Program, rows: Ints) -> Records:
    """For streams that run in order: each instruction and the next one of its stream."""
    stream = program.instructions["stream"][rows]
    order = np.lexsort((-program.instructions["priority"][rows], stream))
    rows, stream = rows[order], stream[order]
    is_next = stream[1:] == stream[:-1]
    chains = np.empty(np.count_nonzero(is_next), PAIR)
    chains["first"], chains["second"] = rows[:-1][is_next], rows[1:][is_next]
    return chains


def _make_streams(program: Program, queued: npt.NDArray[np.int64]) -> Records:
    streams = np.zeros(len(program.stream_rule), STREAM)
    streams["queue"] = np.cumsum(queued) - queued
    streams["last_task"] = -1
    is_fifo = program.stream_rule == StreamRule.FIFO
    streams["rule"] = np.where(is_fifo, BY_READY_TIME, BY_PRIORITY)
    return streams


def _time_collectives(
    program: Program,
    cluster: Cluster,
    tasks: Records,
    flow_bytes: Floats,
    sharing: str,
    num_classes: int,
) -> list[FlowClass]:
    """Times of collectives, or their classes: one for each kind, group and size."""
    rows = program.instructions[np.flatnonzero(program.instructions["group"] >= 0)]
    classes: list[FlowClass] = []
    firsts = rows[np.unique(rows["task"], return_index=True)[1]]
    models = {}
    seen: dict[tuple[int, int, float], tuple[CollectiveCost, int]] = {}
    for row in firsts:
        kind, group, size = int(row["kind"]), int(row["group"]), float(row["bytes"])
        if (kind, group, size) not in seen:
            if (kind, group) not in models:
                name = program.group_algorithm[group] if kind == Kind.ALL_REDUCE else ""
                models[kind, group] = collective_model(
                    cluster,
                    COLLECTIVES[Kind(kind)],
                    program.groups[group],
                    Algorithm(name) if name else None,
                )
            cost = models[kind, group].cost(size)
            number = -1
            if sharing == "fair" and cost.amount_bytes > 0 and cost.seconds > cost.latency_seconds:
                number = num_classes + len(classes)
                cap = cost.amount_bytes / (cost.seconds - cost.latency_seconds)
                classes.append(FlowClass(links=cost.links, weights=cost.link_share, cap=cap))
            seen[kind, group, size] = cost, number
        cost, number = seen[kind, group, size]
        tasks["seconds"][row["task"]] = cost.seconds if number < 0 else cost.latency_seconds
        if number >= 0:
            tasks["flow_class"][row["task"]] = number
            flow_bytes[row["task"]] = cost.amount_bytes
    return classes


def network_arrays(network: Network, tasks: Records) -> tuple[Records, Records, Records, Ints]:
    """The engine's arrays of a network: classes, their uses of links, links, and links' classes."""
    num_classes, num_links = len(network.classes), len(network.link_bytes_per_second)
    lengths = np.array([len(each.links) for each in network.classes], dtype=np.int64)
    classes = np.zeros(num_classes + 1, FLOW_CLASS)
    classes["cap"][:-1] = [each.cap for each in network.classes]
    classes["done_at"] = np.inf
    classes["place"] = -1
    np.cumsum(lengths, out=classes["first_use"][1:])
    flows = tasks["flow_class"][:-1]
    sizes = np.bincount(flows[flows >= 0], minlength=num_classes)
    classes["queue"][:-1] = np.cumsum(sizes) - sizes
    uses = np.zeros(int(lengths.sum()), USE)
    links = np.zeros(num_links + 1, LINK)
    links["cap"][:-1] = network.link_bytes_per_second
    if not num_classes:
        return classes, uses, links, np.zeros(0, np.int32)
    uses["link"] = np.concatenate([each.links for each in network.classes])
    uses["weight"] = np.concatenate([each.weights for each in network.classes])
    owner = np.repeat(np.arange(num_classes, dtype=np.int32), lengths)
    order = np.argsort(uses["link"], kind="stable")
    np.cumsum(np.bincount(uses["link"], minlength=num_links), out=links["first_class"][1:])
    return classes, uses, links, owner[order]
