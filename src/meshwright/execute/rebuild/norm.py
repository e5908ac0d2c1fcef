"""Rebuilds batch norms whose replicas exchange their statistics."""

from torch.fx import Node

from meshwright.capture.ledger import Kernel, arguments_of, op_name
from meshwright.execute.batch_norm import (
    BackwardMoments,
    Moments,
    batch_norm,
    batch_norm_backward,
)
from meshwright.execute.rebuild.builder import Builder
from meshwright.program.expand.expansion import Axis
from meshwright.program.expand.synchronise import NORMS


def add_moments(builder: Builder, op: int) -> Node:
    """Call the all-reduce of the statistics of a batch norm, or of those of its gradient."""
    made = builder.graph.outputs[op].tolist()[0]
    norm = builder.graph.readers[made].tolist()[0]
    kernel = builder.kernel(norm)
    is_forward = op_name(kernel.node) in NORMS
    names = ("input",) if is_forward else ("grad_out", "input", "save_mean")
    given = arguments_of(kernel.node)
    nodes = [builder.argument(op, kernel, given[name]) for name in names]
    return builder.call(Moments() if is_forward else BackwardMoments(), *nodes)


def run_norm(builder: Builder, op: int, kernel: Kernel, word: Node, num_replicas: int) -> Node:
    """A batch norm with the statistics of all replicas, or its backward."""
    given = arguments_of(kernel.node)

    def argument(name: str) -> Node | None:
        node = given[name]
        return None if node is None else builder.argument(op, kernel, node)

    if op_name(kernel.node) in NORMS:
        names = ("weight", "bias", "running_mean", "running_var")
        return builder.call(
            batch_norm, argument("input"), word, *map(argument, names),
            given["momentum"], given["eps"],
        )  # fmt: skip
    read = ("grad_out", "input", "weight", "save_mean", "save_invstd")
    return builder.call(
        batch_norm_backward, *map(argument, read), word, num_replicas,
        list(given["output_mask"]),
    )  # fmt: skip


def word_of(builder: Builder, op: int) -> Node | None:
    """The all-reduced statistics that an op reads; None: it reads none."""
    source = builder.graph.tensor_source
    for tensor in builder.graph.inputs[op].tolist():
        if builder.expansion.axis[source[tensor]] == Axis.REPLICAS:
            return builder.root[tensor]
    return None
