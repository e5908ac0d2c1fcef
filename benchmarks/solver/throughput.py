"""Reads the files of Tarnawski et al. (NeurIPS 2020) as problems of splitting.

Nodes of the problem are what must stay together: a colour class with its forward and its backward
ops, and, for contiguous splits, classes on a cycle of classes. As in the authors' programme
(msr-fiddle/dnn-partitioning, `throughput-dp`), only forward ops decide what comes before what; a
class of backward ops alone stands where the mirror image of its backward edges puts it.
"""

import math
from dataclasses import dataclass

import numpy as np

from meshwright.array import Floats, Ints
from meshwright.errors import InputError
from meshwright.files import decode_json
from meshwright.graph.dnn_partitioning import (
    Document,
    Node,
    join_edges,
)
from meshwright.graph.foreign import number_nodes
from meshwright.search.method.pipeline.stage.cycle import number_components
from meshwright.search.method.pipeline.stage.problem import DeviceKind, SplitProblem, make_problem
from solver.document import accelerators, check_node, colour_classes

ACCELERATOR, CPU = 0, 1
"""The kinds of devices, in the order of the problem's."""
_MOST = 1e30
"""Milliseconds or bytes: beyond, powers of loads overflow."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Throughput:
    """A file as a problem, and the way back."""

    problem: SplitProblem
    ids: tuple[int | str, ...]
    """The file's nodes."""
    node_of_op: Ints
    """The problem's node of each of the file's."""


def read_throughput(data: bytes, where: str, *, contiguous: bool) -> Throughput:
    """A problem from the authors' JSON; milliseconds become seconds."""
    document = decode_json(data, Document, where)
    numbers = number_nodes((node.id for node in document.nodes), where)
    for node in document.nodes:
        check_node(node, where)
    pairs, costs = join_edges(document.edges, numbers, where)
    _refuse_overflow(document, costs, where)
    is_backward = [bool(node.is_backward_node) for node in document.nodes]
    for u, v in pairs:
        if is_backward[u] and not is_backward[v]:
            raise InputError(
                f"{where}: no forward node may read a backward node, node "
                f"{document.nodes[v].id} reads {document.nodes[u].id}"
            )
    _refuse_cycles(len(numbers), pairs, where)
    class_of = colour_classes(document.nodes)
    before = _class_order(class_of, is_backward, pairs) if contiguous else []
    # A cycle of classes shares a stage; components are numbered in a topological order.
    of_class = number_components(max(class_of) + 1, before)
    node_of_op = [of_class[each] for each in class_of]
    readers: dict[int, set[int]] = {}
    for u, v in pairs:
        readers.setdefault(u, {node_of_op[u]}).add(node_of_op[v])
    problem = make_problem(
        kinds=_kinds(document, node_of_op, where),
        num_bytes=_sums(node_of_op, [node.size for node in document.nodes]),
        edges=[(of_class[u], of_class[v]) for u, v in before],
        wires=[(pins, costs[op] / 1e3) for op, pins in readers.items()],
    )
    return Throughput(
        problem=problem,
        ids=tuple(node.id for node in document.nodes),
        node_of_op=np.array(node_of_op, dtype=np.int32),
    )


def _class_order(
    class_of: list[int], is_backward: list[bool], pairs: list[tuple[int, int]]
) -> list[tuple[int, int]]:
    """Which class comes before which."""
    has_forward = {class_of[op] for op, backward in enumerate(is_backward) if not backward}
    before = set()
    for u, v in pairs:
        first, second = class_of[u], class_of[v]
        if not is_backward[u] and not is_backward[v]:
            before.add((first, second))
        elif is_backward[u] and not (first in has_forward and second in has_forward):
            before.add((second, first))
    return sorted(pair for pair in before if pair[0] != pair[1])


def _kinds(document: Document, node_of_op: list[int], where: str) -> list[DeviceKind]:
    count, memory_bytes = accelerators(document, where)
    cpus = 1 if document.num_cpus is None else document.num_cpus
    if cpus < 0:
        raise InputError(f"{where}: maxCPUs must be at least 0, got {cpus}")
    num_nodes = max(node_of_op) + 1  # more devices than nodes stay empty
    on_accelerator = [_accelerator_seconds(node) for node in document.nodes]
    on_cpu = [node.cpu_latency / 1e3 for node in document.nodes]
    return [
        DeviceKind(
            name="accelerator",
            count=min(count, num_nodes),
            seconds=_sums(node_of_op, on_accelerator),
            memory_bytes=memory_bytes,
        ),
        DeviceKind(
            name="cpu",
            count=min(cpus, num_nodes),
            seconds=_sums(node_of_op, on_cpu),
            wire_share=0.0,
        ),
    ]


def _sums(labels: list[int], values: list[float]) -> Floats:
    return np.bincount(labels, weights=values).astype(np.float64)


def _accelerator_seconds(node: Node) -> float:
    return node.fpga_latency / 1e3 if node.supported_on_fpga else math.inf


def _refuse_overflow(document: Document, costs: dict[int, float], where: str) -> None:
    """All loads are sums of some of these."""
    nodes = document.nodes
    for name, values in (
        ("cpuLatency", [node.cpu_latency for node in nodes]),
        ("fpgaLatency and cost", [*(node.fpga_latency for node in nodes), *costs.values()]),
        ("size", [node.size for node in nodes]),
    ):
        if not sum(values) < _MOST:
            raise InputError(
                f"{where}: {name} of all nodes must add up to less than {_MOST:g}, got "
                f"{sum(values):g}"
            )


def _refuse_cycles(num_ops: int, pairs: list[tuple[int, int]], where: str) -> None:
    components = number_components(num_ops, pairs)
    on_cycle = num_ops - (max(components) + 1)
    if on_cycle or any(u == v for u, v in pairs):
        raise InputError(
            f"{where}: the graph must have no cycle, {on_cycle + 1:,} nodes or more are on one"
        )
