"""The numbers that updates are given: learning rates, decays and the like, by torch.optim's groups.

An optimiser of torch.optim is what holds them, as its user made it: its own `step` is never called
on the model, but its groups are read at every update, so that a scheduler may change them. The
updates themselves are ops of the traced step.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from meshwright.capture.optimiser import (
    BETAS,
    EPSILON,
    WEIGHT_DECAY,
    Optimiser,
    find_optimiser,
)
from meshwright.capture.stepped import CLASSES, MOMENTUM, Stepped
from meshwright.errors import InputError, quoted

Optimizer = torch.optim.Optimizer
AnyOptimizer = str | Optimizer | Callable[[nn.Module], Optimizer]
"""How a user says what updates parameters: a name, an optimiser, or what makes one for a model."""


def open_optimizer(given: AnyOptimizer, model: nn.Module, learning_rate: float) -> Optimizer:
    """The optimiser that a user means; `learning_rate` is for one that is named."""
    if isinstance(given, str):
        return _make_named(given, model, learning_rate)
    made = given(model) if callable(given) and not isinstance(given, Optimizer) else given
    if not isinstance(made, Optimizer):
        raise InputError(
            f"optimizer: must be a torch.optim.Optimizer, or a function from the model to one, got "
            f"{type(made).__name__}"
        )
    find_optimiser(made)  # or it is refused
    return made


def _make_named(name: str, model: nn.Module, learning_rate: float) -> Optimizer:
    """The optimiser of a name, with torch's defaults."""
    kind = find_optimiser(name)
    parameters = [each for each in model.parameters() if each.requires_grad]
    if not parameters:
        raise InputError(f"model {type(model).__name__}: must have a parameter to train")
    if isinstance(kind, Stepped):
        return CLASSES[name](parameters, lr=learning_rate)
    if kind in (Optimiser.SGD, Optimiser.MOMENTUM):
        momentum = MOMENTUM if kind is Optimiser.MOMENTUM else 0.0
        return torch.optim.SGD(parameters, lr=learning_rate, momentum=momentum)
    if kind is Optimiser.ADAM:
        return torch.optim.Adam(parameters, lr=learning_rate, betas=BETAS, eps=EPSILON)
    return torch.optim.AdamW(
        parameters, lr=learning_rate, betas=BETAS, eps=EPSILON, weight_decay=WEIGHT_DECAY
    )


def find_groups(optimizer: Optimizer, model: nn.Module) -> dict[str, int]:
    """The number of the group of each parameter that is trained, by all its names."""
    number = {
        id(each): place
        for place, group in enumerate(optimizer.param_groups)
        for each in group["params"]
    }
    found = {
        name: number.get(id(each), -1)
        for name, each in model.named_parameters(remove_duplicate=False)
        if each.requires_grad
    }
    missing = [name for name, place in found.items() if place < 0]
    if missing:
        raise InputError(
            f"optimizer: must have all parameters of the model that need a gradient, lacks "
            f"{quoted(missing[0])}; let it have none (requires_grad=False)"
        )
    return found


def read_settings(optimizer: Optimizer, *, has_rates: bool = True) -> list[dict[str, Any]]:
    """The numbers of all groups as they are now, with or without the learning rates."""
    left_out = {"params"} if has_rates else {"params", "lr"}
    return [
        {key: each for key, each in group.items() if key not in left_out}
        for group in optimizer.param_groups
    ]


class LearningRates:
    """Learning rates in a device's memory, from where recorded updates read them."""

    def __init__(self, groups: Sequence[Mapping[str, Any]], device: torch.device) -> None:
        self.groups = groups
        self.tensors = [torch.zeros((), device=device) for _ in self.groups]
        self._values = [0.0] * len(self.groups)

    def begin(self) -> None:
        """Take those of a step."""
        for place, group in enumerate(self.groups):
            value = float(group["lr"])
            if value != self._values[place]:
                self.tensors[place].fill_(value)
                self._values[place] = value


_KEYS = {
    "lr": '["lr"]',
    "weight_decay": '["weight_decay"]',
    "eps": '["eps"]',
    "beta1": '["betas"][0]',
    "beta2": '["betas"][1]',
    "momentum": '["momentum"]',
    "dampening": '["dampening"]',
    "nesterov": '["nesterov"]',
    "maximize": '["maximize"]',
}
"""By argument of a fused update: where its value is in a group."""


def group_values(arguments: Mapping[str, Any], group: int, *, has_rates: bool) -> dict[str, str]:
    """How generated code writes the arguments of a fused update that a group has; `has_rates`: the
    learning rate is a tensor."""
    found = {name: f"held.groups[{group}]{_KEYS[name]}" for name in arguments if name in _KEYS}
    if has_rates:
        found["lr"] = f"held.rates[{group}]"
    if "is_first_step" in arguments:
        # The first momentum is the gradient, which without dampening is what zeros become anyway.
        found["is_first_step"] = f'held.is_first and held.groups[{group}]["dampening"] != 0'
    return found


def make_scheduler(given: Any, optimizer: Optimizer) -> Any:
    """A learning-rate scheduler as it is before the first step; None where none is given.

    `given`: one of torch's, or what makes one for the optimiser.
    """
    if given is None:
        return None
    is_made = hasattr(given, "step") and not isinstance(given, type)
    made = given if is_made else given(optimizer)
    if not hasattr(made, "step"):
        raise InputError(
            f"scheduler: must be one of torch.optim.lr_scheduler, or a function from the optimizer "
            f"to one, got {type(made).__name__}"
        )
    if isinstance(made, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise InputError(
            "scheduler: ReduceLROnPlateau goes by what a run measures; call its step in a loop of "
            "your own"
        )
    return made


def advance(scheduler: Any, optimizer: Optimizer) -> None:
    """Take a scheduler's step after a step of training."""
    optimizer._opt_called = True  # type: ignore[attr-defined]  # else it warns: see above
    scheduler.step()


class RateSchedule:
    """A scheduler that goes with the steps of a run, and to any step where the run goes on."""

    def __init__(self, scheduler: Any, optimizer: Optimizer) -> None:
        """`scheduler` is as it is before the first step."""
        self.scheduler, self.optimizer = scheduler, optimizer
        self.step = 0
        """How many steps it has taken."""
        self._start: Any = None
        if hasattr(scheduler, "state_dict") and hasattr(scheduler, "load_state_dict"):
            self._start = deepcopy((scheduler.state_dict(), read_settings(optimizer)))

    def advance(self) -> None:
        """Go on after a step of training."""
        advance(self.scheduler, self.optimizer)
        self.step += 1

    def seek(self, step: int) -> None:
        """Go to a step, as in a run that comes to it from its first one."""
        if step < self.step:
            self._begin_again(step)
        while self.step < step:
            self.advance()

    def _begin_again(self, step: int) -> None:
        """Make the scheduler and the numbers of all groups what they were before the first step."""
        if self._start is None:
            raise InputError(
                f"scheduler: must have state_dict and load_state_dict for a run to go back from "
                f"step {self.step} to step {step}, {type(self.scheduler).__name__} has not"
            )
        state, settings = deepcopy(self._start)
        self.scheduler.load_state_dict(state)
        for group, values in zip(self.optimizer.param_groups, settings, strict=True):
            group.update(values)
        self.step = 0


def make_schedule(given: Any, optimizer: Optimizer) -> RateSchedule | None:
    """The schedule of a scheduler that a user gives, as `make_scheduler` takes it, if any."""
    scheduler = make_scheduler(given, optimizer)
    return None if scheduler is None else RateSchedule(scheduler, optimizer)
