"""The latency problem of Tarnawski et al., "Efficient Algorithms for Device Placement of DNN Graph
Operators" (NeurIPS 2020): what is given. Knows nothing of searching.

Their objective, as their published integer programme for latency states it (msr-fiddle/
dnn-partitioning, `latency-ip`; appendix A by their README, whose number q of pieces that an
accelerator may have is free here):

- An op runs on a CPU or in a *piece*; a piece belongs to one of k accelerators. All CPUs together
  are one device that runs any number of ops at a time (their programme ignores `maxCPUs`).
- Ops of one colour class share a device: all on CPUs, or all on one accelerator, in any pieces.
- The bytes of all ops on an accelerator, whatever their piece, are at most its memory.
- An op on a CPU starts when all ops that it reads have finished and takes its CPU time.
- A piece starts when all ops outside that feed it have finished and the piece before it on its
  accelerator has. It takes the sum of its ops' accelerator times, plus `cost(u)` once for every op
  u outside that feeds it, plus `cost(u)` once for every op u in it that feeds any op outside;
  transfers go by way of the CPUs' memory, so those between two pieces of one accelerator cost too.
  All ops of a piece finish when it does.
- The pieces and the ops on CPUs depend on each other without a cycle, so every piece is contiguous
  (convex: no path leaves it and returns).
- The latency is the last finish.

Times are in the file's unit, milliseconds.
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.errors import InputError
from meshwright.files import decode_json
from meshwright.graph.dnn_partitioning import (
    Document,
    Node,
    join_edges,
)
from meshwright.graph.foreign import number_nodes
from solver.document import accelerators, check_node, colour_classes

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]

_MOST = 1e300
"""Of any sum: sums of sums stay finite."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Ops in a topological order, their edges both ways, and the accelerators."""

    ids: tuple[int | str, ...]
    """The file's."""
    cpu_ms: Floats
    accelerator_ms: Floats
    """Infinity where accelerators cannot run the op."""
    cost_ms: Floats
    """Of moving what the op makes into, or out of, an accelerator."""
    bytes: Floats
    class_of: Ints
    """Ops of one number share a device."""
    in_start: Ints
    in_op: Ints
    """What op v reads: `in_op[in_start[v]:in_start[v + 1]]`."""
    out_start: Ints
    out_op: Ints
    num_devices: int
    """Accelerators, at most one an op: more than that have nothing to run."""
    memory_bytes: float

    @property
    def num_ops(self) -> int:
        """How many ops there are."""
        return len(self.ids)

    def readers(self, op: int) -> list[int]:
        """The ops that read what an op makes."""
        found: list[int] = self.out_op[self.out_start[op] : self.out_start[op + 1]].tolist()
        return found

    def sources(self, op: int) -> list[int]:
        """The ops whose outputs an op reads."""
        found: list[int] = self.in_op[self.in_start[op] : self.in_start[op + 1]].tolist()
        return found

    def classes(self) -> list[list[int]]:
        """The ops of each class, in order."""
        members: list[list[int]] = [[] for _ in range(int(self.class_of.max(initial=-1)) + 1)]
        for op, number in enumerate(self.class_of.tolist()):
            members[number].append(op)
        return members


def read_problem(data: bytes, where: str) -> Problem:
    """A problem from the authors' JSON."""
    document = decode_json(data, Document, where)
    numbers = number_nodes((node.id for node in document.nodes), where)
    for node in document.nodes:
        _check_node(node, where)
    num_devices, memory_bytes = accelerators(document, where)
    edges, costs = join_edges(document.edges, numbers, where)
    nodes = document.nodes
    return make_problem(
        ids=[node.id for node in nodes],
        cpu_ms=[node.cpu_latency for node in nodes],
        accelerator_ms=[n.fpga_latency if n.supported_on_fpga else math.inf for n in nodes],
        cost_ms=[costs.get(number, 0.0) for number in range(len(nodes))],
        num_bytes=[node.size for node in nodes],
        class_of=colour_classes(nodes),
        edges=edges,
        num_devices=num_devices,
        memory_bytes=memory_bytes,
        where=where,
    )


def _check_node(node: Node, where: str) -> None:
    if node.is_backward_node:
        raise InputError(
            f"{where}: latency is of inference, node {str(node.id)[:40]} must not be a backward "
            f"node, got isBackwardNode {node.is_backward_node}"
        )
    check_node(node, where)


def make_problem(
    *,
    ids: list[int | str],
    cpu_ms: list[float],
    accelerator_ms: list[float],
    cost_ms: list[float],
    num_bytes: list[float],
    class_of: list[int],
    edges: list[tuple[int, int]],
    num_devices: int,
    memory_bytes: float,
    where: str = "problem",
) -> Problem:
    """A problem from columns in any order: ops are sorted, edges made unique."""
    runs = [each for each in accelerator_ms if each < math.inf]
    moves = [cost_ms[u] for u in (*range(len(ids)), *(u for u, _ in edges))]
    for name, values in (
        ("cpuLatency", cpu_ms), ("fpgaLatency", runs), ("cost", moves), ("size", num_bytes),
    ):  # fmt: skip
        _check_total(name, values, where)
    order = _topological(len(ids), edges, where)
    place = {old: new for new, old in enumerate(order)}
    pairs = sorted({(place[u], place[v]) for u, v in edges})
    classes: dict[int, int] = {}
    out_start, out_op = _adjacency(len(ids), pairs)
    in_start, in_op = _adjacency(len(ids), sorted((v, u) for u, v in pairs))
    return Problem(
        ids=tuple(ids[old] for old in order),
        cpu_ms=np.array([cpu_ms[old] for old in order], dtype=np.float64),
        accelerator_ms=np.array([accelerator_ms[old] for old in order], dtype=np.float64),
        cost_ms=np.array([cost_ms[old] for old in order], dtype=np.float64),
        bytes=np.array([num_bytes[old] for old in order], dtype=np.float64),
        class_of=np.array(
            [classes.setdefault(class_of[old], len(classes)) for old in order], dtype=np.int32
        ),
        in_start=in_start,
        in_op=in_op,
        out_start=out_start,
        out_op=out_op,
        num_devices=min(num_devices, len(ids)),
        memory_bytes=memory_bytes,
    )


def _check_total(name: str, values: list[float], where: str) -> None:
    """Refuse what may overflow when latencies are added up."""
    total = sum(values)
    if not total <= _MOST:
        raise InputError(f"{where}: {name} must add up to at most {_MOST:g}, got {total:g}")


def _adjacency(num_ops: int, pairs: list[tuple[int, int]]) -> tuple[Ints, Ints]:
    counts = np.bincount([u for u, _ in pairs], minlength=num_ops) if pairs else np.zeros(num_ops)
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return start, np.array([v for _, v in pairs], dtype=np.int32)


def _topological(num_ops: int, edges: list[tuple[int, int]], where: str) -> list[int]:
    """Depth first, so that a branch is finished before the next is begun."""
    readers: list[list[int]] = [[] for _ in range(num_ops)]
    waits = [0] * num_ops
    for u, v in sorted(set(edges)):
        readers[u].append(v)
        waits[v] += 1
    stack = [op for op in range(num_ops - 1, -1, -1) if waits[op] == 0]
    order = []
    while stack:
        op = stack.pop()
        order.append(op)
        for reader in reversed(readers[op]):
            waits[reader] -= 1
            if waits[reader] == 0:
                stack.append(reader)
    if len(order) < num_ops:
        raise InputError(
            f"{where}: the graph must have no cycle, {num_ops - len(order):,} nodes are on one or "
            f"after one"
        )
    return order
