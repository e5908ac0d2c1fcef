"""Whether every part of a batch has its share of the labels that a loss does not ignore.

A mean over labels is the mean of means of parts of a batch, each weighed by its samples, only where
all parts have as many labels a sample. A rank that is given the whole batch finds the answer before
it starts a step; those that are given their own rows count, and add up at the end of the step
(`meshwright.execute.pulse`).
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch.fx import Node

from meshwright.capture.ledger import op_name
from meshwright.capture.torch_private import pytree
from meshwright.errors import InputError
from meshwright.execute.cut.loss import MEAN
from meshwright.execute.cut.terms import MOVES
from meshwright.execute.pulse import LabelCount
from meshwright.execute.rows import Rows
from meshwright.execute.traced import TracedStep
from meshwright.program.program import Program

_LOSSES = ("nll_loss_forward", "nll_loss2d_forward")

_MOVES = MOVES | {"constant_pad_nd", "_to_copy", "full", "full_like", "new_full"}
"""Ops whose results hold what their inputs hold, or constants, at places that shapes decide."""

Bounds = tuple[tuple[int, int], ...]
"""The first sample and the end of each part of a batch."""


@dataclass(frozen=True, kw_only=True)  # no slots: `full` is found once and kept
class Labels:
    """What a loss is compared with, as a function of the step's inputs."""

    samples: int
    """How many samples the traced step has, which is valid for that number only."""
    target: Node
    ignored: int
    nodes: tuple[Node, ...]
    """The calls that make it of inputs, in order."""
    inputs: dict[Node, int]
    """The inputs that these read, by their placeholders."""

    @cached_property
    def full(self) -> float | None:
        """How many labels a sample has where inputs hold none that is ignored; None where that
        depends on what else they hold, as where the model ignores some by itself."""
        if not all(op_name(node) in _MOVES for node in self.nodes):
            return None
        other = 1 if self.ignored == 0 else 0
        values = {node: node.meta["val"] for node in self.inputs}
        return self._count(
            {node: torch.full(each.shape, other, dtype=each.dtype) for node, each in values.items()}
        )

    def is_full(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether every sample has as many labels as any has without ignored ones."""
        given = (inputs[number] for number in self.inputs.values())
        return self.full is not None and not any(bool((x == self.ignored).any()) for x in given)

    def count(self, inputs: Sequence[torch.Tensor], sample: int, batch: int) -> float:
        """How many labels of a sample are not ignored, found by a step whose samples are all that
        one."""
        known: dict[Node, torch.Tensor] = {}
        for node, number in self.inputs.items():
            given = inputs[number]
            if given.dim() and given.shape[0] == batch:
                own = given[sample : sample + 1].cpu()
                known[node] = own.expand(self.samples, *given.shape[1:]).contiguous()
            else:
                known[node] = given.cpu()
        return self._count(known)

    def _count(self, inputs: Mapping[Node, torch.Tensor]) -> float:
        """How many labels a sample has in a traced step with these inputs."""
        known: dict[Node, Any] = dict(inputs)
        for node in self.nodes:
            args, kwargs = pytree.tree_map_only(Node, known.__getitem__, (node.args, node.kwargs))
            known[node] = node.target(*args, **kwargs)  # type: ignore[operator]
        return float((known[self.target] != self.ignored).sum()) / self.samples


def divided_bounds(program: Program, rows: Rows) -> Bounds:
    """The parts of a batch that losses are computed of; none where each sees all of it."""
    is_loss = np.array([kind in _LOSSES for kind in program.graph.kind], dtype=np.bool_)
    table = program.instructions
    own = table[(table["op"] >= 0) & is_loss[table["op"]]]
    pairs = sorted({(float(row["rows_from"]), float(row["rows_to"])) for row in own})
    found = [
        (number * rows.samples + rows.bound(start), number * rows.samples + rows.bound(end))
        for number in range(rows.microbatches)
        for start, end in pairs
    ]
    return tuple(found) if len(found) > 1 else ()


def find_labels(step: TracedStep) -> list[Labels]:
    """The labels of all losses that are means, where they are made of inputs alone."""
    nodes, start = list(step.trace.graph.nodes), step.trace.start
    number = {start[f"input {place}"]: place for place in range(step.trace.num_inputs)}
    found = []
    for kernel in step.ledger.kernels:
        if op_name(kernel.node) not in _LOSSES or kernel.node.args[3] != MEAN:
            continue
        target, ignored = kernel.node.args[1], kernel.node.args[4]
        assert isinstance(target, Node) and isinstance(ignored, int)
        needed = _needed(target)
        calls = tuple(node for node in nodes if node in needed and node.op == "call_function")
        starts = {node for node in needed if node.op != "call_function"}
        if starts <= set(number):
            own = {node: number[node] for node in starts}
            found.append(
                Labels(
                    samples=step.samples, target=target, ignored=ignored, nodes=calls, inputs=own
                )
            )
    return found


def _needed(node: Node) -> set[Node]:
    """A node and all that it is made of."""
    found, waiting = set(), [node]
    while waiting:
        each = waiting.pop()
        if each not in found:
            found.add(each)
            waiting += each.all_input_nodes
    return found


def check_labels(
    labels: Sequence[Labels], inputs: Sequence[torch.Tensor], bounds: Bounds, batch: int
) -> None:
    """Refuse a batch whose labels are ignored more in one of its parts than in another.

    Most batches have no ignored labels in their inputs, which is all that is looked at then.
    """
    for each in labels if bounds else ():
        if each.is_full(inputs):
            continue
        counts = [each.count(inputs, sample, batch) for sample in range(batch)]
        means = [sum(counts[start:end]) / (end - start) for start, end in bounds]
        if max(means) - min(means) > 1e-9 * max(means):
            least, most = (bounds[means.index(end)] for end in (min(means), max(means)))
            raise InputError(
                f"labels: the parts of a batch must have as many that count a sample (not "
                f"{each.ignored}), got {min(means):g} in samples {least[0]} to {least[1] - 1} and "
                f"{max(means):g} in {most[0]} to {most[1] - 1}; leave the batch whole (no "
                f"microbatches, no replicas), or ignore as many in each"
            )


def count_labels(
    labels: Sequence[Labels],
    inputs: Sequence[torch.Tensor],
    bounds: Bounds,
    rows: Sequence[int],
) -> LabelCount:
    """What a rank sees of the labels of a batch whose `rows` are all that it is given."""
    own = [
        range(place, place + end - start)
        for start, end in bounds
        if (place := bisect_left(rows, start)) + end - start <= len(rows)
        and rows[place : place + end - start] == tuple(range(start, end))
    ]
    means = [0.0] * len(own)
    for each in labels if own else ():
        if each.full is not None and each.is_full(inputs):
            more = [each.full] * len(own)
        else:
            counts = [each.count(inputs, row, len(rows)) for row in range(len(rows))]
            more = [sum(counts[part.start : part.stop]) / len(part) for part in own]
        means = [mean + other for mean, other in zip(means, more, strict=True)]
    found = LabelCount()
    for mean in means:
        found.add(mean)
    return found
