"""A model and the inputs of one training step, ready to be captured."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from meshwright.capture.inputs import find_batch, open_dataclasses, resize_inputs
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
        return find_batch(self.model, self.args, self.kwargs, self.batch)

    def at_batch(self, samples: int) -> "Workload":
        """The same step on that many samples: inputs whose first dimension is the batch change."""
        if samples < 1:
            raise InputError(f"{self.name}: batch must be positive, got {samples}")
        args, kwargs = resize_inputs(self.args, self.kwargs, self.num_samples, samples)
        return replace(self, args=tuple(args), kwargs=kwargs, batch=samples)
