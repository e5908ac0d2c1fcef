"""What the zoo's models are made from."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

Inputs = tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooRecipe:
    """How to make a workload; both functions run under the meta device and the chosen precision."""

    name: str
    """The model's in `meshwright.zoo`, which has all that needs no torch."""
    make: Callable[[], Any]
    """Makes the PyTorch module."""
    inputs: Callable[[int, int], Inputs]
    """(batch, sequence) to arguments and keyword arguments."""
