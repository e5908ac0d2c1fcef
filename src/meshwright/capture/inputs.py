"""The inputs of a step: how many samples they hold, and the same ones on more or fewer."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import torch

from meshwright.capture.torch_private import pytree
from meshwright.errors import InputError

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
"""What a model is called with."""


def as_inputs(batch: Any) -> Inputs:
    """How a model is called with a batch: with its parts, by name where they have names."""
    if isinstance(batch, Mapping):
        return (), dict(batch)
    return (tuple(batch) if isinstance(batch, tuple | list) else (batch,)), {}


def open_dataclasses(inputs: Any) -> None:
    """Let torch look into dataclasses that hold tensors: these are inputs as any others are.

    What it is told of a class holds for the process; it is what the class itself says.
    """
    held = {
        type(leaf): [getattr(leaf, each.name) for each in fields(leaf)]
        for leaf in pytree.tree_leaves(inputs)
        if is_dataclass(leaf) and not isinstance(leaf, type)
    }
    for kind, values in held.items():
        open_dataclasses(values)
        if any(isinstance(each, torch.Tensor) for each in pytree.tree_leaves(values)):
            hidden = [each.name for each in fields(kind) if not each.init]
            if hidden:
                raise InputError(
                    f"input {kind.__name__}: must be made of the arguments of its constructor, but "
                    f"field {hidden[0]} is not among them; give tensors, tuples or mappings"
                )
            pytree.register_dataclass(kind)


def resize_inputs(
    args: Sequence[Any], kwargs: Mapping[str, Any], batch: int, samples: int
) -> tuple[list[Any], dict[str, Any]]:
    """The same inputs on `samples` samples instead of `batch`; only shapes count."""
    inputs = (list(args), dict(kwargs))
    if samples == batch:
        return inputs

    def resize(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 0 or tensor.shape[0] != batch:
            return tensor
        # Its dimensions lie as they did: another order of them would mean other copies.
        order = sorted(range(tensor.dim()), key=tensor.stride, reverse=True)
        shape = (samples, *tensor.shape[1:])
        made = torch.empty([shape[dim] for dim in order], dtype=tensor.dtype, device="meta")
        return made.permute([order.index(dim) for dim in range(tensor.dim())])

    try:
        resized: tuple[list[Any], dict[str, Any]] = pytree.tree_map_only(
            torch.Tensor, resize, inputs
        )
    except (RuntimeError, TypeError) as error:  # torch's, as it cannot count the bytes
        raise InputError(f"batch: {samples:,} samples are too many for any memory") from error
    return resized
