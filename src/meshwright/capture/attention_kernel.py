"""The fused kernels for attention of each kind of device: the one that PyTorch would choose there.

All give the output and the logarithm of the sum of exponentials of each row of scores, from which
backward makes the weights anew. What they differ in (the shape of those sums, masks that they take
as added to the scores, with rows of aligned length) is evened out here.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

aten = torch.ops.aten

_MASK_ALIGNMENT = 16
"""Elements that a row of a mask must start at a multiple of, for memory-efficient attention ..."""
_SUM_ALIGNMENT = 32
"""... and rows that its sums must have a multiple of."""
_HEAD_ALIGNMENT = 8
"""Elements that a head must have a multiple of, for all kernels of a GPU."""

Inputs = tuple[Tensor, Tensor, Tensor]
"""Query, key and value; there may be fewer heads of the last two."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """Attention and its gradient on one kind of device."""

    forward: Callable[[Inputs, Tensor | None, bool, float | None], tuple[Tensor, Tensor]]
    """From inputs, mask, whether it is causal and scale to output and sums."""
    backward: Callable[[Tensor, Inputs, Tensor, Tensor, Tensor | None, bool, float | None], Inputs]
    """From gradient, inputs, output, sums and the same rest to the gradients of the inputs."""


def find_kernel(inputs: Inputs, mask: Tensor | None, is_causal: bool) -> Kernel | None:
    """The kernel that PyTorch would run; None: the formula, or one for repeated heads."""
    query, key, _ = inputs
    if query.dim() != 4:
        return None
    is_grouped = key.shape[-3] != query.shape[-3]
    if query.device.type == "cpu":
        return None if is_grouped else _CPU
    if query.device.type != "cuda" or (mask is not None and is_causal):
        return None
    if any(each.shape[-1] % _HEAD_ALIGNMENT for each in inputs):
        return None
    choice = torch._fused_sdp_choice(*inputs, mask, 0.0, is_causal, enable_gqa=is_grouped)
    return _ON_GPUS.get(torch.nn.attention.SDPBackend(choice))


def _cpu_forward(
    inputs: Inputs, mask: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    mask = _added(mask, inputs[0])
    made, sums = aten._scaled_dot_product_flash_attention_for_cpu(
        *inputs, 0.0, is_causal, attn_mask=mask, scale=scale
    )
    return made, sums


def _cpu_backward(
    gradient: Tensor,
    inputs: Inputs,
    made: Tensor,
    sums: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Inputs:
    mask = _added(mask, inputs[0])
    found: Inputs = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, *inputs, made, sums, 0.0, is_causal, attn_mask=mask, scale=scale
    )
    return found


def _flash_forward(
    inputs: Inputs, _: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    found = aten._scaled_dot_product_flash_attention(*inputs, 0.0, is_causal, scale=scale)
    return found[0], found[1]


def _flash_backward(
    gradient: Tensor,
    inputs: Inputs,
    made: Tensor,
    sums: Tensor,
    _: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Inputs:
    query, key, _value = inputs
    found: Inputs = aten._scaled_dot_product_flash_attention_backward(
        gradient, *inputs, made, sums, None, None, query.shape[-2], key.shape[-2], 0.0, is_causal,
        *_no_draws(query), scale=scale,
    )  # fmt: skip
    return found


def _cudnn_forward(
    inputs: Inputs, mask: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    bias = _aligned(mask, inputs)
    found = aten._scaled_dot_product_cudnn_attention(
        *inputs, bias, True, 0.0, is_causal, scale=scale
    )
    return found[0], found[1].reshape(inputs[0].shape[:-1])


def _cudnn_backward(
    gradient: Tensor,
    inputs: Inputs,
    made: Tensor,
    sums: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Inputs:
    query, key, _ = inputs
    found: Inputs = aten._scaled_dot_product_cudnn_attention_backward(
        gradient, *inputs, made, sums.unsqueeze(-1), *_no_draws(query), _aligned(mask, inputs),
        None, None, query.shape[-2], key.shape[-2], 0.0, is_causal, scale=scale,
    )  # fmt: skip
    return found


def _efficient_forward(
    inputs: Inputs, mask: Tensor | None, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    found = aten._scaled_dot_product_efficient_attention(
        *inputs, _aligned(mask, inputs), True, 0.0, is_causal, scale=scale
    )
    return found[0], found[1][..., : inputs[0].shape[-2]]


def _efficient_backward(
    gradient: Tensor,
    inputs: Inputs,
    made: Tensor,
    sums: Tensor,
    mask: Tensor | None,
    is_causal: bool,
    scale: float | None,
) -> Inputs:
    padded = F.pad(sums, (0, -sums.shape[-1] % _SUM_ALIGNMENT), value=float("inf"))
    found = aten._scaled_dot_product_efficient_attention_backward(
        gradient, *inputs, _aligned(mask, inputs), made, padded, *_no_draws(inputs[0]), 0.0,
        [True, True, True, False], is_causal, scale=scale,
    )  # fmt: skip
    return found[0], found[1], found[2]


def _no_draws(like: Tensor) -> tuple[Tensor, Tensor]:
    """Seed and offset of random numbers, of which there are none."""
    seed = like.new_zeros((), dtype=torch.int64)
    return seed, seed


def _added(mask: Tensor | None, query: Tensor) -> Tensor | None:
    """A mask that is added to the scores, made of one that chooses."""
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))


def _aligned(mask: Tensor | None, inputs: Inputs) -> Tensor | None:
    """The same for all samples and heads, with rows that start where kernels can load them."""
    query, key, _ = inputs
    bias = _added(mask, query)
    if bias is None:
        return None
    bias = bias.to(query.dtype)
    width = bias.shape[-1]
    if width % _MASK_ALIGNMENT:
        bias = F.pad(bias, (0, -width % _MASK_ALIGNMENT))[..., :width]
    return bias.expand(*query.shape[:-1], key.shape[-2])


_CPU = Kernel(_cpu_forward, _cpu_backward)
_ON_GPUS = {
    torch.nn.attention.SDPBackend.FLASH_ATTENTION: Kernel(_flash_forward, _flash_backward),
    torch.nn.attention.SDPBackend.CUDNN_ATTENTION: Kernel(_cudnn_forward, _cudnn_backward),
    torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION: Kernel(
        _efficient_forward, _efficient_backward
    ),
}
