"""How strides order the numbers of a tensor in memory."""

from collections.abc import Sequence

import torch


def dense_stride(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor whose dimensions lie in memory in the order of these."""
    order = sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim))
    stride, size = [0] * len(shape), 1
    for dim in reversed(order):
        stride[dim], size = size, size * shape[dim]
    return tuple(stride)


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether a tensor of these strides has every number of its storage once."""
    steps = sorted((step, size) for size, step in zip(shape, stride, strict=True) if size != 1)
    expected = 1
    for step, size in steps:
        if step != expected and 0 not in shape:
            return False
        expected *= size
    return True


def effective_strides(tensor: torch.Tensor) -> list[int]:
    """The strides that decide where numbers lie: those of dimensions with several entries."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    return [stride for size, stride in pairs if size > 1]
