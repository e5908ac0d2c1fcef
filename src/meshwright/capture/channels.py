"""Which convolutions had better keep the channels of a pixel together (channels-last) on a GPU.

cuDNN's kernels for tensor cores read images so and reorder others at every call: ResNet-50 in fp32
with 64 images takes 23.3 ms a step on an H200, 4 of them for that. If weights lie channels-last,
all that convolutions make does. The rules are those of torch's own compiler (`decide_layout_opt` of
TorchInductor), which its authors found by timing convolutions of torchbench and of timm.
"""

import torch
from torch import nn

_OPS_EACH = 300
"""With fewer convolutions than one in so many ops, others decide."""
_SMALL = 64
"""Channels; with no more of them anywhere there is nothing to gain."""


def find_channels_last(model: nn.Module, num_ops: int) -> frozenset[str]:
    """The names of the weights that are to lie channels-last in a step of so many ops."""
    found = {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, nn.Conv2d | nn.ConvTranspose2d)
    }
    layers = found.values()
    if num_ops >= _OPS_EACH * len(found):
        return frozenset()
    if any(each.groups > 1 or _narrows(each) for each in layers):
        return frozenset()
    if all(max(each.in_channels, each.out_channels) <= _SMALL for each in layers):
        return frozenset()
    return frozenset(f"{name}.weight".removeprefix(".") for name in found)


def channels_last_strides(weight: torch.Tensor) -> tuple[int, ...]:
    """The strides of such a weight."""
    shape = torch.empty(weight.shape, device="meta")
    return shape.to(memory_format=torch.channels_last).stride()


def _narrows(layer: nn.Conv2d | nn.ConvTranspose2d) -> bool:
    """Whether it makes half as many channels or fewer of those around a pixel."""
    return 2 * layer.out_channels <= layer.in_channels and layer.kernel_size[0] > 1


def lies_last(images: torch.Tensor) -> bool:
    """Whether the channels of every pixel lie side by side."""
    return bool(images.dim() > 3 and images.stride(1) == 1 and not images.is_contiguous())
