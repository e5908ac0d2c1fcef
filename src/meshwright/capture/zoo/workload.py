"""What the zoo holds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch

Source = Literal["own", "transformers"]
Inputs = tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZooModel:
    """One model of the zoo."""

    name: str
    description: str
    batch: int
    """Samples a step unless said otherwise."""
    sequence: int | None
    """Tokens a sample unless said otherwise; None: the model has no sequence."""
    source: Source
    """Who wrote the model: this package, or transformers, which then must be installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How to make a workload; both functions run under the meta device and the chosen precision."""

    about: ZooModel
    make: Callable[[], Any]
    """The model."""
    inputs: Callable[[int, int], Inputs]
    """(batch, sequence) to arguments and keyword arguments."""
    longest: int | None = None
    """Tokens of the longest sample that the model has positions for; None: no limit."""
    precisions: tuple[str, ...] = ("fp32", "bf16")
    """Those that can be traced; the first is the usual one."""
