"""Which ops run on a share of the batch, which gradients are synchronised together, and in which
order a stage's ops run.

Gradients travel in buckets, filled in the order in which backward makes them, so that a bucket's
all-reduce overlaps with the backward ops after it (Li et al., PyTorch Distributed, VLDB 2020,
section 3.2.3).
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from meshwright.array import Bools, Floats, Ints, Longs, marked
from meshwright.cost.stage import BUCKET_BYTES, MAX_BUCKETS
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.kernel.disjoint import DisjointSets
from meshwright.plan.check import Placement
from meshwright.plan.plan import Plan, Sync


@dataclass(frozen=True, slots=True, kw_only=True)
class Buckets:
    """Gradient tensors by bucket."""

    of_tensor: Ints
    """The bucket of each tensor, -1: none. Numbers rise along the graph's order within a part."""
    part: Ints
    """The part of each bucket."""
    last_op: Ints
    """The last op that adds to each bucket."""
    of_experts: Bools
    """Of each bucket: whether its gradients are those of experts, which other devices hold."""
    is_packed: Bools
    """Of each bucket: whether it has several gradients, which travel one after the other in a
    buffer of their own."""


def fill_buckets(
    graph: Graph,
    placement: Placement,
    plan: Plan,
    scatters: Bools | None = None,
    of_experts: Bools | None = None,
) -> Buckets:
    """Buckets of the partial tensors that update ops of replicated parts read.

    `scatters`: ops that synchronise what they read themselves. `of_experts`: tensors that are
    gradients of experts which replicas divide.
    """
    if of_experts is None:
        of_experts = np.zeros(graph.num_tensors, dtype=np.bool_)
    gradients = _find_gradients(graph, placement, plan, scatters, of_experts)
    limits = _bucket_limits(graph, placement, plan, gradients)
    of_tensor = np.full(graph.num_tensors, -1, dtype=np.int32)
    parts: list[int] = []
    experts: list[bool] = []
    last_op: list[int] = []
    open_bucket: dict[tuple[int, bool], tuple[int, float]] = {}
    for tensor in gradients[np.argsort(graph.tensor_source[gradients], kind="stable")].tolist():
        op = int(graph.tensor_source[tensor])
        part = int(placement.part_of_op[op])
        key = part, bool(of_experts[tensor])
        number, size = open_bucket.get(key, (-1, 0.0))
        if number < 0:
            number = len(parts)
            parts.append(part)
            experts.append(key[1])
            last_op.append(op)
        of_tensor[tensor] = number
        last_op[number] = op
        size += float(graph.tensor_bytes[tensor])
        open_bucket[key] = (-1, 0.0) if size >= limits[part] else (number, size)
    return Buckets(
        of_tensor=of_tensor,
        part=np.array(parts, dtype=np.int32),
        last_op=np.array(last_op, dtype=np.int32),
        of_experts=np.array(experts, dtype=np.bool_),
        is_packed=np.bincount(of_tensor[gradients], minlength=len(parts)) > 1,
    )


def _find_gradients(
    graph: Graph, placement: Placement, plan: Plan, scatters: Bools | None, of_experts: Bools
) -> Longs:
    """The tensors that are gradients to be summed over all devices that hold the same weights."""
    source, reader = graph.edges
    syncs = np.array([part.sync is not Sync.DUPLICATE for part in plan.parts])
    holders = placement.num_replicas * np.array([part.context for part in plan.parts])
    part_of = placement.part_of_op
    part_of_tensor = part_of[graph.tensor_source]
    width = np.array([part.expert for part in plan.parts])[part_of_tensor]
    num_holders = holders[part_of_tensor] // np.where(of_experts, width, 1)
    is_gradient = (
        graph.tensor_partial[graph.use_tensor]
        & (graph.phase[reader] == Phase.UPDATE)
        & (graph.phase[source] != Phase.UPDATE)
        & (num_holders[graph.use_tensor] > 1)
        & syncs[part_of[source]]
    )
    if scatters is not None:
        is_gradient &= ~scatters[reader]
    return np.unique(graph.use_tensor[is_gradient])


def _bucket_limits(graph: Graph, placement: Placement, plan: Plan, gradients: Longs) -> Floats:
    """The bytes at which a bucket of each part is full."""
    if reads_updates(graph):
        # A gradient may follow from the update by another, which must not wait in its bucket.
        return np.zeros(len(plan.parts))
    totals = np.zeros(len(plan.parts))
    part_of_gradient = placement.part_of_op[graph.tensor_source[gradients]]
    np.add.at(totals, part_of_gradient, graph.tensor_bytes[gradients])
    return np.maximum(BUCKET_BYTES, totals / MAX_BUCKETS)


def gradient_tensors(graph: Graph) -> Ints:
    """The partial sums of backward ops that anything of the update phase reads, rising."""
    source, reader = graph.edges
    found = graph.tensor_partial[graph.use_tensor] & (graph.phase[source] == Phase.BACKWARD)
    return np.unique(graph.use_tensor[found & (graph.phase[reader] == Phase.UPDATE)])


def reads_updates(graph: Graph) -> bool:
    """Whether anything but an update reads what an update makes."""
    source, reader = graph.edges
    found = (graph.phase[source] == Phase.UPDATE) & (graph.phase[reader] != Phase.UPDATE)
    return bool(found.any())


def duplicating_parts(placement: Placement, plan: Plan) -> Bools:
    """For each part whether its replicas run all ops on the whole batch."""
    asked = np.array([part.sync is Sync.DUPLICATE for part in plan.parts])
    return asked & (placement.num_replicas > 1)


def effective_splits(
    graph: Graph, placement: Placement, plan: Plan, is_forward: Bools | None = None
) -> tuple[npt.NDArray[np.int8], Bools]:
    """Each op's split and each tensor's partiality, as the plan has it.

    Where replicas duplicate their ops nothing is split. Elsewhere what forward makes of a loss, a
    sum over samples, stays each replica's own, too: its backward refers to the same samples.
    `is_forward`: ops of forward, of which some may run in backward once more.
    """
    split = graph.split.copy()
    partial = graph.tensor_partial.copy()
    part_of = placement.part_of_op
    is_replicated = placement.num_replicas > 1
    duplicates = duplicating_parts(placement, plan)
    if duplicates.any():
        is_whole = duplicates[part_of]
        split[is_whole] = Split.NONE
        partial[is_whole[graph.tensor_source]] = False
    shares_out = (is_replicated & ~duplicates)[part_of]
    if shares_out.any():
        if is_forward is None:
            is_forward = graph.phase == Phase.FORWARD
        _share_losses(graph, shares_out, split, partial, is_forward)
    return split, partial


def _share_losses(
    graph: Graph,
    shares_out: Bools,
    split: npt.NDArray[np.int8],
    partial: Bools,
    is_forward: Bools,
) -> None:
    """Let forward ops that read sums over a replica's samples make such sums, on replicas."""
    source, reader = graph.edges
    may = shares_out[source] & shares_out[reader] & is_forward[reader] & is_forward[source]
    uses = np.flatnonzero(may & (split[reader] == Split.NONE) & ~graph.mixes[reader])
    while len(found := uses[partial[graph.use_tensor[uses]]]):
        split[reader[found]] = Split.SUM
        partial |= marked(graph.num_ops, reader[found])[graph.tensor_source]
        uses = uses[split[reader[uses]] == Split.NONE]


def tie_sums(graph: Graph) -> Ints:
    """A number for each op; those with the same must see the same samples, so be in one part.

    Forward makes sums over samples, losses above all, that are read by other ops of the same
    samples only: a sum over a third of the batch tells nothing of one over a quarter.
    """
    sets = DisjointSets(range(graph.num_ops))
    source, reader = graph.edges
    partial = graph.tensor_partial.copy()
    is_forward = graph.phase == Phase.FORWARD
    everywhere = np.ones(graph.num_ops, np.bool_)
    _share_losses(graph, everywhere, graph.split.copy(), partial, is_forward)
    tied = partial[graph.use_tensor] & is_forward[source]
    for one, other in zip(source[tied].tolist(), reader[tied].tolist(), strict=True):
        sets.join(one, other)
    return np.array(sets.roots(), dtype=np.int32)


def segment_ops(graph: Graph, placement: Placement, buckets: Buckets) -> Ints:
    """For each op how many buckets of its part must be complete before it.

    Backward ops: the buckets that were filled before it. Update ops: one more than the last bucket
    that they depend on, so that updates can run in the order in which gradients arrive.
    """
    local = np.zeros(len(buckets.part), dtype=np.int32)
    seen: dict[int, int] = {}
    for number, part in enumerate(buckets.part.tolist()):
        local[number] = seen.get(part, 0)
        seen[part] = local[number] + 1
    segment = np.zeros(graph.num_ops, dtype=np.int32)
    for part in seen:
        ends = np.sort(buckets.last_op[buckets.part == part])
        backward = np.flatnonzero((placement.part_of_op == part) & (graph.phase == Phase.BACKWARD))
        segment[backward] = np.searchsorted(ends, backward, side="left")
    updates = np.flatnonzero(graph.phase == Phase.UPDATE)
    if seen and len(updates):
        _segment_updates(graph, buckets, local, updates, segment)
    return segment


def _segment_updates(
    graph: Graph, buckets: Buckets, local: Ints, updates: npt.NDArray[np.intp], segment: Ints
) -> None:
    update, inputs = int(Phase.UPDATE), graph.inputs
    phase, source = graph.phase.tolist(), graph.tensor_source.tolist()
    bucket, turn = buckets.of_tensor.tolist(), local.tolist()
    for op in updates.tolist():
        last = 0
        for tensor in inputs[op].tolist():
            if phase[source[tensor]] == update:
                last = max(last, int(segment[source[tensor]]))
            elif bucket[tensor] >= 0:
                last = max(last, turn[bucket[tensor]] + 1)
        segment[op] = last
