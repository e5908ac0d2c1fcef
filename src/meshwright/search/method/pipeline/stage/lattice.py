"""All downsets of a graph (sets closed under predecessors) and which node leads from one to which.

Tarnawski et al. call them ideals, Parmesan the node sets of fronted subgraphs. Knows nothing of
costs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Ints
from meshwright.compiled import compiled, inlined
from meshwright.kernel.row import gather_rows
from meshwright.search.method.pipeline.stage.problem import SplitProblem

_WORD = 64
_FIRST_CAPACITY = 1024
_DONE, _IDS_FULL, _STEPS_FULL = 0, 1, 2


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Lattice:
    """Downsets by number: the empty one is 0, larger ones come later, that of all nodes is last."""

    bits: npt.NDArray[np.uint64]
    """Node v is in downset d: bit v % 64 of `bits[d, v // 64]`."""
    step_start: Ints
    step_node: Ints
    step_to: Ints
    """The nodes that may be added to downset d, `step_node[step_start[d]:step_start[d + 1]]`, and
    the downsets that this gives."""

    @property
    def num_downsets(self) -> int:
        """How many, with the empty one."""
        return len(self.bits)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Adjacency:
    """The neighbours of node v: `node[start[v]:start[v + 1]]`."""

    start: Ints
    node: Ints


def successors(problem: SplitProblem) -> Adjacency:
    """What comes directly after each node."""
    return _gather(problem.edge_source, problem.edge_target, problem.num_nodes)


def predecessors(problem: SplitProblem) -> Adjacency:
    """What comes directly before each node."""
    return _gather(problem.edge_target, problem.edge_source, problem.num_nodes)


def wires_of_nodes(problem: SplitProblem) -> Adjacency:
    """The wires that have each node for a pin, as numbers of wires."""
    wire = np.repeat(np.arange(problem.num_wires, dtype=np.int32), np.diff(problem.wire_start))
    return _gather(problem.wire_node, wire, problem.num_nodes)


def _gather(owner: Ints, value: Ints, count: int) -> Adjacency:
    order, start = gather_rows(owner, count)
    return Adjacency(start=start, node=value[order].astype(np.int32))


def find_lattice(problem: SplitProblem, max_downsets: int) -> Lattice | None:
    """All downsets, breadth first; none where there are more than `max_downsets`."""
    if max_downsets < 1:
        return None
    after, before = successors(problem), predecessors(problem)
    words = max(1, -(-problem.num_nodes // _WORD))
    keys = np.random.default_rng(0).integers(1, 2**63, problem.num_nodes, dtype=np.int64)
    capacity = min(_FIRST_CAPACITY, max_downsets)
    steps = 8 * capacity
    bits = np.zeros((capacity, words), dtype=np.uint64)
    hashes, born = np.zeros(capacity, dtype=np.int64), np.zeros((capacity, 2), dtype=np.int32)
    born[0] = -1
    step_start = np.zeros(capacity + 1, dtype=np.int32)
    step_node, step_to = np.zeros(steps, dtype=np.int32), np.zeros(steps, dtype=np.int32)
    table = _table(hashes, 1, capacity)
    state = np.array([0, 1], dtype=np.int64)  # downsets whose steps are known, downsets
    while True:
        status = _grow(
            after.start, after.node, before.start, before.node, keys, bits, hashes, born,
            step_start, step_node, step_to, table, state,
        )  # fmt: skip
        if status == _DONE:
            count = int(state[1])
            used = int(step_start[count])
            return Lattice(
                bits=bits[:count],
                step_start=step_start[: count + 1],
                step_node=step_node[:used],
                step_to=step_to[:used],
            )
        if status == _STEPS_FULL:
            step_node, step_to = _doubled(step_node), _doubled(step_to)
            continue
        if capacity >= max_downsets:
            return None
        capacity = min(2 * capacity, max_downsets)
        bits, hashes, born = (_extended(each, capacity) for each in (bits, hashes, born))
        step_start = _extended(step_start, capacity + 1)
        table = _table(hashes, int(state[1]), capacity)


def _extended(array: npt.NDArray[Any], length: int) -> npt.NDArray[Any]:
    longer = np.zeros((length, *array.shape[1:]), dtype=array.dtype)
    longer[: len(array)] = array
    return longer


def _doubled(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    return _extended(array, 2 * len(array))


def _table(hashes: npt.NDArray[np.int64], count: int, capacity: int) -> Ints:
    """A hash table of downsets, at most half full."""
    table = np.full(1 << (2 * capacity - 1).bit_length(), -1, dtype=np.int32)
    _fill_table(hashes, count, table)
    return table


@compiled
def _fill_table(hashes: Any, count: int, table: Any) -> None:
    mask = len(table) - 1
    for number in range(count):
        at = hashes[number] & mask
        while table[at] >= 0:
            at = (at + 1) & mask
        table[at] = number


@inlined
def has_node(bits: Any, downset: Any, node: Any) -> Any:
    """Whether a node is in a downset."""
    return (bits[downset, node >> 6] >> np.uint64(node & 63)) & np.uint64(1) != 0


@compiled
def _grow(
    after_start: Any, after_node: Any, before_start: Any, before_node: Any, keys: Any, bits: Any,
    hashes: Any, born: Any, step_start: Any, step_node: Any, step_to: Any, table: Any, state: Any,
) -> Any:  # fmt: skip
    mask = len(table) - 1
    while state[0] < state[1]:
        here = state[0]
        first = step_start[here]
        used = _list_steps(
            here, after_start, after_node, before_start, before_node, bits, born, step_start,
            step_node,
        )  # fmt: skip
        if used < 0:
            return _STEPS_FULL
        for step in range(first, used):
            node = step_node[step]
            key = hashes[here] ^ keys[node]
            at = key & mask
            while table[at] >= 0 and not _equals(table[at], key, here, node, bits, hashes):
                at = (at + 1) & mask
            if table[at] < 0:
                if state[1] == len(bits):
                    return _IDS_FULL  # this downset's steps are listed again with more room
                table[at] = state[1]
                hashes[state[1]] = key
                born[state[1], 0] = here
                born[state[1], 1] = node
                for word in range(bits.shape[1]):
                    bits[state[1], word] = bits[here, word]
                bits[state[1], node >> 6] |= np.uint64(1) << np.uint64(node & 63)
                state[1] += 1
            step_to[step] = table[at]
        step_start[here + 1] = used
        state[0] += 1
    return _DONE


@inlined
def _equals(other: Any, key: Any, here: Any, node: Any, bits: Any, hashes: Any) -> Any:
    """Whether a downset is this one and a node more."""
    if hashes[other] != key:
        return False
    for word in range(bits.shape[1]):
        want = bits[here, word]
        if word == node >> 6:
            want |= np.uint64(1) << np.uint64(node & 63)
        if bits[other, word] != want:
            return False
    return True


@inlined
def _list_steps(
    here: Any, after_start: Any, after_node: Any, before_start: Any, before_node: Any, bits: Any,
    born: Any, step_start: Any, step_node: Any,
) -> Any:  # fmt: skip
    """Write the nodes that may be added: those of the downset it grew from, and what the last node
    makes ready. Returns where the list ends, -1 where there is no room."""
    parent, added = born[here, 0], born[here, 1]
    at = step_start[here]
    if at + len(before_start) > len(step_node):  # no downset has more steps than there are nodes
        return -1
    if parent < 0:
        for node in range(len(before_start) - 1):
            if before_start[node] == before_start[node + 1]:
                step_node[at] = node
                at += 1
        return at
    for step in range(step_start[parent], step_start[parent + 1]):
        if step_node[step] != added:
            step_node[at] = step_node[step]
            at += 1
    for edge in range(after_start[added], after_start[added + 1]):
        node = after_node[edge]
        is_ready = True
        for other in range(before_start[node], before_start[node + 1]):
            is_ready = is_ready and has_node(bits, here, before_node[other])
        if is_ready:
            step_node[at] = node
            at += 1
    return at
