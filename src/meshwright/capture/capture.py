"""`capture`: any PyTorch training step as a Graph."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from meshwright.capture.convert import convert_traces
from meshwright.capture.optimiser import Optimiser
from meshwright.capture.trace import Loss, trace_step
from meshwright.errors import InputError
from meshwright.graph.graph import Graph

GROWTH = 2
"""The step is traced once more on this many times the batch, to see what grows."""


def capture(
    model: nn.Module,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    loss: Loss | None = None,
    optimizer: str = "adamw",
    *,
    batch: int | None = None,
    autocast: torch.dtype | None = None,
) -> Graph:
    """One training step of a model as a Graph; nothing is allocated or computed.

    `model`, `args` and `kwargs` may be real or on the meta device. `loss`: from the model's output
    to a scalar; None takes the output itself, or its `loss`. `optimizer`: sgd, momentum, adam or
    adamw. `batch`: the samples in the inputs; None takes the first dimension of the first tensor.
    Inputs whose first dimension is the batch grow with it. `autocast`: e.g. torch.bfloat16.
    """
    kwargs = dict(kwargs or {})
    try:
        chosen = Optimiser(optimizer)
    except ValueError:
        known = ", ".join(Optimiser)
        raise InputError(f"optimizer: must be one of {known}, got {optimizer!r}") from None
    size = _batch_size(model, args, kwargs, batch)
    grown_args, grown_kwargs = _grow((list(args), kwargs), size)
    name = type(model).__name__
    small = trace_step(model, args, kwargs, loss=loss, optimizer=chosen, autocast=autocast)
    large = trace_step(
        model, grown_args, grown_kwargs, loss=loss, optimizer=chosen, autocast=autocast
    )
    return convert_traces(name, small, large, size, GROWTH)


def _batch_size(
    model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any], batch: int | None
) -> int:
    tensors = [
        leaf
        for leaf in pytree.tree_leaves((list(args), dict(kwargs)))
        if isinstance(leaf, torch.Tensor) and leaf.dim() > 0
    ]
    if not tensors:
        raise InputError(f"model {type(model).__name__}: must have a tensor among its inputs")
    size = int(tensors[0].shape[0]) if batch is None else batch
    if not any(tensor.shape[0] == size for tensor in tensors):
        raise InputError(f"batch: must be the first dimension of an input, got {batch}")
    return size


def _grow(inputs: tuple[list[Any], dict[str, Any]], batch: int) -> tuple[list[Any], dict[str, Any]]:
    """The same inputs on more samples; only shapes count."""

    def grow(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != batch:
            return tensor
        return torch.empty((GROWTH * batch, *tensor.shape[1:]), dtype=tensor.dtype, device="meta")

    grown: tuple[list[Any], dict[str, Any]] = pytree.tree_map_only(torch.Tensor, grow, inputs)
    return grown
