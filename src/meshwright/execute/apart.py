"""Whether samples of a batch can be computed apart from each other, and gradients then added up.

Batch normalisation by itself, a softmax over the batch, a mean over it that samples are compared
with, and a loss that multiplies such means (as some balance experts) mix samples: on a part of the
batch they compute something else than on all of it. Such a step is run only by plans that leave the
batch whole, unless the caller takes local statistics. Batch normalisation whose replicas exchange
their statistics (`program.expand.synchronise`) sees all samples of a microbatch. Ops that the graph
marks as mixing samples are run on the whole batch by all plans.

What forward sums up over a replica's samples is of use to those only who see the same samples.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.fx import Node

from meshwright.capture.ledger import Kernel, arguments_of, op_name
from meshwright.capture.torch_private import OpOverload
from meshwright.errors import InputError, quoted
from meshwright.execute.lookup import Lookup
from meshwright.execute.steps import PlannedSteps
from meshwright.execute.traced import TracedStep
from meshwright.graph.graph import Graph, Phase, Split
from meshwright.program.expand.synchronise import NORMS
from meshwright.program.program import Kind

_NORMS = {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit"}
_LINEAR = {
    "add", "sub", "neg", "sum", "mean", "mul", "div", "stack", "cat", "clone", "copy_", "add_",
    "_to_copy", "mul_", "div_", "ones_like", "expand", "where", "unsqueeze", "view", "cumsum",
}  # fmt: skip
"""Of a sum over the batch they make a sum over the batch, if nothing else in them is one."""
_ALONG = {
    "_softmax", "_log_softmax", "amax", "amin", "argmax", "argmin", "cumprod", "cumsum", "flip",
    "linalg_vector_norm", "logcumsumexp", "logsumexp", "prod", "roll", "std", "std_mean", "var",
    "var_mean",
}  # fmt: skip
"""What they make along the dimensions they are told needs all that is there. (Sorting and top-k are
not among them: experts sort samples to compute each by itself.)"""
_COUNTED = {"nll_loss_forward", "nll_loss2d_forward"}
"""Of their results, backward reads only how many targets there are, which adds up."""
_GROUPED = "_grouped_mm"
"""The product of rows that are sorted by expert: where each expert's end is a sum over the samples
whose rows they are, and of no use to others."""
_NEAR = 1e-9
"""Shares of a batch closer than this are the same row."""


def check_apart(graph: Graph, steps: PlannedSteps, *, takes_batch: bool = False) -> None:
    """Refuse a step that mixes the samples of a batch, naming the op that does.

    `takes_batch`: batch norm takes the statistics of all replicas.
    """
    step = steps.any()
    partial = {
        step.versions[tensor]
        for tensor in graph.tensor_partial.nonzero()[0].tolist()
        if graph.phase[graph.tensor_source[tensor]] == Phase.FORWARD
    }
    for number, kernel in enumerate(step.ledger.kernels):
        if graph.phase[number] != Phase.FORWARD or graph.mixes[number]:
            continue
        if takes_batch and graph.kind[number] in NORMS:
            continue
        reason = _why_mixed(kernel, partial, makes_rows=graph.split[number] == Split.BATCH)
        if not reason and _works_along_batch(number, step, steps):
            reason = f"computes {op_name(kernel.node)} over the batch"
        if reason:
            raise InputError(
                f"op {quoted(graph.op_names[number])}: {reason}, so microbatches or replicas would "
                f"not add up to the whole batch; leave the batch whole (no microbatches, no "
                f"replicas), or allow statistics of a microbatch (--microbatch-statistics, for "
                f"batch norm) or local ones (--local-statistics)"
            )


def check_sums(lookup: Lookup, partial: npt.NDArray[np.bool_]) -> None:
    """Refuse a plan by which a sum over some samples, made in forward, is read for others."""
    program = lookup.program
    graph, rows = program.graph, program.instructions
    is_sum = partial & (graph.phase[graph.tensor_source] == Phase.FORWARD)
    reader, buffer = program.reads["first"], program.reads["second"]
    tensor = program.buffers["tensor"][buffer]
    of_sums = (tensor >= 0) & is_sum[tensor] & (rows["kind"][reader] == Kind.COMPUTE)
    for use in np.flatnonzero(of_sums).tolist():
        row, made = rows[reader[use]], rows[lookup.origin(int(buffer[use]))]
        source = int(graph.tensor_source[tensor[use]])
        if made["op"] >= 0:
            is_right = all(abs(made[name] - row[name]) < _NEAR for name in ("rows_from", "rows_to"))
        else:  # of all replicas: a mean is not the sum of means
            is_right = graph.kind[source] in _COUNTED
        if not is_right:
            raise InputError(
                f"op {quoted(graph.op_names[row['op']])}: reads a sum over the samples of op "
                f"{quoted(graph.op_names[source])}, so that both must be in one part, or in parts "
                f"with the same shares"
            )


def _why_mixed(kernel: Kernel, partial: set[int], *, makes_rows: bool) -> str:
    name = op_name(kernel.node)
    if name in _NORMS and _is_training(kernel.node):
        return "normalises over the batch"
    ends = _argument(kernel.node, ("offs",)) if name == _GROUPED else None
    sums = [
        version
        for read, version in kernel.reads.items()
        if version in partial and read != getattr(ends, "name", None)
    ]
    if sums and makes_rows:
        return "uses a sum over the batch for each sample"
    if sums and (name not in _LINEAR or (len(sums) > 1 and name in ("mul", "div", "mul_", "div_"))):
        return f"computes {name} of sums over the batch"
    return ""


def _works_along_batch(number: int, step: TracedStep, steps: PlannedSteps) -> bool:
    """Whether an op works along a dimension that grows with the batch."""
    node = step.ledger.kernels[number].node
    if op_name(node) not in _ALONG or not isinstance(node.args[0], Node):
        return False
    shape = node.args[0].meta["val"].shape
    dims = [dim % max(len(shape), 1) for dim in _dims(node)] or range(len(shape))
    # Most work along the last one, which is the batch's in a vector only: no need to trace again.
    likely = [dim for dim in dims if len(shape) == 1 or dim != len(shape) - 1]
    if not any(shape[dim] % step.samples == 0 for dim in likely):
        return False
    larger = steps.other(step.samples).ledger.kernels[number].node.args[0]
    assert isinstance(larger, Node)
    return any(larger.meta["val"].shape[dim] != shape[dim] for dim in likely)


def _dims(node: Node) -> list[int]:
    """The dimensions that an op is told; none: all."""
    given = _argument(node, ("dim", "dims"))
    if given is None:
        return []
    return list(given) if isinstance(given, (list, tuple)) else [given]


def _argument(node: Node, names: Sequence[str]) -> Any:
    """What an op is given under one of these names; None: nothing."""
    given = arguments_of(node)
    return next((given[name] for name in names if name in given), None)


def _is_training(node: Node) -> bool:
    given = _argument(node, ("training", "train"))
    return isinstance(node.target, OpOverload) if given is None else bool(given)
