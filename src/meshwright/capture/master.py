"""An optimiser for 16-bit parameters that steps on copies of them in fp32.

Large language models are trained so. ZeRO's authors count 16 bytes a parameter (Rajbhandari et al.
2020, section 3.1), and DeepSpeed holds as many: two for the parameter, two for its gradient, and in
fp32 the copy and both moments of Adam. Megatron-LM adds gradients up in fp32 and holds 18 (its
developer guide, "Distributed Optimizer").
"""

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from meshwright.capture.torch_private import (
    add_each,
    copy_each,
    update_adam,
    update_adamw,
    update_sgd,
)

_MOST_NUMBERS = 1 << 26
"""Gradients are in fp32 for about so many numbers at a time, a quarter of a GiB, lest all of them
take memory at once."""
MASTER = "master"
"""The name of the copy among the tensors that are kept for a parameter."""


class MasterWeights(Optimizer):
    """An optimiser of torch.optim that updates fp32 copies of the parameters.

    `kind` is its class, `settings` are what that takes. For each parameter it keeps the copy, which
    starts from the parameter, as `master`, and all that `kind` keeps for such a copy. A step
    updates the copy with the gradient in fp32, and rounds it into the parameter. Where `kind` has a
    fused implementation, that is used unless `fused` or `foreach` says otherwise.
    """

    def __init__(
        self, params: Any, kind: type[Optimizer] = torch.optim.AdamW, **settings: Any
    ) -> None:
        usual: dict[str, Any] = kind([torch.zeros(1)], **settings).defaults
        if usual.get("fused", False) is None and not usual["foreach"]:
            usual = {**usual, "fused": True}
        super().__init__(params, {**usual, "kind": kind})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters that have a gradient; returns what `closure` does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            parameters = [each for each in group["params"] if each.grad is not None]
            # Those whose gradients are in fp32 at the same time.
            for some in divide_by_size(parameters, Tensor.numel, _MOST_NUMBERS):
                self._update(group, some)
        return loss

    def _update(self, group: Mapping[str, Any], parameters: Sequence[Tensor]) -> None:
        masters = []
        for each in parameters:
            state = self.state[each]
            if MASTER not in state:
                state[MASTER] = each.detach().to(torch.float32, copy=True)
            masters.append(state[MASTER])
        known = inspect.signature(group["kind"].__init__).parameters
        options = {key: value for key, value in group.items() if key in known and key != "params"}
        inner: Optimizer = group["kind"](masters, **options)
        given = [each.grad for each in parameters if each.grad is not None]
        gradients = [torch.empty_like(each, dtype=torch.float32) for each in given]
        copy_each(gradients, given)
        for each, master, gradient in zip(parameters, masters, gradients, strict=True):
            master.grad = gradient
            kept = {key: value for key, value in self.state[each].items() if key != MASTER}
            if kept:
                inner.state[master] = kept
        inner.step()
        copy_each(list(parameters), masters)
        for each, master in zip(parameters, masters, strict=True):
            master.grad = None
            self.state[each].update(inner.state[master])

    @property
    def is_fused(self) -> bool:
        """Whether fused kernels update all copies at once, and nothing is left to the host."""
        kinds = torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW
        return self.defaults["kind"] in kinds and all(
            group["fused"] and not group.get("amsgrad") for group in self.param_groups
        )

    @torch.no_grad()
    def update(
        self,
        group: Mapping[str, Any],
        parameters: Sequence[Tensor],
        gradients: Sequence[Tensor],
        kept: Mapping[str, Sequence[Tensor]],
        rate: Tensor | None = None,
    ) -> None:
        """Update parameters as `step` does, by fused kernels alone, with what it `kept` for them.

        `rate`: the learning rate in the device's memory; None: the group's.
        """
        sizes = [each.numel() for each in parameters]
        for some in divide_by_size(range(len(sizes)), sizes.__getitem__, _MOST_NUMBERS):
            states = {name: [several[k] for k in some] for name, several in kept.items()}
            given = [gradients[k] for k in some]
            wide = [torch.empty_like(each, dtype=torch.float32) for each in given]
            copy_each(wide, given)
            self._call_fused(group, wide, states, group["lr"] if rate is None else rate)
            copy_each([parameters[k] for k in some], states[MASTER])

    def _call_fused(
        self,
        group: Mapping[str, Any],
        gradients: list[Tensor],
        states: Mapping[str, list[Tensor]],
        rate: Any,
    ) -> None:
        usual = {name: group[name] for name in ("weight_decay", "maximize")}
        if self.defaults["kind"] is torch.optim.SGD:
            update_sgd(
                states[MASTER],
                gradients,
                states.get("momentum_buffer", []),
                lr=rate,
                **{name: group[name] for name in ("momentum", "dampening", "nesterov")},
                **usual,
                is_first_step=False,
            )
            return
        update = update_adamw if group["decoupled_weight_decay"] else update_adam
        add_each(states["step"], 1)
        update(
            states[MASTER],
            gradients,
            states["exp_avg"],
            states["exp_avg_sq"],
            [],
            states["step"],
            lr=rate,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            eps=group["eps"],
            **usual,
            amsgrad=False,
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take over what `state_dict` gave; torch would round all of it to the parameters' type."""
        super().load_state_dict(state_dict)
        numbers = (number for group in state_dict["param_groups"] for number in group["params"])
        parameters = (each for group in self.param_groups for each in group["params"])
        for number, each in zip(numbers, parameters, strict=True):
            for key, value in state_dict["state"].get(number, {}).items():
                if isinstance(value, torch.Tensor) and value.dim():
                    self.state[each][key] = value.detach().to(each.device, copy=True)


Item = TypeVar("Item")


def divide_by_size(
    items: Iterable[Item], size_of: Callable[[Item], int], most: int
) -> Iterator[list[Item]]:
    """Items in a row that are together no larger than `most`, unless one is by itself."""
    some: list[Item] = []
    total = 0
    for each in items:
        if some and total + size_of(each) > most:
            yield some
            some, total = [], 0
        some.append(each)
        total += size_of(each)
    if some:
        yield some
