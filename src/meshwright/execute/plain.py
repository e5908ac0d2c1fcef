"""Trains a model in one process the way everybody does, to compare a plan's losses with.

Shares nothing with the executor but the weights to start from: modules run as they are, autograd
differentiates, torch.optim updates.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from meshwright.capture.deferred import Deferred
from meshwright.capture.optimiser import BETAS, EPSILON, MOMENTUM, WEIGHT_DECAY, Optimiser
from meshwright.capture.trace import find_loss
from meshwright.errors import InputError, quoted
from meshwright.execute.code import draws
from meshwright.execute.traced import TracedStep
from meshwright.graph.graph import Graph


def check_repeatable(graph: Graph, step: TracedStep) -> None:
    """Refuse a step that draws random numbers: one process draws others than a plan does."""
    for number, kernel in enumerate(step.ledger.kernels):
        if draws(kernel.node):
            raise InputError(
                f"--check: op {quoted(graph.op_names[number])} draws random numbers, others in one "
                f"process than by this plan; losses compare only without dropout"
            )


def train_plainly(
    deferred: Deferred,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    steps: int,
    optimizer: str,
    learning_rate: float,
    device: torch.device,
) -> list[float]:
    """The losses of plain training from the same weights, on the whole batch at once."""
    model = _make_real(deferred).to(device)
    update = _make_optimizer(Optimiser(optimizer), model, learning_rate)
    losses = []
    for _ in range(steps):
        update.zero_grad()
        loss = find_loss(model(*args, **kwargs), deferred.workload.loss)
        torch.autograd.backward(loss)
        update.step()
        losses.append(float(loss.detach()))
    return losses


def _make_real(deferred: Deferred) -> nn.Module:
    """The model with memory: every parameter and buffer is replaced by its values."""
    model = deferred.workload.model
    known: dict[int, torch.Tensor] = {}
    for module in model.modules():
        for held in (module._parameters, module._buffers):
            for name, tensor in held.items():
                if tensor is None:
                    continue
                if id(tensor) not in known:
                    values = deferred.real(tensor).clone()
                    is_parameter = isinstance(tensor, nn.Parameter)
                    known[id(tensor)] = (
                        nn.Parameter(values, tensor.requires_grad) if is_parameter else values
                    )
                held[name] = known[id(tensor)]  # type: ignore[assignment]
    return model


def _make_optimizer(
    kind: Optimiser, model: nn.Module, learning_rate: float
) -> torch.optim.Optimizer:
    parameters = [each for each in model.parameters() if each.requires_grad]
    if not parameters:
        raise InputError(f"model {type(model).__name__}: must have a parameter to train")
    if kind in (Optimiser.SGD, Optimiser.MOMENTUM):
        momentum = MOMENTUM if kind is Optimiser.MOMENTUM else 0.0
        return torch.optim.SGD(parameters, lr=learning_rate, momentum=momentum)
    if kind is Optimiser.ADAM:
        return torch.optim.Adam(parameters, lr=learning_rate, betas=BETAS, eps=EPSILON)
    return torch.optim.AdamW(
        parameters, lr=learning_rate, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY
    )
