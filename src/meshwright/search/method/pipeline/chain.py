"""A graph as a chain of blocks that may be cut into pipeline stages, and stages as a plan.

The chain is the forward ops in the graph's (topological) order, so that every prefix is closed
under predecessors. Backward ops stand with their forward partner, updates with their group. A cut
is allowed where it separates no co-location group and sends no gradient forwards.

Weights that are tied across the chain (an embedding and the output head) would forbid every cut
between. Then the end of the chain, from the second use on, is a last stage of its own on the first
stage's devices, which is legal because those devices hold the group; such plans run as GPipe,
because 1F1B has one stage a device.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Ints, marked, places_in, sum_by
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.plan import Plan, ScheduleKind
from meshwright.search.instance import Instance
from meshwright.search.method.pipeline.candidate import Candidate, StageCut

MAX_BLOCKS = 256
"""Longer chains are coarsened to this many consecutive blocks of about equal time."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Chain:
    """A model as a chain of blocks, which pipelines cut into stages."""

    block_of_op: Ints
    """Of every op; -1: of the wrapped end of the chain."""
    seconds: Floats
    """Of each block for the whole batch: forward, backward and update; the first block's with the
    wrapped end's."""
    parameter_bytes: Floats
    cut_bytes: Floats
    """Of each block what forward tensors carry from it or before it to a later block."""

    @property
    def num_blocks(self) -> int:
        """How many blocks the chain has."""
        return len(self.seconds)

    @property
    def is_wrapped(self) -> bool:
        """Whether the end of the chain is a stage on the first stage's devices."""
        return bool((self.block_of_op < 0).any())


def make_chain(instance: Instance, types: Sequence[int], max_blocks: int = MAX_BLOCKS) -> Chain:
    """The chain of a graph, with the times of the slowest of these device types."""
    graph = instance.graph
    op_time = instance.seconds[:, list(types)].max(axis=1)
    anchor, length = find_anchors(graph)
    tail = find_tail(graph, anchor, length)
    anchor_seconds = sum_by(anchor, op_time, length)
    block_of_anchor = _find_blocks(graph, anchor, tail, anchor_seconds, max_blocks)
    block_of_op = np.where(anchor < tail, block_of_anchor[np.minimum(anchor, tail - 1)], -1)
    block_of_op = block_of_op.astype(np.int32)
    num_blocks = int(block_of_anchor[tail - 1]) + 1
    home = np.maximum(block_of_op, 0)  # the wrapped end runs on the first block's devices
    return Chain(
        block_of_op=block_of_op,
        seconds=sum_by(home, op_time, num_blocks),
        parameter_bytes=sum_by(home, graph.parameter_bytes, num_blocks),
        cut_bytes=_find_cut_bytes(graph, block_of_op, num_blocks),
    )


def find_anchors(graph: Graph) -> tuple[Ints, int]:
    """For every op the place in the chain that it belongs to, and the length of the chain."""
    forward = np.flatnonzero(graph.phase == Phase.FORWARD)
    if not len(forward):
        return np.zeros(graph.num_ops, dtype=np.int32), 1
    anchor = places_in(forward, graph.num_ops, np.int32)
    of_group: dict[int, int] = {}
    for op in forward[graph.group[forward] >= 0].tolist():
        of_group.setdefault(int(graph.group[op]), int(anchor[op]))
    preceding = graph.predecessors
    for op in np.flatnonzero(graph.phase != Phase.FORWARD).tolist():
        partner, group = int(graph.partner[op]), int(graph.group[op])
        if partner >= 0 and anchor[partner] >= 0:
            anchor[op] = anchor[partner]
        elif group in of_group:
            anchor[op] = of_group[group]
        else:  # with what it reads: the earliest place, as gradients go backwards
            anchor[op] = min(
                (int(anchor[each]) for each in preceding[op]), default=len(forward) - 1
            )
            if group >= 0:
                of_group[group] = int(anchor[op])
    return anchor, len(forward)


def find_tail(graph: Graph, anchor: Ints, length: int) -> int:
    """Where the wrapped end begins: the length where there is none.

    A group is tied across the chain when its widest gap between forward ops spans half of it.
    """
    tail = length
    is_member = (graph.phase == Phase.FORWARD) & (graph.group >= 0)
    for group in np.unique(graph.group[is_member]).tolist():
        places = anchor[is_member & (graph.group == group)]
        if len(places) > 1:
            gaps = np.diff(places)
            widest = int(np.argmax(gaps))
            if gaps[widest] >= length / 2:
                tail = min(tail, int(places[widest + 1]))
    low, high = _backward_ranges(graph, anchor)
    sends_forwards = bool(((low < tail) & (high >= tail)).any())
    return length if sends_forwards else tail


def _backward_ranges(graph: Graph, anchor: Ints) -> tuple[Ints, Ints]:
    """Of every gradient the places it comes from and goes to; forwards where the first is less."""
    source, target = graph.edges
    is_back = (graph.phase[source] == Phase.BACKWARD) & (graph.phase[target] == Phase.BACKWARD)
    return anchor[source[is_back]], anchor[target[is_back]]


def _find_blocks(
    graph: Graph, anchor: Ints, tail: int, anchor_seconds: Floats, max_blocks: int
) -> Ints:
    """The block of each place before the wrapped end."""
    ranges = _backward_ranges(graph, anchor)
    low, high = [ranges[0]], [ranges[1]]
    members = np.flatnonzero(graph.group >= 0)
    if len(members):
        group = np.unique(graph.group[members], return_inverse=True)[1]
        first = np.full(group.max() + 1, np.iinfo(np.int32).max, dtype=np.int32)
        last = np.full(group.max() + 1, -1, dtype=np.int32)
        np.minimum.at(first, group, anchor[members])
        # Of a group that reaches into the wrapped end the others must be in the first block.
        is_kept = anchor[members] < tail
        np.maximum.at(last, group[is_kept], anchor[members][is_kept])
        reaches = marked(group.max() + 1, group[~is_kept])
        low.append(np.where(reaches, 0, first).astype(np.int32))
        high.append(last)
    return _cut(np.concatenate(low), np.concatenate(high), tail, anchor_seconds, max_blocks)


def _cut(low: Ints, high: Ints, tail: int, anchor_seconds: Floats, max_blocks: int) -> Ints:
    """Number places so that a block ends wherever no range [low, high] spans the cut."""
    is_range = (low < high) & (low < tail)
    opens = np.bincount(low[is_range], minlength=tail + 1)[:tail]
    closes = np.bincount(np.minimum(high[is_range], tail), minlength=tail + 1)[:tail]
    is_open = np.cumsum(opens - closes) > 0  # at place p: a range spans the cut after p
    block = np.zeros(tail, dtype=np.int64)
    np.cumsum(~is_open[:-1], out=block[1:])
    seconds = np.bincount(block, weights=anchor_seconds[:tail])
    if len(seconds) > max_blocks and seconds.sum() > 0:
        middle = np.cumsum(seconds) - seconds / 2
        coarse = np.minimum(middle / seconds.sum() * max_blocks, max_blocks - 1).astype(np.int64)
        block = coarse[block]
    elif len(seconds) > max_blocks:
        block = block * max_blocks // len(seconds)
    return np.unique(block, return_inverse=True)[1].astype(np.int32)


def _find_cut_bytes(graph: Graph, block_of_op: Ints, num_blocks: int) -> Floats:
    """After each block the bytes of forward tensors that go on; the wrapped end is after all."""
    block = np.where(block_of_op < 0, num_blocks, block_of_op)
    is_forward = graph.phase[graph.use_op] == Phase.FORWARD
    tensor = graph.use_tensor[is_forward]
    last = np.full(graph.num_tensors, -1, dtype=np.int64)
    np.maximum.at(last, tensor, block[graph.use_op[is_forward]])
    first = block[graph.tensor_source]
    crosses = last > first
    change = np.bincount(
        first[crosses], weights=graph.tensor_bytes[crosses], minlength=num_blocks + 1
    ) - np.bincount(last[crosses], weights=graph.tensor_bytes[crosses], minlength=num_blocks + 1)
    return np.maximum(np.cumsum(change)[:num_blocks], 0.0)


def stages_plan(
    graph: Graph,
    cluster: Cluster,
    chain: Chain,
    ends: Sequence[int],
    devices: Sequence[npt.NDArray[np.integer]],
    microbatches: int,
) -> Plan:
    """The plan of `chain_candidate`."""
    return chain_candidate(graph, chain, ends, devices, microbatches).plan(cluster)


def chain_candidate(
    graph: Graph,
    chain: Chain,
    ends: Sequence[int],
    devices: Sequence[npt.NDArray[np.integer]],
    microbatches: int,
    origin: str = "",
) -> Candidate:
    """The pipeline whose stage s is the blocks up to, without, `ends[s]` on `devices[s]`."""
    is_wrapped = chain.is_wrapped and len(ends) > 1  # else it is one stage after all
    stage = np.searchsorted(np.asarray(ends), chain.block_of_op, side="right")
    stage[chain.block_of_op < 0] = len(ends) if is_wrapped else 0
    homes = tuple(tuple(each.tolist()) for each in devices)
    return Candidate(
        cut=StageCut.of(graph, stage.astype(np.int32)),
        homes=(*homes, homes[0]) if is_wrapped else homes,
        kind=ScheduleKind.GPIPE if is_wrapped else ScheduleKind.ONE_F_ONE_B,
        microbatches=microbatches,
        origin=origin,
    )
