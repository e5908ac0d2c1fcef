"""Synchronised batch norm: replicas of a part add up their statistics, so that all normalise alike.

Before a batch norm normalises, replicas add up how many values of a channel each has, their sum and
the sum of their squares; before its backward, the sums of the gradient and of its product with the
centred values. Each time that is one all-reduce of two numbers a channel and a count. It reads what
the batch norm reads, finds this replica's sums and adds them up; the batch norm then reads the
result, so that all replicas have the same statistics.

In a pipeline the statistics are those of one microbatch, since an op sees no samples of others.
Parts with a tensor team, and those whose replicas duplicate their ops, keep batch norm as it is.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from meshwright.graph.graph import Graph, Phase
from meshwright.plan.plan import Part, Plan, Sync
from meshwright.program.expand.expansion import Axis, Expansion
from meshwright.program.expand.rewrite import Rewrite
from meshwright.program.program import Kind

NORMS = frozenset(("native_batch_norm", "_native_batch_norm_legit"))
"""Kinds of forward ops that take statistics of their samples."""
BACKWARD_NORMS = frozenset(("native_batch_norm_backward",))
"""Kinds of ops that are the backward of those in `NORMS`."""
WORD_BYTES = 8.0
"""The bytes of one statistic in the all-reduce: the variance is a difference of large sums, which
needs double precision."""
_STATISTIC_BYTES = 4.0
"""The bytes of a channel's mean as batch norm saves it, whatever the type of its samples."""
_BEFORE = -0.5


def divides_norms(graph: Graph, plan: Plan) -> bool:
    """Whether replicas of a part would take statistics of their own samples alone."""
    part_of = {name: part for part in plan.parts for name in part.ops}
    return any(_is_divided(part_of[graph.op_names[op]]) for op, _ in find_norms(graph))


def with_batch_statistics(graph: Graph, plan: Plan) -> Plan:
    """The plan with statistics of all replicas, where that makes a difference."""
    return replace(plan, batch_statistics=True) if divides_norms(graph, plan) else plan


def find_norms(graph: Graph) -> Iterator[tuple[int, float]]:
    """The batch norms that take statistics, each followed by its backward ops, with their numbers
    of channels."""
    forward = [op for op, kind in enumerate(graph.kind) if kind in NORMS]
    for op in forward:
        if graph.phase[op] != Phase.FORWARD:
            continue
        made = graph.outputs[op]
        saved = made[graph.tensor_partial[made] & (graph.tensor_bytes[made] > 0)].tolist()
        if not saved:  # it uses its running statistics
            continue
        channels = float(graph.tensor_bytes[saved[0]]) / _STATISTIC_BYTES
        yield op, channels
        readers = {reader for tensor in saved for reader in graph.readers[tensor].tolist()}
        for reader in sorted(readers):
            if graph.kind[reader] in BACKWARD_NORMS:
                yield reader, channels


def _is_divided(part: Part) -> bool:
    return part.num_replicas > 1 and part.width == 1 and part.sync is not Sync.DUPLICATE


def synchronise(before: Expansion, plan: Plan) -> Expansion:
    """Add the all-reduces of statistics where a plan asks for them."""
    if not plan.batch_statistics:
        return before
    rewrite, graph = Rewrite(before), before.graph
    for op, channels in find_norms(graph):
        if not _is_divided(plan.parts[int(before.part_of_op[op])]):
            continue
        read = graph.inputs[op]
        if graph.phase[op] == Phase.FORWARD:  # samples alone
            read = read[graph.fixed_tensor_bytes[read] < graph.tensor_bytes[read]]
        place, reads = rewrite.place[op] + _BEFORE, np.unique(read).tolist()
        collective = rewrite.add_collective(Kind.ALL_REDUCE, Axis.REPLICAS, op, place, reads)
        size = WORD_BYTES * (2 * channels + 1)
        rewrite.reads[op].append(rewrite.add_tensor(collective, size, size))
    return rewrite.done()
