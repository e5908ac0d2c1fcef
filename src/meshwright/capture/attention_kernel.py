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
from torch.nn.attention import SDPBackend

from meshwright.capture.torch_private import choose_attention

aten = torch.ops.aten

_MASK_ALIGNMENT = 16
"""A row of a mask must start at a multiple of so many elements, for memory-efficient attention."""
_SUM_ALIGNMENT = 32
"""The sums of memory-efficient attention must have a multiple of so many rows."""
_HEAD_ALIGNMENT = 8
"""A head must have a multiple of so many elements, for all kernels of a GPU."""
_HALF_BYTES = 2
_LOADED_BYTES = 16
"""What memory-efficient attention loads at once."""

Three = tuple[Tensor, Tensor, Tensor]
"""A tensor each for query, key and value."""


@dataclass(frozen=True, slots=True)
class Attended:
    """What attention is given; there may be fewer heads of keys and values than of queries."""

    query: Tensor
    key: Tensor
    value: Tensor
    mask: Tensor | None
    """Added to the scores, or, of booleans, those that are seen."""
    is_causal: bool = False
    scale: float | None = None

    @property
    def three(self) -> Three:
        """Query, key and value."""
        return self.query, self.key, self.value

    @property
    def factor(self) -> float:
        """What scores are multiplied with."""
        return float(self.query.shape[-1] ** -0.5) if self.scale is None else self.scale

    @property
    def is_grouped(self) -> bool:
        """Whether heads of queries share those of keys."""
        return self.query.dim() > 3 and self.key.shape[-3] != self.query.shape[-3]


@dataclass(frozen=True, slots=True)
class Fused:
    """Attention and its gradient by one kernel each."""

    forward: Callable[[Attended], tuple[Tensor, Tensor]]
    """To output and sums."""
    backward: Callable[[Attended, Tensor, Tensor, Tensor], Three]
    """From gradient, output and sums to the gradients of query, key and value."""


@dataclass(frozen=True, slots=True)
class KernelChoice:
    """How a device computes attention."""

    kernel: Fused | None
    """None: by the formula."""
    repeats: bool = False
    """Whether heads of keys and values are repeated for it."""


def find_kernel(given: Attended) -> Fused | None:
    """The kernel that PyTorch would run; None: the formula, or one for repeated heads."""
    if given.query.dim() != 4:
        return None
    kind = given.query.device.type
    if kind == "cpu":
        return None if given.is_grouped else _CPU
    if kind != "cuda" or (given.mask is not None and given.is_causal):
        return None
    if any(each.shape[-1] % _HEAD_ALIGNMENT for each in given.three):
        return None
    choice = choose_attention(
        *given.three, given.mask, 0.0, given.is_causal, enable_gqa=given.is_grouped
    )
    return _ON_GPUS.get(SDPBackend(choice))


def stores_scores(query: Tensor, key: Tensor) -> bool:
    """Whether PyTorch computes attention on CUDA by its formula, on the whole matrix of scores.

    No fused kernel takes heads in groups unless numbers have 16 bits, nor fp64, nor fp32 heads that
    do not fill 16 bytes (ATen/native/transformers/cuda/sdp_utils.cpp; seen on an H200, torch 2.11).
    """
    if query.dim() != 4:
        return True
    if query.element_size() <= _HALF_BYTES:
        return False
    is_aligned = query.shape[-1] * query.element_size() % _LOADED_BYTES == 0
    is_grouped = key.shape[-3] != query.shape[-3]
    return is_grouped or not is_aligned or query.dtype is torch.float64


def _cpu_forward(given: Attended) -> tuple[Tensor, Tensor]:
    made, sums = aten._scaled_dot_product_flash_attention_for_cpu(
        *given.three, 0.0, given.is_causal, attn_mask=_added(given), scale=given.scale
    )
    return made, sums


def _cpu_backward(given: Attended, gradient: Tensor, made: Tensor, sums: Tensor) -> Three:
    found: Three = aten._scaled_dot_product_flash_attention_for_cpu_backward(
        gradient, *given.three, made, sums, 0.0, given.is_causal,
        attn_mask=_added(given), scale=given.scale,
    )  # fmt: skip
    return found


def _flash_forward(given: Attended) -> tuple[Tensor, Tensor]:
    found = aten._scaled_dot_product_flash_attention(
        *given.three, 0.0, given.is_causal, scale=given.scale
    )
    return found[0], found[1]


def _flash_backward(given: Attended, gradient: Tensor, made: Tensor, sums: Tensor) -> Three:
    found: Three = aten._scaled_dot_product_flash_attention_backward(
        gradient, *given.three, made, sums, None, None, *_lengths(given), 0.0, given.is_causal,
        *_no_draws(given.query), scale=given.scale,
    )  # fmt: skip
    return found


def _cudnn_forward(given: Attended) -> tuple[Tensor, Tensor]:
    found = aten._scaled_dot_product_cudnn_attention(
        *given.three, _aligned(given), True, 0.0, given.is_causal, scale=given.scale
    )
    return found[0], found[1].reshape(given.query.shape[:-1])


def _cudnn_backward(given: Attended, gradient: Tensor, made: Tensor, sums: Tensor) -> Three:
    found: Three = aten._scaled_dot_product_cudnn_attention_backward(
        gradient, *given.three, made, sums.unsqueeze(-1), *_no_draws(given.query), _aligned(given),
        None, None, *_lengths(given), 0.0, given.is_causal, scale=given.scale,
    )  # fmt: skip
    return found


def _efficient_forward(given: Attended) -> tuple[Tensor, Tensor]:
    found = aten._scaled_dot_product_efficient_attention(
        *given.three, _aligned(given), True, 0.0, given.is_causal, scale=given.scale
    )
    return found[0], found[1][..., : given.query.shape[-2]]


def _efficient_backward(given: Attended, gradient: Tensor, made: Tensor, sums: Tensor) -> Three:
    padded = F.pad(sums, (0, -sums.shape[-1] % _SUM_ALIGNMENT), value=float("inf"))
    found = aten._scaled_dot_product_efficient_attention_backward(
        gradient, *given.three, _aligned(given), made, padded, *_no_draws(given.query), 0.0,
        [True, True, True, False], given.is_causal, scale=given.scale,
    )  # fmt: skip
    return found[0], found[1], found[2]


def _lengths(given: Attended) -> tuple[int, int]:
    """How many queries and how many keys there are."""
    return given.query.shape[-2], given.key.shape[-2]


def _no_draws(like: Tensor) -> tuple[Tensor, Tensor]:
    """Seed and offset of random numbers, of which there are none."""
    seed = like.new_zeros((), dtype=torch.int64)
    return seed, seed


def _added(given: Attended) -> Tensor | None:
    """A mask that is added to the scores, made of one that chooses."""
    mask = given.mask
    if mask is None or mask.dtype is not torch.bool:
        return mask
    return torch.zeros_like(mask, dtype=given.query.dtype).masked_fill_(~mask, float("-inf"))


def _aligned(given: Attended) -> Tensor | None:
    """The same for all samples and heads, with rows that start where kernels can load them."""
    bias = _added(given)
    if bias is None:
        return None
    bias, width = bias.to(given.query.dtype), bias.shape[-1]
    if width % _MASK_ALIGNMENT:
        bias = F.pad(bias, (0, -width % _MASK_ALIGNMENT))[..., :width]
    return bias.expand(*given.query.shape[:-1], given.key.shape[-2])


_CPU = Fused(_cpu_forward, _cpu_backward)
_ON_GPUS = {
    SDPBackend.FLASH_ATTENTION: Fused(_flash_forward, _flash_backward),
    SDPBackend.CUDNN_ATTENTION: Fused(_cudnn_forward, _cudnn_backward),
    SDPBackend.EFFICIENT_ATTENTION: Fused(_efficient_forward, _efficient_backward),
}
