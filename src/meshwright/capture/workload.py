"""A model and the inputs of one training step, ready to be captured."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from meshwright.capture.capture import capture
from meshwright.capture.trace import Loss
from meshwright.errors import InputError, quoted
from meshwright.graph.graph import Graph

AUTOCASTS = {"bf16": torch.bfloat16, "fp16": torch.float16}


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


def capture_workload(workload: Workload, optimizer: str, autocast: str | None = None) -> Graph:
    """Capture a step of a workload; `autocast` by its short name."""
    if autocast is not None and autocast not in AUTOCASTS:
        known = ", ".join(AUTOCASTS)
        raise InputError(f"autocast: must be one of {known}, got {quoted(autocast)}")
    return capture(
        workload.model,
        workload.args,
        workload.kwargs,
        loss=workload.loss,
        optimizer=optimizer,
        batch=workload.batch,
        autocast=AUTOCASTS[autocast] if autocast else None,
    )
