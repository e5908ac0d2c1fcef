"""All downsets of a graph (sets closed under predecessors) and which node leads from one to which.

Tarnawski et al. call them ideals, Parmesan the node sets of fronted subgraphs. Knows nothing of
costs.
"""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from meshwright.array import Ints
from meshwright.compiled import Array, Bool, Int, compiled, inlined
from meshwright.graph.graph import Adjacency
from meshwright.search.method.pipeline.stage.problem import SplitProblem

_WORD = 64
_FIRST_CAPACITY = 1024
_DONE, _IDS_FULL, _STEPS_FULL = 0, 1, 2
"""The kernel ends with all downsets, or where there is no room for more of them or of steps."""

_PROGRESS = np.dtype([("listed", np.int64), ("found", np.int64)], align=True)
"""How many downsets have their steps listed, and how many downsets are known."""


class Lattice(NamedTuple):
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


class LatticeState(NamedTuple):
    """Everything that the search for downsets works on."""

    after_start: Array
    after_node: Array
    """What comes directly after each node, node after node."""
    before_start: Array
    before_node: Array
    """What comes directly before each node, node after node."""
    keys: Array
    """A random word for each node; the hash of a downset is the exclusive or of its nodes'."""
    bits: Array
    step_start: Array
    step_node: Array
    step_to: Array
    """The lattice as far as it is known."""
    hashes: Array
    born: Array
    """The downset that each one grew from, and the node that was added."""
    table: Array
    """A hash table of the numbers of downsets."""
    now: Array
    """One record of `_PROGRESS`."""


def successors(problem: SplitProblem) -> Adjacency:
    """What comes directly after each node."""
    return Adjacency.of(problem.edge_source, problem.edge_target, problem.num_nodes)


def predecessors(problem: SplitProblem) -> Adjacency:
    """What comes directly before each node."""
    return Adjacency.of(problem.edge_target, problem.edge_source, problem.num_nodes)


def wires_of_nodes(problem: SplitProblem) -> Adjacency:
    """The wires that have each node for a pin, as numbers of wires."""
    wire = np.repeat(np.arange(problem.num_wires, dtype=np.int32), np.diff(problem.wire_start))
    return Adjacency.of(problem.wire_node, wire, problem.num_nodes)


def find_lattice(problem: SplitProblem, max_downsets: int) -> Lattice | None:
    """All downsets, breadth first; none where there are more than `max_downsets`."""
    if max_downsets < 1:
        return None
    after, before = successors(problem), predecessors(problem)
    words = max(1, -(-problem.num_nodes // _WORD))
    capacity = min(_FIRST_CAPACITY, max_downsets)
    hashes, born = np.zeros(capacity, dtype=np.int64), np.zeros((capacity, 2), dtype=np.int32)
    born[0] = -1
    state = LatticeState(
        after_start=after.start,
        after_node=after.index,
        before_start=before.start,
        before_node=before.index,
        keys=np.random.default_rng(0).integers(1, 2**63, problem.num_nodes, dtype=np.int64),
        bits=np.zeros((capacity, words), dtype=np.uint64),
        step_start=np.zeros(capacity + 1, dtype=np.int32),
        step_node=np.zeros(8 * capacity, dtype=np.int32),
        step_to=np.zeros(8 * capacity, dtype=np.int32),
        hashes=hashes,
        born=born,
        table=_table(hashes, 1, capacity),
        now=np.array([(0, 1)], dtype=_PROGRESS)[0],
    )
    while (status := _grow(state)) != _DONE:
        if status == _STEPS_FULL:
            more = 2 * len(state.step_node)
            state = _with_room(state, more, "step_node", "step_to")
            continue
        if capacity >= max_downsets:
            return None
        capacity = min(2 * capacity, max_downsets)
        state = _with_room(state, capacity, "bits", "hashes", "born")
        state = _with_room(state, capacity + 1, "step_start")
        state = state._replace(table=_table(state.hashes, int(state.now["found"]), capacity))
    count = int(state.now["found"])
    used = int(state.step_start[count])
    return Lattice(
        bits=state.bits[:count],
        step_start=state.step_start[: count + 1],
        step_node=state.step_node[:used],
        step_to=state.step_to[:used],
    )


def _with_room(state: LatticeState, length: int, *names: str) -> LatticeState:
    """The same state with some of its arrays made longer."""
    longer: dict[str, npt.NDArray[Any]] = {}
    for name in names:
        array = getattr(state, name)
        longer[name] = np.zeros((length, *array.shape[1:]), dtype=array.dtype)
        longer[name][: len(array)] = array
    return state._replace(**longer)


def _table(hashes: npt.NDArray[np.int64], count: int, capacity: int) -> Ints:
    """A hash table of downsets, at most half full."""
    table = np.full(1 << (2 * capacity - 1).bit_length(), -1, dtype=np.int32)
    _fill_table(hashes, count, table)
    return table


@compiled
def _fill_table(hashes: Array, count: int, table: Array) -> None:
    mask = len(table) - 1
    for number in range(count):
        at = hashes[number] & mask
        while table[at] >= 0:
            at = (at + 1) & mask
        table[at] = number


@inlined
def has_node(bits: Array, downset: Int, node: Int) -> Bool:
    """Whether a node is in a downset."""
    return (bits[downset, node >> 6] >> np.uint64(node & 63)) & np.uint64(1) != 0


@compiled
def _grow(state: LatticeState) -> Int:
    bits, table = state.bits, state.table
    mask = len(table) - 1
    while state.now.listed < state.now.found:
        here = state.now.listed
        first = state.step_start[here]
        used = _list_steps(state, here)
        if used < 0:
            return _STEPS_FULL
        for step in range(first, used):
            node = state.step_node[step]
            key = state.hashes[here] ^ state.keys[node]
            at = key & mask
            while table[at] >= 0 and not _equals(state, table[at], key, here, node):
                at = (at + 1) & mask
            if table[at] < 0:
                if state.now.found == len(bits):
                    return _IDS_FULL  # this downset's steps are listed again with more room
                table[at] = state.now.found
                state.hashes[state.now.found] = key
                state.born[state.now.found, 0] = here
                state.born[state.now.found, 1] = node
                for word in range(bits.shape[1]):
                    bits[state.now.found, word] = bits[here, word]
                bits[state.now.found, node >> 6] |= np.uint64(1) << np.uint64(node & 63)
                state.now.found += 1
            state.step_to[step] = table[at]
        state.step_start[here + 1] = used
        state.now.listed += 1
    return _DONE


@inlined
def _equals(state: LatticeState, other: Int, key: Int, here: Int, node: Int) -> Bool:
    """Whether a downset is this one and a node more."""
    bits = state.bits
    if state.hashes[other] != key:
        return False
    for word in range(bits.shape[1]):
        want = bits[here, word]
        if word == node >> 6:
            want |= np.uint64(1) << np.uint64(node & 63)
        if bits[other, word] != want:
            return False
    return True


@inlined
def _list_steps(state: LatticeState, here: Int) -> Int:
    """Write the nodes that may be added: those of the downset it grew from, and what the last node
    makes ready. Returns where the list ends, -1 where there is no room."""
    before_start, step_start, step_node = state.before_start, state.step_start, state.step_node
    parent, added = state.born[here, 0], state.born[here, 1]
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
    for edge in range(state.after_start[added], state.after_start[added + 1]):
        node = state.after_node[edge]
        is_ready = True
        for other in range(before_start[node], before_start[node + 1]):
            is_ready = is_ready and has_node(state.bits, here, state.before_node[other])
        if is_ready:
            step_node[at] = node
            at += 1
    return at
