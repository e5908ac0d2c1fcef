"""Makes changes: of a cluster, or of all that a search was asked.

Hosts are taken away and added first, then types, then figures of types, then links, then the batch,
so that every change holds for all of the new cluster, in whatever order they are given. Changes of
one of these are made in the order they are given.
"""

from collections.abc import Sequence
from dataclasses import replace

from meshwright.change.count import change_count
from meshwright.change.figure import change_figure, swap_type
from meshwright.change.host import drop_hosts
from meshwright.change.kind import (
    Batch,
    Change,
    ClusterChange,
    DeviceCount,
    DeviceFigure,
    LinkLatency,
    LinkRate,
    TypeSwap,
    Without,
    need_change,
)
from meshwright.change.link import change_latency, change_rate
from meshwright.change.select import select_hosts
from meshwright.cluster.cluster import Cluster
from meshwright.plan.request import Request

_ORDER = (Without, DeviceCount, TypeSwap, DeviceFigure, LinkRate, LinkLatency, Batch)


def change_request(request: Request, changes: Sequence[Change]) -> Request:
    """The request with its cluster and its batch changed; what limits the search stays."""
    cluster, graph = request.cluster, request.graph
    for change in in_order(changes):
        if isinstance(change, Batch):
            graph = graph.at_batch(change.amount.of(graph.batch))
        else:
            cluster = change_cluster(cluster, change)
            if not isinstance(change, Without | DeviceCount):
                cluster = replace(cluster, calibrations=())  # runs of what is there
    return replace(request, cluster=cluster, graph=graph)


def in_order(changes: Sequence[Change]) -> list[Change]:
    """The changes in the order in which they are made."""
    for place, change in enumerate(changes):
        need_change(change, f"changes[{place}]")
    return sorted(changes, key=lambda change: _ORDER.index(type(change)))


def change_cluster(cluster: Cluster, change: ClusterChange) -> Cluster:
    """The cluster with one change made."""
    if isinstance(change, Without):
        return drop_hosts(cluster, select_hosts(cluster, change.hosts, "without"), "without")
    if isinstance(change, DeviceCount):
        return change_count(cluster, change)
    if isinstance(change, TypeSwap):
        return swap_type(cluster, change)
    if isinstance(change, DeviceFigure):
        return change_figure(cluster, change)
    if isinstance(change, LinkRate):
        return change_rate(cluster, change)
    return change_latency(cluster, change)
