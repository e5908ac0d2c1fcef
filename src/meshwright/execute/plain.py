"""Trains a model in one process the way everybody does, to compare a plan's losses with.

Shares nothing with the executor but the weights to start from: modules run as they are, autograd
differentiates, torch.optim updates.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from meshwright.capture.autocast import cuda_autocast
from meshwright.capture.capture import AUTOCASTS
from meshwright.capture.deferred.deferred import DeferredWorkload
from meshwright.capture.deferred.model import replace_members
from meshwright.capture.inputs import Inputs
from meshwright.capture.ledger import named_arguments
from meshwright.capture.torch_private import TorchDispatchMode
from meshwright.capture.trace import find_loss
from meshwright.capture.tracer import UNIFORM
from meshwright.errors import InputError, quoted
from meshwright.execute.draw import Draw, draw_again, draws, is_repeatable
from meshwright.execute.groups import make_scheduler, open_optimizer
from meshwright.execute.settings import Settings
from meshwright.execute.traced import TracedStep
from meshwright.graph.graph import Graph


def check_repeatable(graph: Graph, step: TracedStep) -> None:
    """Refuse a step that draws random numbers which depend on how the batch is divided."""
    for number, kernel in enumerate(step.ledger.kernels):
        if draws(kernel.node) and not is_repeatable(kernel.node):
            raise InputError(
                f"--check: op {quoted(graph.op_names[number])} draws random numbers for all its "
                f"samples together, others in one process than by this plan"
            )


class RepeatedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Gives the ops of plain training the random numbers that a plan's have.

    Ops that draw do so in the order of the traced step.
    """

    def __init__(self, found: Mapping[int, Draw], seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = [draw for number, draw in sorted(found.items()) if draw.op == number]
        self.seed, self.step, self.place = seed, 0, 0

    def begin(self, step: int) -> None:
        """Begin a step, in which the ops draw in their order again."""
        self.step, self.place = step, 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an op, one that draws with the numbers of its turn."""
        if torch.Tag.nondeterministic_seeded not in func.tags or _keeps_all(func, args, kwargs):
            return func(*args, **(kwargs or {}))
        draw = self.found[self.place] if self.place < len(self.found) else None
        is_one_number = func in UNIFORM and not args[0]
        if (draw is None or draw.along is not None) and is_one_number:
            # It chose a branch that no draw can change; see `find_certain_truth`.
            return func(*args, **(kwargs or {}))
        if draw is None:
            raise InputError(
                f"--check: {func} draws random numbers in one process that the captured step does "
                f"not draw"
            )
        self.place += 1
        return draw_again(func, draw, self.seed, self.step, args, kwargs or {})


def _keeps_all(func: Any, args: Any, kwargs: Any) -> bool:
    """Whether it is an attention that could drop weights, and drops none."""
    names = {each.name for each in func._schema.arguments}
    given = named_arguments(func, args, kwargs or {})
    return "dropout_p" in names and not given.get("dropout_p", 0.0)


def train_plainly(
    deferred: DeferredWorkload,
    batches: Iterator[Inputs],
    settings: Settings,
    device: torch.device,
    repeated: RepeatedDraws,
    given: Callable[[str], torch.Tensor],
) -> list[float]:
    """The losses of plain training from the same weights, on the whole batch at once.

    `given`: the values of a parameter or buffer, by its first name.
    """
    autocast, loss_scale = settings.autocast, settings.loss_scale
    model = _make_real(deferred.workload.model, given).to(device)
    update = open_optimizer(settings.optimizer, model, settings.learning_rate)
    schedule = make_scheduler(settings.scheduler, update)
    scaler = torch.amp.GradScaler(
        device.type, init_scale=loss_scale or 1.0, enabled=loss_scale is not None
    )
    casts = torch.autocast(
        device.type, dtype=AUTOCASTS[autocast] if autocast else None, enabled=autocast is not None
    )
    losses = []
    for step in range(settings.steps):
        update.zero_grad()
        repeated.begin(step)
        # Fused attention draws inside its kernel.
        fused = sdpa_kernel(SDPBackend.MATH) if repeated.found else nullcontext()
        args, kwargs = next(batches)
        with repeated, fused, cuda_autocast(), casts:  # which CPUs are to cast as GPUs do
            loss = find_loss(model(*args, **kwargs), deferred.workload.loss)
        torch.autograd.backward(scaler.scale(loss))
        if settings.clip_norm is not None:
            scaler.unscale_(update)
            nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        scaler.step(update)
        scaler.update()
        if schedule is not None:
            schedule.step()
        losses.append(float(loss.detach()))
    return losses


def _make_real(model: nn.Module, given: Callable[[str], torch.Tensor]) -> nn.Module:
    """The model with memory: every parameter and buffer is replaced by its values."""
    names = {id(each): name for name, each in (*model.named_parameters(), *model.named_buffers())}
    values_of = {number: given(name).clone() for number, name in names.items()}

    def real(tensor: torch.Tensor) -> torch.Tensor:
        values = values_of[id(tensor)]
        is_parameter = isinstance(tensor, nn.Parameter)
        return nn.Parameter(values, tensor.requires_grad) if is_parameter else values

    replace_members(model, real)
    return model
