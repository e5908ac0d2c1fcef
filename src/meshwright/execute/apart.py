"""Whether samples of a batch can be computed apart from each other, and gradients then added up.

Batch normalisation, and a loss that multiplies means over the batch (as some balance experts), mix
samples: on a part of the batch they compute something else than on all of it. Such a step is run
only by plans that leave the batch whole, unless the caller takes local statistics, as everybody
does who trains batch normalisation on several devices.

What forward sums up over a replica's samples is of use to those only who see the same samples.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch.fx import Node

from meshwright.capture.ledger import Kernel, op_name
from meshwright.errors import InputError, quoted
from meshwright.execute.lookup import Lookup
from meshwright.execute.traced import TracedStep
from meshwright.graph.graph import Graph, Phase
from meshwright.program.program import Kind

_NORMS = {"native_batch_norm", "cudnn_batch_norm", "miopen_batch_norm", "_native_batch_norm_legit"}
_LINEAR = {
    "add", "sub", "neg", "sum", "mean", "mul", "div", "stack", "cat", "clone", "copy_", "add_",
    "_to_copy", "mul_", "div_", "ones_like", "expand", "where", "unsqueeze", "view",
}  # fmt: skip
"""Of a sum over the batch they make a sum over the batch, if nothing else in them is one."""
_COUNTED = {"nll_loss_forward", "nll_loss2d_forward"}
"""Of their results, backward reads only how many targets there are, which adds up."""
_NEAR = 1e-9
"""Shares of a batch closer than this are the same row."""


def check_apart(graph: Graph, step: TracedStep) -> None:
    """Refuse a step that mixes the samples of a batch, naming the op that does."""
    partial = {
        step.versions[tensor]
        for tensor in graph.tensor_partial.nonzero()[0].tolist()
        if graph.phase[graph.tensor_source[tensor]] == Phase.FORWARD
    }
    for number, kernel in enumerate(step.ledger.kernels):
        if graph.phase[number] != Phase.FORWARD:
            continue
        reason = _why_mixed(kernel, partial)
        if reason:
            raise InputError(
                f"op {quoted(graph.op_names[number])}: {reason}, so microbatches or replicas would "
                f"not add up to the whole batch; leave the batch whole (no microbatches, no "
                f"replicas), or allow local statistics (--local-statistics)"
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
        if made["kind"] == Kind.COMPUTE:
            is_right = all(abs(made[name] - row[name]) < _NEAR for name in ("rows_from", "rows_to"))
        else:  # of all replicas: a mean is not the sum of means
            is_right = graph.kind[source] in _COUNTED
        if not is_right:
            raise InputError(
                f"op {quoted(graph.op_names[row['op']])}: reads a sum over the samples of op "
                f"{quoted(graph.op_names[source])}, so that both must be in one part, or in parts "
                f"with the same shares"
            )


def _why_mixed(kernel: Kernel, partial: set[int]) -> str:
    name = op_name(kernel.node)
    if name in _NORMS and _is_training(kernel.node):
        return "normalises over the batch"
    sums = [version for version in kernel.reads.values() if version in partial]
    if sums and (name not in _LINEAR or (len(sums) > 1 and name in ("mul", "div", "mul_", "div_"))):
        return f"computes {name} of sums over the batch"
    return ""


def _is_training(node: Node) -> bool:
    schema = node.target._schema  # type: ignore[union-attr]
    for position, argument in enumerate(schema.arguments):
        if argument.name in ("training", "train"):
            given = node.kwargs.get(argument.name)
            return bool(node.args[position] if position < len(node.args) else given)
    return isinstance(node.target, torch._ops.OpOverload)
