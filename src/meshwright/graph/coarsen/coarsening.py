"""Merges ops of a graph and keeps the way back: places and orders of few ops become those of many.

Decides what a merged op is: how sizes, times, tensors and memory of its members combine. Does not
know which ops should be merged; that is for the modules beside it.

A merged op runs its members one after the other, in the order of the fine graph. So

- what adds up adds up: FLOPs, bytes, calls, weights, state, times;
- a tensor that leaves it stays the one tensor it was, with the merged ops that read it; two tensors
  between the same two ops stay two;
- a tensor that only its own members read is no tensor any more. Its bytes go where they are held at
  least as long: into `saved_bytes` when a backward member reads what a forward member made, else
  into `workspace_bytes`, as the most that is alive at once while the members run;
- dimensions of single products mean nothing for a sum and become unknown.

What lives from the start of a merged op to its end lived shorter in the fine graph; until when
`saved_bytes` are held is known for one partner of a backward op only, the one that saves most.
Memory of a coarse graph is a guide; the fine graph's decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from meshwright.array import Bools, Floats, Ints, places_in
from meshwright.compiled import Array, Int, compiled
from meshwright.graph.column import OP_LINES, OP_SIZES, TENSOR_STEEP, Phase, Split
from meshwright.graph.graph import Adjacency, Graph
from meshwright.graph.ladder import merge_ladder
from meshwright.graph.merge import find_inner, kept_tensors, merged_tensors, sum_by
from meshwright.kernel.heap import ENTRY, pop, push
from meshwright.kernel.root import join_pairs

_SUMMED = (
    "flops", "fixed_flops", "bytes_read", "fixed_bytes_read", "bytes_written",
    "fixed_bytes_written", "calls", "parameter_bytes", "state_bytes", "saved_bytes",
)  # fmt: skip
_OF_ONE = tuple(name for name in OP_SIZES if "product" in name)
"""Known of ops that are not merged only."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Coarsening:
    """A coarse graph and the fine ops that its ops stand for."""

    graph: Graph
    """The coarse one. Its groups are the fine graph's, united where ops of two have merged, and
    those that a scheme adds; a group of one coarse op constrains nothing and is dropped."""
    coarse_of: Ints
    """The coarse op of each op of the fine graph."""
    members: Adjacency
    """The fine ops of each coarse op, rising."""

    def place(self, device_of_coarse: Any) -> Ints:
        """The device of each fine op."""
        devices = np.asarray(device_of_coarse, dtype=np.int32)
        assert devices.shape == (self.graph.num_ops,)
        return devices[self.coarse_of]

    def order(self, coarse_order: Any) -> Ints:
        """The fine ops: coarse ops in that order, the members of each in the fine graph's order.

        Topological for the fine graph where `coarse_order` is so for the coarse one.
        """
        order = np.asarray(coarse_order)
        place = places_in(order, self.graph.num_ops, np.int64)
        return np.argsort(place[self.coarse_of], kind="stable").astype(np.int32)

    def add_up(self, values: Floats) -> Floats:
        """The sum of what the members of each coarse op have."""
        return sum_by(self.coarse_of, values, self.graph.num_ops)

    def then(self, other: "Coarsening") -> "Coarsening":
        """This one and then `other`, which coarsens this one's coarse graph, as one."""
        assert len(other.coarse_of) == self.graph.num_ops
        coarse_of = other.coarse_of[self.coarse_of]
        return _coarsening(other.graph, coarse_of)


def contract(
    graph: Graph,
    label: Ints,
    group: Ints | None = None,
    seconds: Mapping[str, Floats] | None = None,
) -> Coarsening:
    """Merge the ops with equal labels; without the merged ops' inner tensors no cycle may be left.

    `group`: more co-location groups, by op of `graph`, -1: none; they unite with the graph's own
    where they share an op. `seconds`: of the ops of `graph` by device type, which a coarse op takes
    the sum of; without it measured times add where all are known. Merged ops have name, kind,
    module, phase and precision of their heaviest member (by `seconds`, else by FLOPs; of equal ones
    the first) and a split when all of their members have that one.
    """
    assert label.shape == (graph.num_ops,)
    coarse_of = _number(graph, label)
    num_coarse = int(coarse_of.max(initial=-1)) + 1
    given = {} if seconds is None else dict(seconds)
    heaviest = _find_heaviest(graph, coarse_of, given)
    is_inner = find_inner(graph, coarse_of)
    is_kept = is_inner & is_saved(graph)
    coarse = Graph(
        name=graph.name,
        batch=graph.batch,
        op_names=_pick(graph.op_names, heaviest),
        kind=_pick(graph.kind, heaviest),
        module=_pick(graph.module, heaviest),
        precision=_pick(graph.precision, heaviest),
        phase=graph.phase[heaviest],
        split=_common_splits(graph, coarse_of, heaviest),
        group=_unite_groups(graph, coarse_of, num_coarse, group),
        partner=_find_partners(graph, coarse_of, num_coarse),
        seconds={
            kind: sum_by(coarse_of, column, num_coarse)
            for kind, column in {**graph.seconds, **given}.items()
        },
        ladders={
            kind: merge_ladder(
                graph.seconds[kind], graph.batch, ladder, coarse_of, num_coarse, graph.split > 0
            )
            for kind, ladder in graph.ladders.items()
            if kind not in given
        },
        mixes=sum_by(coarse_of, graph.mixes, num_coarse) > 0,
        superlinear=_steep_parts(graph, coarse_of, heaviest, is_inner),
        **_sizes(graph, coarse_of, heaviest, is_kept, is_inner & ~is_kept),
        **merged_tensors(graph, coarse_of, is_inner),
    )
    return _coarsening(coarse, coarse_of)


def _coarsening(graph: Graph, coarse_of: Ints) -> Coarsening:
    coarse_of.setflags(write=False)
    ops = np.arange(len(coarse_of), dtype=np.int32)
    members = Adjacency.of(coarse_of, ops, graph.num_ops)
    return Coarsening(graph=graph, coarse_of=coarse_of, members=members)


def _pick(texts: tuple[str, ...], ops: Ints) -> tuple[str, ...]:
    return tuple([texts[op] for op in ops.tolist()])


def _number(graph: Graph, label: Ints) -> Ints:
    """Coarse ops numbered in a topological order: by label where labels rise along all tensors.

    Else in the order nearest to that of their first members.
    """
    _, first, inverse = np.unique(label, return_index=True, return_inverse=True)
    place: Ints = inverse.ravel().astype(np.int32)
    source, target = (place[ends] for ends in graph.edges)
    is_between = source != target
    source, target = source[is_between], target[is_between]
    if np.all(source < target):
        return place
    following = Adjacency.of(source, target, len(first))
    waiting = np.bincount(target, minlength=len(first)).astype(np.int32)
    rank, heap = np.full(len(first), -1, dtype=np.int32), np.zeros(len(first), ENTRY)
    num_ranked = _rank(following.start, following.index, waiting, first, heap, rank)
    assert num_ranked == len(first), "merging these ops makes a cycle"
    return rank[place]


@compiled
def _rank(
    start: Array, index: Array, waiting: Array, first: Array, heap: Array, rank: Array
) -> Int:
    """Kahn's algorithm; among ops that are ready the one with the smallest `first` comes next."""
    count = 0
    for op in range(len(rank)):
        if waiting[op] == 0:
            push(heap, 0, count, np.float64(first[op]), op)
            count += 1
    num_ranked = 0
    while count > 0:
        op = pop(heap, 0, count)
        count -= 1
        rank[op] = num_ranked
        num_ranked += 1
        for k in range(start[op], start[op + 1]):
            other = np.int64(index[k])
            waiting[other] -= 1
            if waiting[other] == 0:
                push(heap, 0, count, np.float64(first[other]), other)
                count += 1
    return num_ranked


def _find_heaviest(graph: Graph, coarse_of: Ints, seconds: Mapping[str, Floats]) -> Ints:
    weight = graph.flops
    if seconds:
        weight = np.sum([np.nan_to_num(each, posinf=0.0) for each in seconds.values()], axis=0)
    order = np.lexsort((-weight, coarse_of))  # stable: of equal ones the first
    is_first = np.diff(coarse_of[order], prepend=-1) > 0
    return order[is_first].astype(np.int32)


def _common_splits(graph: Graph, coarse_of: Ints, heaviest: Ints) -> npt.NDArray[np.int8]:
    """A split that only some members have would let replicas work on a share of all of them."""
    split = graph.split[heaviest]
    differs = graph.split != split[coarse_of]
    split[coarse_of[differs]] = Split.NONE
    return split


def _sizes(
    graph: Graph, coarse_of: Ints, heaviest: Ints, is_kept: Bools, is_passing: Bools
) -> dict[str, Any]:
    """`is_kept` and `is_passing`: inner tensors that backward members wait for, and the others."""
    num_coarse = len(heaviest)
    is_merged = np.bincount(coarse_of, minlength=num_coarse) > 1
    sizes = {name: sum_by(coarse_of, getattr(graph, name), num_coarse) for name in _SUMMED}
    for name in _OF_ONE:
        sizes[name] = np.where(is_merged, 0.0, getattr(graph, name)[heaviest])
    for name in OP_LINES:  # sums round
        sizes[f"fixed_{name}"] = np.minimum(sizes[f"fixed_{name}"], sizes[name])
    tensors = np.flatnonzero(is_kept)
    source = coarse_of[graph.tensor_source[tensors]]
    sizes["saved_bytes"] += sum_by(source, graph.tensor_bytes[tensors], num_coarse)
    sizes["workspace_bytes"] = _peak_workspace(graph, coarse_of, num_coarse, is_passing)
    return sizes


def _steep_parts(
    graph: Graph, coarse_of: Ints, heaviest: Ints, is_inner: Bools
) -> dict[str, Floats]:
    """Parts that grow faster than the batch add up as the quantities do that they are parts of."""
    is_merged = np.bincount(coarse_of, minlength=len(heaviest)) > 1
    parts = {}
    for name, part in graph.superlinear.items():
        if name in TENSOR_STEEP:
            parts[name] = part[kept_tensors(graph, coarse_of, is_inner)]
        elif "product" in name:
            parts[name] = np.where(is_merged, 0.0, part[heaviest])
        else:
            parts[name] = sum_by(coarse_of, part, len(heaviest))
    return parts


def is_saved(graph: Graph) -> Bools:
    """The tensors of forward that backward reads."""
    source, reader = graph.edges
    turns = (graph.phase[source] == Phase.FORWARD) & (graph.phase[reader] == Phase.BACKWARD)
    found = np.zeros(graph.num_tensors, dtype=np.bool_)
    found[graph.use_tensor[turns]] = True
    return found


def _peak_workspace(graph: Graph, coarse_of: Ints, num_coarse: int, is_inner: Bools) -> Floats:
    """The most that a coarse op's inner tensors and running member hold at once."""
    tensors = np.flatnonzero(is_inner)
    last_reader = np.zeros(graph.num_tensors, dtype=np.int32)
    np.maximum.at(last_reader, graph.use_tensor, graph.use_op)
    size = graph.tensor_bytes[tensors]
    made = sum_by(graph.tensor_source[tensors], size, graph.num_ops)
    freed = sum_by(last_reader[tensors], size, graph.num_ops)
    peak, alive = np.zeros(num_coarse), np.zeros(num_coarse)
    _walk_memory(coarse_of, made, freed, graph.workspace_bytes, alive, peak)
    return peak


@compiled
def _walk_memory(
    coarse_of: Array, made: Array, freed: Array, workspace: Array, alive: Array, peak: Array
) -> None:
    for op in range(len(coarse_of)):
        own = coarse_of[op]
        alive[own] += made[op]
        peak[own] = max(peak[own], alive[own] + workspace[op])
        alive[own] = max(0.0, alive[own] - freed[op])


def _find_partners(graph: Graph, coarse_of: Ints, num_coarse: int) -> Ints:
    """The forward op that saves the most bytes, among those that the members of a coarse op belong
    to."""
    ops = np.flatnonzero(graph.partner >= 0)
    own, other = coarse_of[ops], coarse_of[graph.partner[ops]]
    own, other = own[own != other], other[own != other]
    saved = sum_by(coarse_of, graph.saved_bytes, num_coarse)
    order = np.lexsort((other, -saved[other], own))
    own, other = own[order], other[order]
    is_first = np.diff(own, prepend=-1) > 0
    partner = np.full(num_coarse, -1, dtype=np.int32)
    partner[own[is_first]] = other[is_first]
    return partner


def _unite_groups(graph: Graph, coarse_of: Ints, num_coarse: int, group: Ints | None) -> Ints:
    united = unite(
        num_coarse, [(coarse_of, each) for each in (graph.group, group) if each is not None]
    )
    _, first, place, count = np.unique(
        united, return_index=True, return_inverse=True, return_counts=True
    )
    is_group = count > 1
    number = np.where(is_group, np.cumsum(is_group) - 1, -1).astype(np.int32)
    assert np.all(np.diff(first) > 0)  # a set's label is its first op
    return number[place.ravel()]


def unite(count: int, labelled: list[tuple[Ints, Ints]]) -> Ints:
    """Sets of `count` things, each under its first: those with equal labels (-1: none) are one set.

    Each pair has the things and their labels.
    """
    parent = np.arange(count, dtype=np.int32)
    for things, labels in labelled:
        has_one = labels >= 0
        _, first, inverse = np.unique(labels[has_one], return_index=True, return_inverse=True)
        ones = things[has_one]
        join_pairs(parent, ones[first][inverse.ravel()].astype(np.int32), ones.astype(np.int32))
    return parent
