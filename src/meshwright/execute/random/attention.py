"""Attention with dropout as one op, on devices that have a kernel for it.

A kernel of ours is tried on every device before it is used: one that this version of Triton cannot
compile, or whose results are not those of the formula, is left alone.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor

from meshwright.capture.attention import (
    Kept,
    attend_dropping,
    attend_dropping_backward,
    empty_gradients,
    empty_heads,
)
from meshwright.capture.attention_kernel import Attended
from meshwright.message import say

_WIDTHS = (16, 32, 64, 128)
_TYPES = (torch.float16, torch.bfloat16)
_TOLERANCE = 0.05
"""How far results of 16 bits around one may be from those of the formula."""


def may_fuse(given: Attended) -> bool:
    """Whether there is a kernel for tensors such as these."""
    query = given.query
    is_known = (
        query.is_cuda
        and given.mask is None
        and query.dim() == 4
        and query.dtype in _TYPES
        and query.shape[-1] == given.value.shape[-1]
        and query.shape[-1] in _WIDTHS
        and all(each.stride(-1) == 1 for each in given.three)
    )
    return is_known and _works(query.device, query.dtype, query.shape[-1])


@torch.library.custom_op("meshwright::attention_dropping", mutates_args=())
def fused_attention(
    keys: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    below: int,
    kept: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor]:
    """What attention makes, and the logarithms of its sums; weights whose bits are not below a
    limit are dropped, others multiplied with `kept`."""
    from meshwright.execute.random.attention_cuda import run_forward

    made = empty_heads(query)
    return made, run_forward(
        keys, query, key, value, made, below, is_causal, _scale(query, scale), kept
    )


@fused_attention.register_fake
def _(keys: Tensor, query: Tensor, *_: object) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    return empty_heads(query), query.new_empty(query.shape[:-1], dtype=torch.float32)


@torch.library.custom_op("meshwright::attention_dropping_backward", mutates_args=())
def fused_attention_backward(
    keys: Tensor,
    gradient: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    made: Tensor,
    log_sum: Tensor,
    below: int,
    kept: float,
    is_causal: bool,
    scale: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value."""
    from meshwright.execute.random.attention_cuda import run_backward

    found = empty_gradients(gradient, query, key, value)
    gradient = gradient if gradient.stride(-1) == 1 else gradient.contiguous()
    given = query, key, value, gradient
    sums = log_sum.contiguous()
    run_backward(keys, given, made, sums, found, below, is_causal, _scale(query, scale), kept)
    return found


@fused_attention_backward.register_fake
def _(_: Tensor, /, *rest: Any) -> tuple[Tensor, Tensor, Tensor]:
    return empty_gradients(*rest)


def _scale(query: Tensor, scale: float | None) -> float:
    return float(query.shape[-1] ** -0.5 if scale is None else scale)


@cache
def _works(device: torch.device, dtype: torch.dtype, width: int) -> bool:
    """Whether the kernels make what the formula makes of a small example on this device."""
    generator = torch.Generator(device).manual_seed(0)

    def drawn(heads: int, tokens: int) -> Tensor:
        shape = 2, heads, tokens, width
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    query, key, value, gradient = drawn(4, 130), drawn(2, 130), drawn(2, 130), drawn(4, 130)
    keys = torch.arange(4, dtype=torch.int32, device=device).view(2, 2)
    try:
        from meshwright.execute.random.bits_cuda import run_bits

        mask = torch.empty((1, 2, 4 * 130 * 130), dtype=torch.bool, device=device)
        kept = Kept(run_bits(keys, mask, 0).view(2, 4, 130, 130), 2.0)
        given = Attended(query, key, value, None, is_causal=True)
        wanted, sums = attend_dropping(given, kept)
        more = attend_dropping_backward(given, gradient, wanted, sums, kept)
        settings = 0, kept.scale, True, None
        made, own = fused_attention(keys, query, key, value, *settings)
        found = fused_attention_backward(keys, gradient, query, key, value, wanted, sums, *settings)
    except Exception as error:  # a compiler may fail by any of its own
        say(f"attention with dropout is computed by its formula: {type(error).__name__}: {error}")
        return False
    pairs = zip((made, own, *found), (wanted, sums, *more), strict=True)
    is_right = all(
        torch.allclose(one.float(), other.float(), rtol=_TOLERANCE, atol=_TOLERANCE)
        for one, other in pairs
    )
    if not is_right:
        say("attention with dropout is computed by its formula: its kernels made something else")
    return is_right
