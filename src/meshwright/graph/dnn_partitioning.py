"""Reads the JSON graphs of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN
Graph Operators" (NeurIPS 2020). Their "FPGA" is any accelerator.
"""

import math

import msgspec

from meshwright.errors import InputError, quoted
from meshwright.files import decode_json
from meshwright.graph.column import ANY_TYPE, Columns, Phase
from meshwright.graph.draft import Draft
from meshwright.graph.foreign import edge_ends, number_nodes

BYTES_PER_SECOND = 2.0**31
"""The rate at which the authors turned tensor sizes into times: in their op-level files every edge
has size / cost = 2147483.648 bytes a millisecond. At this rate a transfer takes the file's cost."""

CPU_TYPE = "cpu-host"
"""Device type of the column of `cpuLatency`."""

COST_TOLERANCE = 1e-9
"""Relative; the files' numbers were printed exactly, so this forgives rounding only."""


class _Node(msgspec.Struct, rename="camel"):
    id: int | str
    supported_on_fpga: bool | int
    cpu_latency: float
    fpga_latency: float
    size: float = 0.0
    name: str | None = None
    is_backward_node: bool | int = False
    color_class: int | str | None = None


class _Edge(msgspec.Struct, rename="camel"):
    source_id: int | str
    dest_id: int | str
    cost: float


class _Document(msgspec.Struct):
    nodes: list[_Node]
    edges: list[_Edge]


def read_dnn_partitioning(data: bytes, name: str, where: str) -> Columns:
    """One op a node, one tensor a node with out-edges; milliseconds become seconds."""
    document = decode_json(data, _Document, where)
    numbers = number_nodes((node.id for node in document.nodes), where)
    draft = Draft(name)
    _add_nodes(draft, document.nodes)
    _add_edges(draft, document.edges, numbers, where)
    return draft.columns()


def _add_nodes(draft: Draft, nodes: list[_Node]) -> None:
    names = {node.name for node in nodes}
    are_unique = len(names) == len(nodes) and None not in names
    groups = {each: i for i, each in enumerate(dict.fromkeys(n.color_class for n in nodes))}
    forward: dict[int | str, list[int]] = {}
    for number, node in enumerate(nodes):
        if node.color_class is not None and not node.is_backward_node:
            forward.setdefault(node.color_class, []).append(number)
    for node in nodes:
        alike = forward.get(node.color_class, []) if node.color_class is not None else []
        is_partnered = bool(node.is_backward_node) and len(alike) == 1
        accelerator_ms = node.fpga_latency if node.supported_on_fpga else math.inf
        draft.add_op(
            str(node.name) if are_unique else f"{node.name or 'node'}#{node.id}",
            phase=Phase.BACKWARD if node.is_backward_node else Phase.FORWARD,
            group=-1 if node.color_class is None else groups[node.color_class],
            partner=alike[0] if is_partnered else -1,
            seconds={ANY_TYPE: accelerator_ms / 1e3, CPU_TYPE: node.cpu_latency / 1e3},
            state_bytes=node.size,
        )


def _add_edges(draft: Draft, edges: list[_Edge], numbers: dict[int | str, int], where: str) -> None:
    costs: dict[int, float] = {}
    tensors: dict[int, int] = {}
    for edge in edges:
        source, target = edge_ends(edge.source_id, edge.dest_id, numbers, where)
        cost = costs.setdefault(source, edge.cost)
        if not math.isclose(cost, edge.cost, rel_tol=COST_TOLERANCE):
            raise InputError(
                f"{where}: all out-edges of node {quoted(str(edge.source_id))} must have one cost, "
                f"got {cost} and {edge.cost}"
            )
        if source not in tensors:
            tensors[source] = draft.add_tensor(source, cost / 1e3 * BYTES_PER_SECOND)
        draft.add_use(tensors[source], target)
