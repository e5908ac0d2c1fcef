"""What a step without a loss is: a model's outputs, in `eval` mode and without gradients."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from meshwright.errors import InputError


@contextmanager
def in_eval_mode(model: nn.Module) -> Iterator[None]:
    """Within this, all modules of a model are in `eval` mode; afterwards each in its own."""
    modes = [(each, each.training) for each in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, is_training in modes:
            module.training = is_training


def find_outputs(model: nn.Module, output: Any) -> list[torch.Tensor]:
    """The tensors in what a model has returned, each once."""
    tensors: dict[int, torch.Tensor] = {}
    seen: set[int] = set()
    left: list[Any] = [output]
    while left:
        value = left.pop()
        if id(value) in seen or isinstance(value, nn.Module | type):
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            tensors[id(value)] = value
        elif isinstance(value, Mapping):
            left += reversed(list(value.values()))
        elif isinstance(value, list | tuple):
            left += reversed(value)
        else:  # as the cache of keys and values that language models return
            left += reversed(list(getattr(value, "__dict__", {}).values()))
    if not tensors:
        raise InputError(
            f"model {type(model).__name__}: must return a tensor, or a container of some, got "
            f"{type(output).__name__}"
        )
    return list(tensors.values())
