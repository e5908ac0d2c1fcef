"""Gives a rank the rows of a batch that it reads, as its ops expect them."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from meshwright.capture.torch_private import pytree
from meshwright.capture.workload import Workload
from meshwright.errors import InputError, some
from meshwright.execute.item import Key
from meshwright.execute.labels import check_labels, count_labels, divided_bounds, find_labels
from meshwright.execute.pulse import LabelCount
from meshwright.execute.steps import PlannedSteps
from meshwright.execute.tensors import TensorWorker


class Feed:
    """The inputs of one rank."""

    def __init__(self, planned: PlannedSteps, worker: TensorWorker, *, is_mean: bool) -> None:
        """`worker`: what takes them; `is_mean`: whether the loss is a mean over samples."""
        self._workload, lowered = planned.workload, worker.lowered
        self.batch, self.steps, self.part = lowered.rows.batch, worker.steps, worker.part
        self.device = worker.device
        self._bounds = divided_bounds(lowered.program, lowered.rows) if is_mean else ()
        self._labels = find_labels(planned.any())

    @cached_property
    def rows(self) -> tuple[int, ...]:
        """The samples of a batch that this rank reads, in order."""
        ranges = [range(first, first + count) for _, _, first, count in self.part.inputs]
        return tuple(sorted(set().union(*ranges)))

    def read(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[dict[Key, torch.Tensor], LabelCount]:
        """The rows of a batch that ops read; and the labels in them, where it knows of no others.

        A batch is given whole, or with `rows` only.
        """
        leaves = match_inputs(self._workload, args, kwargs)
        rows, labels = self._given_rows(leaves), LabelCount()
        if len(rows) == self.batch:
            check_labels(self._labels, leaves, self._bounds, self.batch)
        else:
            labels = count_labels(self._labels, leaves, self._bounds, self.rows)
        made = {}
        for key, number, first, count in self.part.inputs:
            tensor = leaves[number]
            if tensor.dim() and tensor.shape[0] == len(rows):
                place = bisect_left(rows, first)
                tensor = tensor[place : place + count]
            step = self.steps[count]
            version = step.ledger.start[len(step.ledger.start) - step.trace.num_inputs + number]
            made[key] = step.layouts[version].lay(self._reachable(tensor), self.device)
        return made, labels

    def _reachable(self, tensor: torch.Tensor) -> torch.Tensor:
        """The same rows where a GPU copies them from by itself: from other memory of its host it
        does so only while the host waits, until all that it was given before is done."""
        if self.device.type != "cuda" or tensor.device.type != "cpu":
            return tensor
        return torch.empty_like(tensor, pin_memory=True).copy_(tensor)  # callers may fill theirs

    def _given_rows(self, leaves: Sequence[torch.Tensor]) -> Sequence[int]:
        """Which samples of a batch the tensors have that this rank is given: all, or its own."""
        sizes = [each.shape[0] for each in leaves if each.dim()]
        for rows in (range(self.batch), self.rows):
            if len(rows) in sizes:
                return rows
        if not self.rows:  # it reads none
            return self.rows
        raise InputError(
            f"batch: must be {self.batch:,} samples, as planned, or the {len(self.rows)} that this "
            f"rank reads, got {sizes[0] if sizes else 'no tensor'}"
        )


def match_inputs(
    workload: Workload, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> list[torch.Tensor]:
    """The tensors of a batch, in the order of those that were planned, which they must be like but
    for the number of samples."""
    if sorted(kwargs) != sorted(workload.kwargs):
        raise InputError(
            f"batch: must have the named inputs {some(sorted(workload.kwargs)) or 'none'}, as "
            f"planned, got {some(sorted(kwargs)) or 'none'}"
        )
    wanted = _tensors(workload.args, workload.kwargs)
    given = _tensors(args, {name: kwargs[name] for name in workload.kwargs})
    if len(given) != len(wanted):
        raise InputError(
            f"batch: must have {len(wanted):,} tensors, as planned, got {len(given):,}"
        )
    for number, (one, other) in enumerate(zip(given, wanted, strict=True)):
        if _of_sample(one) != _of_sample(other):
            raise InputError(
                f"batch: input {number} must be {_describe(other)} a sample, as planned, got "
                f"{_describe(one)}"
            )
    return given


def _tensors(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    leaves = pytree.tree_leaves((list(args), dict(kwargs)))
    return [each for each in leaves if isinstance(each, torch.Tensor)]


def _of_sample(tensor: torch.Tensor) -> tuple[object, ...]:
    return tensor.dtype, tensor.dim(), tensor.shape[1:]


def _describe(tensor: torch.Tensor) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    return f"{kind} of shape {list(tensor.shape[1:])}"
