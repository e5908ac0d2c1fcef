"""Reads the JSON graphs of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN
Graph Operators" (NeurIPS 2020). Their "FPGA" is any accelerator.
"""

import math

import msgspec

from meshwright.errors import InputError, quoted
from meshwright.files import decode_json
from meshwright.graph.column import ANY_TYPE, Columns, Phase
from meshwright.graph.draft import ColumnBuilder
from meshwright.graph.foreign import edge_ends, number_nodes

BYTES_PER_SECOND = 2.0**31
"""The rate at which the authors turned tensor sizes into times: in their op-level files every edge
has size / cost = 2147483.648 bytes a millisecond. At this rate a transfer takes the file's cost."""

CPU_TYPE = "cpu-host"
"""Device type of the column of `cpuLatency`."""

ROUNDING = 1e-9
"""Relative; the files' numbers were printed exactly, so this forgives rounding only."""

COST_TOLERANCE = 1e-6
"""Milliseconds, absolute: by how much the costs of one node's out-edges may differ, as in the
authors' programs."""


class Node(msgspec.Struct, rename="camel"):
    """An op of the file."""

    id: int | str
    supported_on_fpga: bool | int
    cpu_latency: float
    fpga_latency: float
    size: float = 0.0
    name: str | None = None
    is_backward_node: bool | int = False
    color_class: int | str | None = None


class Edge(msgspec.Struct, rename="camel"):
    """What a node reads, and the milliseconds that moving it takes."""

    source_id: int | str
    dest_id: int | str
    cost: float


class Document(msgspec.Struct):
    """The file; its limits matter to some readers only."""

    nodes: list[Node]
    edges: list[Edge]
    num_devices: int | None = msgspec.field(name="maxFPGAs", default=None)
    memory_bytes: float | None = msgspec.field(name="maxSizePerFPGA", default=None)
    num_cpus: int | None = msgspec.field(name="maxCPUs", default=None)


def read_dnn_partitioning(data: bytes, name: str, where: str) -> Columns:
    """One op a node, one tensor a node with out-edges; milliseconds become seconds."""
    document = decode_json(data, Document, where)
    numbers = number_nodes((node.id for node in document.nodes), where)
    draft = ColumnBuilder(name)
    _add_nodes(draft, document.nodes)
    _add_edges(draft, document.edges, numbers, where)
    return draft.columns()


def _add_nodes(draft: ColumnBuilder, nodes: list[Node]) -> None:
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


def _add_edges(
    draft: ColumnBuilder, edges: list[Edge], numbers: dict[int | str, int], where: str
) -> None:
    pairs, costs = join_edges(edges, numbers, where, tolerance=0.0)
    tensors: dict[int, int] = {}
    for source, target in pairs:
        if source not in tensors:
            tensors[source] = draft.add_tensor(source, costs[source] / 1e3 * BYTES_PER_SECOND)
        draft.add_use(tensors[source], target)


def join_edges(
    edges: list[Edge],
    numbers: dict[int | str, int],
    where: str,
    tolerance: float = COST_TOLERANCE,
) -> tuple[list[tuple[int, int]], dict[int, float]]:
    """The edges as numbers of nodes, and of every source the milliseconds of moving its output.

    `tolerance`: by how many milliseconds, besides rounding, costs of one source may differ. A graph
    has none, for it makes one tensor of them.
    """
    costs: dict[int, float] = {}
    pairs = []
    for edge in edges:
        source, target = edge_ends(edge.source_id, edge.dest_id, numbers, where)
        if not 0 <= edge.cost < math.inf:
            raise InputError(
                f"{where}: cost of edge {quoted(str(edge.source_id), 40)} -> "
                f"{quoted(str(edge.dest_id), 40)} must be finite and at least 0, got {edge.cost}"
            )
        cost = costs.setdefault(source, edge.cost)
        if not math.isclose(cost, edge.cost, rel_tol=ROUNDING, abs_tol=tolerance):
            raise InputError(
                f"{where}: all out-edges of node {quoted(str(edge.source_id))} must have one cost, "
                f"got {cost} and {edge.cost}"
            )
        pairs.append((source, target))
    return pairs, costs
