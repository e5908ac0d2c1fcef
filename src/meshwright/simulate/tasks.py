"""Turns a Program and the Cluster it runs on into the tasks, streams and flows of the engine."""

from collections import OrderedDict
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from meshwright.argument import need_one_of
from meshwright.array import Floats, Ints, Longs, Records
from meshwright.cluster.cluster import Cluster
from meshwright.cost.axis import axis_model
from meshwright.cost.collective import (
    Algorithm,
    Collective,
    CollectiveCost,
    CollectiveModel,
    collective_model,
)
from meshwright.cost.group_price import group_prices
from meshwright.cost.limit import Limits, spread_transfers
from meshwright.kernel.row import follow_lines, gather_rows
from meshwright.program.program import PAIR, Kind, Program, StreamRule
from meshwright.simulate.allocation import find_limits
from meshwright.simulate.edge import count_edges, fill_edges, set_tasks
from meshwright.simulate.engine import BY_PRIORITY, BY_READY_TIME, STREAM, TASK
from meshwright.simulate.share import FLOW_CLASS, LINK, USE
from meshwright.simulate.transfer import Pairs, find_pairs

SHARINGS = ("none", "fair")

COLLECTIVES = {
    Kind.ALL_REDUCE: Collective.ALL_REDUCE,
    Kind.ALL_GATHER: Collective.ALL_GATHER,
    Kind.BROADCAST: Collective.BROADCAST,
    Kind.REDUCE_SCATTER: Collective.REDUCE_SCATTER,
    Kind.ALL_TO_ALL: Collective.ALL_TO_ALL,
    Kind.SHIFT: Collective.SHIFT,
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
class FlowNetwork:
    """The flows of a program: classes, the class of each task, and the links they share."""

    classes: tuple[FlowClass, ...]
    link_bytes_per_second: Floats
    """The cluster's links, then one for each allocation of the plan."""
    leaves_out_wide: bool = False
    """Whether links that all their classes together cannot fill are left out of sharing, which
    changes no rate and keeps apart what never meets."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EngineInput:
    """The arguments of `run_tasks`."""

    tasks: Records
    task_of: Ints
    """The task of each instruction."""
    following: Ints
    streams: Records
    flow_bytes: Floats
    """What each task puts through its busiest link; empty without sharing."""
    network: FlowNetwork


def prepare_engine(program: Program, cluster: Cluster, sharing: str) -> EngineInput:
    """Everything the engine needs; `sharing` is "none" or "fair"."""
    need_one_of(sharing, SHARINGS, "sharing")
    rows = program.instructions
    num_tasks = int(rows["task"].max()) + 1 if len(rows) else 0
    tasks = np.empty(num_tasks + 1, TASK)
    task_of, ordered = np.empty(len(rows), np.int32), np.empty(len(rows), np.int32)
    limits = find_limits(program.allocations, cluster)
    # Teams have no table, and tables of all pairs of a large cluster would be gigabytes.
    is_listed = bool(program.teams) or not cluster.has_tables
    routes = _no_tables() if is_listed else _pair_tables(cluster, limits, sharing)
    queued = np.zeros(len(program.stream_rule), np.int64)
    flow_bytes = np.zeros(num_tasks if sharing == "fair" else 0)
    num_ordered, num_collective = set_tasks(
        rows, program.stream_rule, tasks, *routes, task_of, ordered, queued, flow_bytes
    )
    if is_listed:
        listed = find_pairs(program, cluster, limits)
        classes = _time_listed(program, listed, tasks, flow_bytes, sharing)
    else:
        classes = _pair_classes(cluster, limits, routes[2])
    if num_collective:
        models = Models(program, cluster, limits)
        classes += _time_collectives(program, models, tasks, flow_bytes, sharing, len(classes))
    writer_of = np.ascontiguousarray(program.buffers["writer"])
    chains = chain_rows(program, ordered[:num_ordered], -rows["priority"])
    edges = (task_of, writer_of, program.reads, program.orders, chains, tasks)
    following = np.empty(count_edges(*edges), np.int32)
    fill_edges(*edges, following)
    return EngineInput(
        tasks=tasks,
        task_of=task_of,
        following=following,
        streams=_make_streams(program, queued),
        flow_bytes=flow_bytes,
        network=FlowNetwork(
            classes=tuple(classes),
            link_bytes_per_second=cluster.link_bytes_per_second
            if limits is None
            else limits.capacity,
            leaves_out_wide=is_listed,
        ),
    )


def _pair_tables(
    cluster: Cluster, limits: Limits | None, sharing: str
) -> tuple[Floats, Floats, Ints]:
    """Latency and bandwidth of all pairs, and room for the numbers of those in use."""
    if sharing == "fair":
        pairs = np.full((cluster.num_devices, cluster.num_devices), -1, np.int32)
        return cluster.latency, cluster.bandwidth, pairs
    bandwidth = cluster.bandwidth
    if limits is not None:
        sources, targets = limits.pairs()
        bandwidth = bandwidth.copy()
        bandwidth[sources, targets] = spread_transfers(limits, sources, targets).bytes_per_second
        bandwidth.setflags(write=False)
    return cluster.latency, bandwidth, np.zeros((0, 0), np.int32)


def _no_tables() -> tuple[Floats, Floats, Ints]:
    """Read-only where tables are: kernels are compiled for what can be written."""
    nothing = np.zeros((0, 0))
    nothing.setflags(write=False)
    return nothing, nothing, np.zeros((0, 0), np.int32)


def _time_listed(
    program: Program, pairs: Pairs, tasks: Records, flow_bytes: Floats, sharing: str
) -> list[FlowClass]:
    """Times of transfers, or their classes: one a pair."""
    rows = program.instructions
    task = rows["task"][pairs.rows]
    tasks["seconds"][task] = pairs.latency_seconds[pairs.pair]
    if sharing != "fair":
        alone = rows["bytes"][pairs.rows] - rows["beside_bytes"][pairs.rows]
        tasks["seconds"][task] += alone / pairs.bytes_per_second[pairs.pair]
        return []
    # Fair is by what each puts on its busiest link: of flows side by side each has its own share.
    bounds, num_pairs = pairs.use_start, len(pairs.bytes_per_second)
    busiest = np.maximum.reduceat(pairs.use_weight, bounds[:-1]) if num_pairs else np.zeros(0)
    tasks["flow_class"][task] = pairs.pair
    flow_bytes[task] = rows["bytes"][pairs.rows] * busiest[pairs.pair]
    weights = pairs.use_weight / np.repeat(busiest, np.diff(bounds))
    caps = (pairs.bytes_per_second * busiest).tolist()
    return [
        FlowClass(links=pairs.use_link[low:high], weights=weights[low:high], cap=cap)
        for (low, high), cap in zip(pairwise(bounds.tolist()), caps, strict=True)
    ]


def _pair_classes(cluster: Cluster, limits: Limits | None, pairs: Ints) -> list[FlowClass]:
    """A class of flows for each pair of devices in use, in the order of their numbers."""
    used = np.argwhere(pairs >= 0)
    used = used[np.argsort(pairs[pairs >= 0])]
    if limits is not None and len(used):
        spread = spread_transfers(limits, used[:, 0], used[:, 1])
        caps = spread.bytes_per_second.tolist()
        return [
            FlowClass(links=links, weights=weights, cap=cap)
            for (links, weights), cap in zip(spread.by_transfer(), caps, strict=True)
        ]
    known = _FLOWS.setdefault(cluster, {})
    classes = []
    for pair in map(tuple, used.tolist()):
        if pair not in known:
            route = cluster.routing.links(*pair)
            cap = float(cluster.bandwidth[pair])
            known[pair] = FlowClass(links=route, weights=np.ones(len(route)), cap=cap)
        classes.append(known[pair])
    return classes


def chain_rows(program: Program, rows: Any, key: Floats) -> Records:
    """Of some instructions of streams each and the next of its stream, by a rising key."""
    first, second = follow_lines(program.instructions["stream"][rows], key[rows])
    chains = np.empty(len(first), PAIR)
    chains["first"], chains["second"] = rows[first], rows[second]
    return chains


def _make_streams(program: Program, queued: Longs) -> Records:
    streams = np.zeros(len(program.stream_rule), STREAM)
    streams["queue"] = np.cumsum(queued) - queued
    streams["last_task"] = -1
    is_fifo = program.stream_rule == StreamRule.FIFO
    streams["rule"] = np.where(is_fifo, BY_READY_TIME, BY_PRIORITY)
    return streams


def _time_collectives(
    program: Program,
    models: "Models",
    tasks: Records,
    flow_bytes: Floats,
    sharing: str,
    num_classes: int,
) -> list[FlowClass]:
    """Times of collectives, or their classes: one for each kind, group and size."""
    rows = program.instructions[np.flatnonzero(program.instructions["group"] >= 0)]
    classes: list[FlowClass] = []
    firsts = rows[np.unique(rows["task"], return_index=True)[1]]
    seen: dict[tuple[int, int, float], tuple[CollectiveCost, int]] = {}
    for row in firsts:
        kind, group, size = int(row["kind"]), int(row["group"]), float(row["bytes"])
        if (kind, group, size) not in seen:
            cost = models.find(Kind(kind), group).cost(size)
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


_MAX_MODELS = 4096
_MODELS: WeakKeyDictionary[
    Cluster, OrderedDict[tuple[Kind, tuple[int, ...], Algorithm | None], CollectiveModel]
] = WeakKeyDictionary()
"""Those of a cluster without limits, the oldest first. They follow from frozen data; searches that
simulate hundreds of plans on one cluster would spend a third of their time on them otherwise."""
_FLOWS: WeakKeyDictionary[Cluster, dict[tuple[int, ...], FlowClass]] = WeakKeyDictionary()
"""Of pairs of devices, likewise."""


class Models:
    """The collectives of a program, each kind and group priced once."""

    def __init__(self, program: Program, cluster: Cluster, limits: Limits | None) -> None:
        self._program, self._cluster, self._limits = program, cluster, limits
        self._known: dict[tuple[Kind, int], CollectiveModel] = {}

    def find(self, kind: Kind, group: int) -> CollectiveModel:
        """Of one group, or of several that do the same at the same moment."""
        if (kind, group) not in self._known:
            self._known[kind, group] = self._make(kind, group)
        return self._known[kind, group]

    def _make(self, kind: Kind, group: int) -> CollectiveModel:
        program = self._program
        if program.beside:
            together = (program.groups[group], *program.beside[group])
            if self._limits is not None:
                return axis_model(self._cluster, COLLECTIVES[kind], together, self._limits)
            return group_prices(self._cluster).model(COLLECTIVES[kind], together)
        name = program.group_algorithm[group] if kind == Kind.ALL_REDUCE else ""
        algorithm = Algorithm(name) if name else None
        devices = program.groups[group]
        if self._limits is not None:
            return collective_model(
                self._cluster, COLLECTIVES[kind], devices, algorithm, self._limits
            )
        known = _MODELS.setdefault(self._cluster, OrderedDict())
        key = kind, devices, algorithm
        if key not in known:
            known[key] = collective_model(self._cluster, COLLECTIVES[kind], devices, algorithm)
            if len(known) > _MAX_MODELS:
                known.popitem(last=False)
        return known[key]


def network_arrays(network: FlowNetwork, tasks: Records) -> tuple[Records, Records, Records, Ints]:
    """The engine's arrays of a network: classes, their uses of links, links, and links' classes."""
    num_classes, num_links = len(network.classes), len(network.link_bytes_per_second)
    owner, uses = _list_uses(network)
    lengths = np.bincount(owner, minlength=num_classes)
    classes = np.zeros(num_classes + 1, FLOW_CLASS)
    classes["cap"][:-1] = [each.cap for each in network.classes]
    classes["done_at"] = np.inf
    classes["place"] = -1
    np.cumsum(lengths, out=classes["first_use"][1:])
    flows = tasks["flow_class"][:-1]
    sizes = np.bincount(flows[flows >= 0], minlength=num_classes)
    classes["queue"][:-1] = np.cumsum(sizes) - sizes
    links = np.zeros(num_links + 1, LINK)
    links["cap"][:-1] = network.link_bytes_per_second
    order, links["first_class"] = gather_rows(uses["link"], num_links)
    return classes, uses, links, owner[order]


def _list_uses(network: FlowNetwork) -> tuple[Ints, Records]:
    """Every class's use of every link that can be full, class after class, and whose it is."""
    if not network.classes:
        return np.zeros(0, np.int32), np.zeros(0, USE)
    lengths = [len(each.links) for each in network.classes]
    uses = np.zeros(sum(lengths), USE)
    uses["link"] = np.concatenate([each.links for each in network.classes])
    uses["weight"] = np.concatenate([each.weights for each in network.classes])
    owner = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
    if network.leaves_out_wide:
        most = uses["weight"] * np.array([each.cap for each in network.classes])[owner]
        total = np.bincount(uses["link"], weights=most, minlength=1)
        wide = total <= network.link_bytes_per_second[: len(total)] * (1 + 1e-12)
        picked = ~wide[uses["link"]]
        return owner[picked], uses[picked]
    return owner, uses
