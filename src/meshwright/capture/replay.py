"""Runs one described call on a real device, as the kernels that an eager step runs there."""

import contextlib
import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812

from meshwright.capture.call import in_tf32, rebuild_call

Substitute = Callable[[Any, list[Any], dict[str, Any]], Callable[[], object] | None]
"""From an op and its arguments to what a run does in its place, None: the op."""

_UPDATE_BYTES = 256 << 20
_MOST_COPIES = 256


@dataclass(frozen=True, slots=True)
class Replay:
    """What runs a call."""

    run: Callable[[], object]
    copies: int = 1
    """How many of the call one run does: an optimiser updates all parameters at once."""


@contextlib.contextmanager
def replayed(
    text: str, device: torch.device, find_substitute: Substitute = lambda *_: None
) -> Iterator[Replay]:
    """Prepare a described call; torch's TF32 settings are as in the call while this holds."""
    with in_tf32("tf32" in json.loads(text)):
        yield _prepare(text, device, find_substitute)


def _prepare(text: str, device: torch.device, find_substitute: Substitute) -> Replay:
    target, args, kwargs = rebuild_call(text, device)
    substitute = find_substitute(target, args, kwargs)
    if substitute is not None:
        return Replay(substitute)
    name = target._overloadpacket.__name__
    if name in _SPECIAL:
        return Replay(_SPECIAL[name](args))
    if name.startswith("_fused_"):
        return _update(target, args, kwargs)
    return Replay(lambda: target(*args, **kwargs))


def _update(target: Any, args: list[Any], kwargs: dict[str, Any]) -> Replay:
    """Many such parameters at once, so that a small one costs what it costs among the others.

    None is negative: the kernel takes square roots, and those of negative numbers are slow.
    """
    size = sum(each.numel() * each.element_size() for group in args for each in group)
    copies = max(1, min(_MOST_COPIES, math.ceil(_UPDATE_BYTES / max(size, 1))))
    many = [[each.abs() for each in group for _ in range(copies)] for group in args]
    return Replay(lambda: target(*many, **kwargs), copies)


def _attention_backward(args: list[Any]) -> Callable[[], object]:
    gradient, query, key, value, _, _, *rest = args
    inputs = [each.detach().requires_grad_() for each in (query, key, value)]
    return _backward(_attend(*inputs, *rest), inputs, gradient)


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    dropout: float,
    is_causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """Whichever fused kernel torch prefers on the device."""
    return F.scaled_dot_product_attention(
        query, key, value, mask, dropout, is_causal, scale=scale,
        enable_gqa=query.dim() > 3 and query.shape[-3] != key.shape[-3],
    )  # fmt: skip


def _batch_norm(args: list[Any]) -> Callable[[], object]:
    """cuDNN's where torch prefers it, which the op as traced never is."""
    values, weight, bias, mean, variance, is_training, momentum, epsilon = args
    return lambda: F.batch_norm(
        values, mean, variance, weight, bias, is_training, momentum, epsilon
    )


def _batch_norm_backward(args: list[Any]) -> Callable[[], object]:
    gradient, values, weight, mean, variance, _, _, is_training, epsilon, _ = args
    inputs = [values.detach().requires_grad_()]
    bias = None
    if weight is not None:
        weight = weight.detach().requires_grad_()
        bias = torch.zeros_like(weight).requires_grad_()
        inputs += [weight, bias]
    made = F.batch_norm(inputs[0], mean, variance, weight, bias, is_training, 0.1, epsilon)
    return _backward(made, inputs, gradient)


def _backward(
    made: torch.Tensor, inputs: list[torch.Tensor], gradient: torch.Tensor
) -> Callable[[], object]:
    return lambda: torch.autograd.grad(made, inputs, gradient, retain_graph=True)


_SPECIAL: dict[str, Callable[[list[Any]], Callable[[], object]]] = {
    "attention": lambda args: lambda: _attend(*args),
    "attention_backward": _attention_backward,
    "native_batch_norm": _batch_norm,
    "native_batch_norm_backward": _batch_norm_backward,
}
