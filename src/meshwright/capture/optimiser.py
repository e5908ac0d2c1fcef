"""The update of one parameter, as the one op that runs on the target device."""

from collections.abc import Sequence
from enum import StrEnum

import torch

from meshwright.argument import need_type
from meshwright.capture.stepped import (
    CLASSES,
    MOMENTUM,
    Stepped,
    find_named,
    find_stepped,
    trace_step_of,
)
from meshwright.capture.torch_private import update_adam, update_adamw, update_sgd
from meshwright.errors import InputError


class Optimiser(StrEnum):
    """Those with fused kernels, and what they keep for each parameter, as `Stepped` has it."""

    SGD = "sgd"
    MOMENTUM = "momentum"
    ADAM = "adam"
    ADAMW = "adamw"

    @property
    def states(self) -> tuple[str, ...]:
        """The tensors that it keeps for each parameter."""
        if self is Optimiser.SGD:
            return ()
        if self is Optimiser.MOMENTUM:
            return ("momentum_buffer",)
        return ("exp_avg", "exp_avg_sq", "step")

    @property
    def scalars(self) -> frozenset[str]:
        """Those of them that are one number."""
        return frozenset({"step"})

    @property
    def wide(self) -> frozenset[str]:
        """None of them is in fp32 where the parameter has 16 bits."""
        return frozenset()


AnyOptimiser = Optimiser | Stepped
"""How parameters are updated."""


def find_optimiser(given: str | torch.optim.Optimizer) -> AnyOptimiser:
    """The kind of an optimiser, by its name or by one that was made."""
    if isinstance(given, str):
        if given in CLASSES:
            return find_named(given)
        try:
            return Optimiser(given)
        except ValueError:
            known = ", ".join([*Optimiser, *CLASSES])
            raise InputError(f"optimizer: must be one of {known}, got {given!r}") from None
    wanted = "the name of an optimiser, or one of torch.optim's"
    need_type(given, torch.optim.Optimizer, "optimizer", wanted)
    groups, kind = given.param_groups, type(given)
    if any(isinstance(group["lr"], torch.Tensor) for group in groups):
        raise InputError("optimizer: learning rates must be numbers, got a tensor")
    if any(group.get("differentiable") for group in groups):
        raise InputError(f"optimizer: {kind.__name__} with differentiable is not known")
    if kind is torch.optim.SGD:
        has_momentum = {bool(group["momentum"]) for group in groups}
        if len(has_momentum) > 1:
            raise InputError("optimizer: all groups of SGD must have momentum, or none")
        return Optimiser.MOMENTUM if True in has_momentum else Optimiser.SGD
    has_maximum = any(group.get("amsgrad") for group in groups)
    if kind in (torch.optim.Adam, torch.optim.AdamW) and not has_maximum:
        is_decoupled = {bool(group.get("decoupled_weight_decay")) for group in groups}
        if len(is_decoupled) > 1:
            raise InputError("optimizer: all groups must have decoupled_weight_decay, or none")
        is_adamw = kind is torch.optim.AdamW or True in is_decoupled
        return Optimiser.ADAMW if is_adamw else Optimiser.ADAM
    return find_stepped(given)


LEARNING_RATE = 1e-3
BETAS = (0.9, 0.999)
EPSILON = 1e-8
"""The defaults of torch.optim, which change no cost."""
WEIGHT_DECAY = 1e-2
"""The default of torch.optim.AdamW."""


def update_parameter(
    optimizer: AnyOptimiser,
    parameter: torch.Tensor,
    gradient: torch.Tensor,
    state: Sequence[torch.Tensor],
) -> None:
    """Update in place, by the fused kernel if there is one: one op a parameter instead of nine."""
    if isinstance(optimizer, Stepped):
        trace_step_of(optimizer, parameter, gradient, state, LEARNING_RATE)
        return
    if optimizer in (Optimiser.SGD, Optimiser.MOMENTUM):
        update_sgd(
            [parameter],
            [gradient],
            list(state),
            weight_decay=0.0,
            momentum=MOMENTUM if state else 0.0,
            lr=LEARNING_RATE,
            dampening=0.0,
            nesterov=False,
            maximize=False,
            is_first_step=False,
        )
        return
    mean, square, step = state
    step += 1
    update = update_adam if optimizer is Optimiser.ADAM else update_adamw
    update(
        [parameter],
        [gradient],
        [mean],
        [square],
        [],
        [step],
        lr=LEARNING_RATE,
        beta1=BETAS[0],
        beta2=BETAS[1],
        weight_decay=WEIGHT_DECAY if optimizer is Optimiser.ADAMW else 0.0,
        eps=EPSILON,
        amsgrad=False,
        maximize=False,
    )
