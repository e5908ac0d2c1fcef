"""Optimisers that take their own steps, on the tensors that a rank holds.

SGD, Adam and AdamW have fused kernels (`meshwright.capture.optimiser`). Any other of torch.optim,
or of a user's own, is asked to step as it is, if it updates every number by its own gradient and
state alone: then a shard is updated as the whole would be. That is found out by trying.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from meshwright.capture.master import MasterWeights
from meshwright.errors import InputError, quoted

_PLAIN = {
    each.__name__.lower(): each
    for each in (
        torch.optim.Adadelta, torch.optim.Adagrad, torch.optim.Adamax, torch.optim.ASGD,
        torch.optim.NAdam, torch.optim.RAdam, torch.optim.RMSprop, torch.optim.Rprop,
    )
}  # fmt: skip
MOMENTUM = 0.9
CLASSES: dict[str, Callable[..., Optimizer]] = {
    **_PLAIN,
    "mixed-sgd": partial(MasterWeights, kind=torch.optim.SGD),
    "mixed-momentum": partial(MasterWeights, kind=torch.optim.SGD, momentum=MOMENTUM),
    "mixed-adam": partial(MasterWeights, kind=torch.optim.Adam),
    "mixed-adamw": partial(MasterWeights, kind=torch.optim.AdamW),
    **{f"mixed-{name}": partial(MasterWeights, kind=each) for name, each in _PLAIN.items()},
}
"""Those of torch.optim that go by a name, and all of them on fp32 copies of parameters."""

_LISTS = ["first", "second", "third", "fourth", "fifth", "sixth"]
"""The lists of the optimiser's tensors in a call."""


@dataclass(frozen=True, slots=True)
class Stepped:
    """What is to be known of an optimiser that takes its own steps."""

    name: str
    states: tuple[str, ...]
    """The tensors that it keeps for each parameter, ..."""
    scalars: frozenset[str]
    """... those of them that are one number, whatever the parameter, ..."""
    wide: frozenset[str]
    """... and those that are in fp32 where the parameter has 16 bits."""


torch.library.define(
    "meshwright::_fused_step_",
    f"(Tensor(a!)[] self, Tensor[] grads, "
    f"{', '.join(f'Tensor({name}!)[] {name}' for name in _LISTS)}, *, "
    f"str kind, float lr) -> ()",
)
step_op = torch.ops.meshwright._fused_step_.default
"""The update of parameters in traced steps."""


@torch.library.register_fake("meshwright::_fused_step_")  # type: ignore[untyped-decorator]
def _(*_args: Any, **_kwargs: Any) -> None:
    """It writes to what it is given, and makes nothing."""


@torch.library.impl("meshwright::_fused_step_", "CompositeExplicitAutograd")
def _step_alone(
    self: list[Tensor], grads: list[Tensor], *lists: list[Tensor], kind: str, lr: float
) -> None:
    """As a call is timed: by a new optimiser, as if the state had been there before."""
    if kind not in CLASSES:
        raise InputError(
            f"optimizer: {kind} cannot be timed alone; its class must be torch.optim's"
        )
    optimizer = CLASSES[kind](self, lr=lr)
    take_step(optimizer, find_named(kind), self, grads, *lists, group=0, is_first=False)


@cache
def find_named(name: str) -> Stepped:
    """What one of `CLASSES` keeps with its own settings."""
    return find_stepped(CLASSES[name]([torch.zeros(1)]))


def trace_step_of(
    stepped: Stepped, parameter: Tensor, gradient: Tensor, state: Sequence[Tensor], rate: float
) -> None:
    """Update a parameter of a step that is traced."""
    lists = [[each] for each in state] + [[] for _ in range(len(_LISTS) - len(state))]
    step_op([parameter], [gradient], *lists, kind=stepped.name, lr=rate)


def take_step(
    optimizer: Optimizer,
    stepped: Stepped,
    parameters: Sequence[Tensor],
    gradients: Sequence[Tensor],
    *states: Sequence[Tensor],
    group: int,
    is_first: bool,
    rate: Tensor | None = None,
) -> None:
    """Update tensors of one of the optimiser's groups, and what it keeps for them; in the first
    step it says itself what it starts from, for one after another: it makes all of that anew.

    `rate`: the learning rate in the device's memory, from where fused kernels read it.
    """
    if is_first and len(parameters) > 1:
        for each in zip(parameters, gradients, *filter(None, states), strict=True):
            single = ([one] for one in each)
            take_step(optimizer, stepped, *single, group=group, is_first=True)
        return
    settings = optimizer.param_groups[group]
    if isinstance(optimizer, MasterWeights) and optimizer.is_fused and not is_first:
        kept = dict(zip(stepped.states, states, strict=False))
        optimizer.update(settings, parameters, gradients, kept, rate)
        return
    made = _remake(optimizer, settings, parameters)
    for number, parameter in enumerate(parameters):
        parameter.grad = gradients[number]
        if not is_first:
            pairs = zip(stepped.states, states, strict=False)
            made.state[parameter] = {name: several[number] for name, several in pairs}
    made.step()
    for number, parameter in enumerate(parameters):
        parameter.grad = None
        for name, several in zip(stepped.states, states, strict=False):
            if made.state[parameter][name] is not several[number]:
                several[number].copy_(made.state[parameter][name])


def find_stepped(optimizer: Optimizer) -> Stepped:
    """What an optimiser keeps; refused unless it updates every number by itself."""
    name = _name(optimizer)
    try:
        found = {_try(optimizer, group) for group in optimizer.param_groups}
    except InputError:
        raise
    except Exception as error:  # an optimiser may fail by any of its own
        reason = str(error).strip().partition("\n")[0]
        raise InputError(
            f"optimizer: {name} must step by gradients alone, as torch.optim's do that need no "
            f"closure; its step on an example failed: {reason}"
        ) from None
    if len(found) > 1:
        raise InputError(f"optimizer: all groups of {name} must keep the same tensors")
    return found.pop()


_STEPS = 3
_SHAPE = (4, 3)


def _try(optimizer: Optimizer, group: Mapping[str, Any]) -> Stepped:
    """Take some steps on a matrix as a whole, and on its halves as rows of numbers."""
    name = _name(optimizer)
    count = _SHAPE[0] * _SHAPE[1]
    start = torch.linspace(-1.0, 1.0, count).view(_SHAPE)
    gradients = [torch.linspace(k - 1.5, 0.5 - k, count).view(_SHAPE) for k in range(_STEPS)]
    whole, state = _take_steps(optimizer, group, start, gradients)
    halves = []
    for half in range(2):
        first, *others = (each.view(2, -1)[half] for each in (start, *gradients))
        halves.append(_take_steps(optimizer, group, first, others)[0])
    if not torch.allclose(whole.flatten(), torch.cat(halves), rtol=1e-5, atol=1e-7):
        raise InputError(
            f"optimizer: {name} must update every number by its own gradient and state alone; a "
            f"half of a matrix is updated otherwise than the whole"
        )
    kept = {key: each for key, each in state.items() if isinstance(each, Tensor)}
    for key, each in kept.items():
        if each.shape not in ((), _SHAPE):
            raise InputError(
                f"optimizer: {name} must keep tensors of a parameter's shape, or numbers, keeps "
                f"{quoted(key)} of shape {list(each.shape)} for one of {list(_SHAPE)}"
            )
    if len(kept) > len(_LISTS):
        raise InputError(
            f"optimizer: {name} must keep at most {len(_LISTS):,} tensors, keeps {len(kept)}"
        )
    scalars = frozenset(key for key, each in kept.items() if not each.dim())
    return Stepped(name.lower(), tuple(kept), scalars, _find_wide(optimizer, group, start))


def _name(optimizer: Optimizer) -> str:
    """What it is called in messages and, in lower case, among `CLASSES`."""
    if isinstance(optimizer, MasterWeights):
        return f"mixed-{optimizer.defaults['kind'].__name__}"
    return type(optimizer).__name__


def _find_wide(optimizer: Optimizer, group: Mapping[str, Any], start: Tensor) -> frozenset[str]:
    """The tensors that it keeps in fp32 for a parameter of 16 bits."""
    try:
        _, state = _take_steps(optimizer, group, start.bfloat16(), [start.bfloat16()])
    except Exception:  # by any error of its own: it knows no such parameters, then
        return frozenset()
    tensors = {key: each for key, each in state.items() if isinstance(each, Tensor) and each.dim()}
    return frozenset(key for key, each in tensors.items() if each.dtype is torch.float32)


def _take_steps(
    optimizer: Optimizer, group: Mapping[str, Any], start: Tensor, gradients: Sequence[Tensor]
) -> tuple[Tensor, Mapping[str, Any]]:
    parameter = start.clone()
    made = _remake(optimizer, group, [parameter])
    for each in gradients:
        parameter.grad = each.clone()
        made.step()
    return parameter, made.state[parameter]


def _remake(
    optimizer: Optimizer, group: Mapping[str, Any], parameters: Sequence[Tensor]
) -> Optimizer:
    """An optimiser of the same kind for other tensors."""
    kind = type(optimizer)
    settings = {**group, "params": list(parameters)}
    if "capturable" in settings and parameters[0].is_cuda:
        settings["capturable"] = True  # or it waits for the device to read its counters
    known = inspect.signature(kind.__init__).parameters
    defaults = {key: each for key, each in optimizer.defaults.items() if key in known}
    return kind([settings], **defaults)
