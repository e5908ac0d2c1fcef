"""The clusters, models and plans that predictions are held against measurements on.

Every cluster is hosts of one device around one switch. Devices are made so fast that a model takes
a given time on one of them, and batches so small that what crosses the network takes about as long.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from meshwright.cluster.build import hierarchical
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.cost.compute import op_seconds
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind, Sync
from meshwright.search.chain import make_chain, stages_plan
from meshwright.search.consecutive import equal_stages
from meshwright.search.instance import make_instance
from meshwright.search.portfolio import find_plan
from meshwright.source import zoo_graph
from meshwright.units import GIB, MIB

PATH_SECONDS = 1.5e-4
"""What a transfer costs besides its bytes over bandwidth, from gloo to gloo (2026-11-15)."""
SEED = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One plan of one model on one cluster."""

    model: str
    cluster: Cluster
    megabits: int
    graph: Graph
    plan_name: str
    plan: Plan

    @property
    def group(self) -> tuple[str, int, int]:
        """Cases of one group compete with each other."""
        return self.model, self.cluster.num_devices, self.megabits


def make_cluster(num_hosts: int, megabits: int, device_type: DeviceType) -> Cluster:
    """Hosts of one device around a switch, with the path's latency on the links to it."""
    cluster = hierarchical(
        devices_per_host=1,
        branching=(num_hosts,),
        device_type=device_type,
        device_bytes_per_second=1e12,
        host_bytes_per_second=megabits * 1e6 / 8,
        name=f"star-{num_hosts}x{megabits}",
    )
    links = tuple(
        replace(
            link,
            latency_seconds=0.0
            if cluster.index.keys() & {link.source, link.target}
            else PATH_SECONDS / 2,
        )
        for link in cluster.links
    )
    return replace(cluster, links=links)


def make_type(graph: Graph, step_seconds: float) -> DeviceType:
    """A device on which a step of the graph takes so long."""
    draft = DeviceType(
        name="emulated",
        flops_per_second={"fp32": 1e12},
        memory_bytes=256 * GIB,
        memory_bytes_per_second=1e11,
        is_asynchronous=False,
    )
    speed = float(op_seconds(graph, draft, graph.batch).sum()) / step_seconds
    return replace(
        draft,
        flops_per_second={"fp32": 1e12 * speed},
        memory_bytes_per_second=1e11 * speed,
    )
