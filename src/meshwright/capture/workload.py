"""A model and the inputs of one training step, ready to be captured."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from meshwright.capture.inputs import open_dataclasses, resize_inputs
from meshwright.capture.torch_private import pytree
from meshwright.capture.trace import Loss
from meshwright.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A training step to capture."""

    name: str
    model: nn.Module
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    loss: Loss | None = None
    """From the model's output to a scalar; None: the model returns its loss."""
    batch: int | None = None
    """Samples in the inputs; None: the first dimension of the first tensor."""

    def __post_init__(self) -> None:
        open_dataclasses((self.args, dict(self.kwargs)))

    @property
    def num_samples(self) -> int:
        """The samples in the inputs."""
        leaves = pytree.tree_leaves((list(self.args), dict(self.kwargs)))
        tensors = [each for each in leaves if isinstance(each, torch.Tensor) and each.dim() > 0]
        if not tensors:
            name = type(self.model).__name__
            raise InputError(f"model {name}: must have a tensor among its inputs")
        size = int(tensors[0].shape[0]) if self.batch is None else self.batch
        if not any(tensor.shape[0] == size for tensor in tensors):
            raise InputError(f"batch: must be the first dimension of an input, got {self.batch}")
        return size

    def at_batch(self, samples: int) -> "Workload":
        """The same step on that many samples: inputs whose first dimension is the batch change."""
        if samples < 1:
            raise InputError(f"{self.name}: batch must be positive, got {samples}")
        args, kwargs = resize_inputs(self.args, self.kwargs, self.num_samples, samples)
        return replace(self, args=tuple(args), kwargs=kwargs, batch=samples)
