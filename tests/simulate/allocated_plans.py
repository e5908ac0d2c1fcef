"""Plans with allocations between hosts h0, h1, ..., for tests."""

from collections.abc import Sequence
from dataclasses import replace

from meshwright.graph.graph import Graph
from meshwright.plan.plan import Allocation, Plan, Sync, place_ops
from small import layers, stages


def allocated(source: int, target: int, rate: float, *shares: float) -> Allocation:
    """From host to host, by number."""
    names = f"h{source}", f"h{target}"
    return Allocation(source=names[0], target=names[1], bytes_per_second=rate, shares=shares)


def placed(graph: Graph, devices: Sequence[int], *allocations: Allocation) -> Plan:
    names = [f"d{k}" for k in range(max(devices) + 1)]
    return replace(place_ops(graph.op_names, devices, names), allocations=allocations)


def ring(size: float, devices: Sequence[int], *allocations: Allocation) -> tuple[Graph, Plan]:
    """Data parallelism of a layer that takes no time, with a ring over so many bytes."""
    graph = layers(1, forward=0.0, backward=0.0, gradient=size)
    plan = stages(graph, [[f"d{k}" for k in devices]], sync=Sync.RING)
    return graph, replace(plan, allocations=allocations)
