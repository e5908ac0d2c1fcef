"""Reads a file of Piper's authors as a problem. Knows nothing of searching."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any

from meshwright.errors import InputError, quoted
from meshwright.files import decode_json
from meshwright.graph.foreign import edge_ends, number_nodes
from meshwright.graph.piper import PiperDocument, PiperEdge, PiperNode, PiperWay
from solver.piper.problem import Edge, Node, Problem, Resources, Way


class _Instance(PiperDocument, rename="camel"):
    max_devices: float | None = None
    max_memory_per_device: float | None = None
    bandwidth: float | None = None
    mbs_in_batch: float | None = None


def read_problem(
    data: bytes,
    where: str,
    *,
    num_devices: int | None = None,
    memory_bytes: float | None = None,
    num_microbatches: int | None = None,
    bytes_per_second: float | None = None,
) -> Problem:
    """The problem of a file, with other resources where these are given."""
    document = decode_json(data, _Instance, where)
    numbers = number_nodes((node.id for node in document.nodes), where)
    ends = [edge_ends(e.source_id, e.dest_id, numbers, where) for e in document.edges]
    order = _order_nodes([str(node.id) for node in document.nodes], ends, where)
    place = {old: new for new, old in enumerate(order)}
    edges = tuple(
        Edge(
            source=place[source],
            target=place[target],
            num_bytes=_checked(edge.communication_cost, "communicationCost", where),
        )
        for edge, (source, target) in zip(document.edges, ends, strict=True)
    )
    edges_of = _edges_by_node(document.edges, len(numbers), ends)
    nodes = tuple(_node(document.nodes[old], edges_of[old], where) for old in order)
    if num_devices is None:
        num_devices = _whole(document.max_devices, "maxDevices", where)
    if memory_bytes is None:
        memory_bytes = _given(document.max_memory_per_device, "maxMemoryPerDevice", where)
    if num_microbatches is None:
        num_microbatches = _whole(document.mbs_in_batch, "mbsInBatch", where)
    if bytes_per_second is None:
        bytes_per_second = _given(document.bandwidth, "bandwidth", where)
    resources = Resources(
        num_devices=num_devices,
        memory_bytes=memory_bytes,
        num_microbatches=num_microbatches,
        bytes_per_second=bytes_per_second,
    )
    return Problem(nodes=nodes, edges=edges, resources=resources)


def _order_nodes(ids: Sequence[str], ends: Sequence[tuple[int, int]], where: str) -> list[int]:
    """A topological order; as in the file where that is one."""
    for (source, target), times in Counter(ends).items():
        if times > 1:
            edge = f"{ids[source][:40]} -> {ids[target][:40]}"
            raise InputError(f"{where}: an edge must stand once, {edge} stands {times} times")
    if all(source < target for source, target in ends):
        return [*range(len(ids))]
    before: dict[int, list[int]] = {node: [] for node in range(len(ids))}
    for source, target in ends:
        before[target].append(source)
    try:
        return [*TopologicalSorter(before).static_order()]
    except CycleError as error:
        cycle = " -> ".join(ids[node][:40] for node in error.args[1][:8])
        raise InputError(f"{where}: the graph must have no cycle, has {cycle}") from None


_Ends = dict[tuple[str, str], int]
"""Edges of a node by direction ("syncTimeFw": from the other node, "syncTimeBw": to it) and the
other node's id."""


def _edges_by_node(
    edges: Sequence[PiperEdge], count: int, ends: Sequence[tuple[int, int]]
) -> list[_Ends]:
    found: list[_Ends] = [{} for _ in range(count)]
    for number, (edge, (source, target)) in enumerate(zip(edges, ends, strict=True)):
        found[target]["syncTimeFw", str(edge.source_id)] = number
        found[source]["syncTimeBw", str(edge.dest_id)] = number
    return found


def _node(node: PiperNode, edges: _Ends, where: str) -> Node:
    where = f"{where}: node {quoted(str(node.id))}"
    ways = {}
    for width, given in node.ways.items():
        if not width.isdecimal() or int(width) < 1:
            raise InputError(f"{where}: TMPCs must be by number of devices, got {quoted(width)}")
        if given:
            ways[int(width)] = tuple(_way(each, edges, where) for each in given)
    return Node(name=str(node.id), ways=ways)


def _way(way: PiperWay, edges: _Ends, where: str) -> Way:
    where = f"{where}, way {quoted(way.id)}"
    sync: dict[str, Mapping[str, float]] = {
        "syncTimeFw": way.sync_time_fw,
        "syncTimeBw": way.sync_time_bw,
    }
    sync_bytes = {}
    for (direction, other), number in edges.items():
        if other not in sync[direction]:
            raise InputError(f"{where}: {direction} must name all its edges, {other} is missing")
        sync_bytes[number] = _checked(sync[direction][other], direction, where)
    return Way(
        name=way.id,
        seconds=_checked(way.time_per_sample, "timePerSample", where),
        parameter_bytes=_checked(way.parameter_size, "parameterSize", where),
        flight_bytes=_checked(way.memory_usage_a, "memoryUsageA", where),
        fixed_bytes=_checked(way.memory_usage_b, "memoryUsageB", where),
        sync_bytes=sync_bytes,
    )


def _checked(value: float, name: str, where: str) -> float:
    if not 0 <= value < math.inf:
        raise InputError(f"{where}: {name} must be finite and not negative, got {value}")
    return value


def _given(value: float | None, name: str, where: str) -> float:
    if value is None:
        raise InputError(f"{where}: {name} must be given, in the file or otherwise")
    return value


def _whole(value: Any, name: str, where: str) -> int:
    found = _given(value, name, where)
    if not (math.isfinite(found) and found == int(found)):
        raise InputError(f"{where}: {name} must be a whole number, got {value}")
    return int(found)
