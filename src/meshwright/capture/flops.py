"""Floating-point operations of one ATen op, from the shapes of what it reads and makes.

torch's own registry where it knows the op; formulas here for what it does not: our attention,
grouped matrix products, Fourier transforms, and the backward of convolutions in groups.
Element-wise ops count none: their time is their bytes.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

import meshwright.capture.attention  # noqa: F401 - defines the ops
from meshwright.capture.product import find_product

aten = torch.ops.aten


def count_flops(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any], made: Any) -> float:
    """FLOPs of a call; zero for ops that have no formula."""
    packet = getattr(target, "_overloadpacket", None)
    if packet in _FORMULAS:
        return float(_FORMULAS[packet](*args, made=made))
    if packet in flop_registry:
        return float(flop_registry[packet](*args, **kwargs, out_val=made))
    return 0.0


def _attention(query: Any, key: Any, value: Any, *_: object, made: object) -> float:  # noqa: ARG001
    """Scores (queries x keys x width) and their product with the values, every pair counted."""
    pairs = query.shape[:-1].numel() * key.shape[-2]
    return float(2 * pairs * (query.shape[-1] + value.shape[-1]))


def _attention_backward(_: object, query: Any, *rest: Any, made: object) -> float:
    """The scores once more, and two products for each of the two of forward."""
    scores = 2 * query.numel() * rest[0].shape[-2]
    return float(scores + 2 * _attention(query, *rest, made=made))


def _convolution_backward(*args: Any, made: Any) -> float:
    """A product for each gradient of input and weight.

    For the weight's, torch (2.13) counts all pairs of channels, also those of different groups.
    """
    one = find_product(aten.convolution_backward.default, args, made)
    return 2 * one.rows * one.columns * one.depth * one.count * float(sum(args[10][:2]))


def _grouped_product(left: Any, right: Any, *_: object, made: Any) -> int:
    """Two matrices are cut along what is summed over; all else is one product an element."""
    if left.dim() == 2 and right.dim() == 2:
        return 2 * int(left.numel()) * int(right.shape[-1])
    return 2 * int(left.shape[-1]) * int(made.numel())


def _fourier(values: Any, dims: Any, *_: object, made: Any) -> float:
    """5 n log2 n real operations a transform of n points (Cooley and Tukey), half for real ones."""
    points = math.prod(values.shape[dim] for dim in dims)
    batch = values.numel() / points if points else 0.0
    is_real = not (values.is_complex() and made.is_complex())
    return float((0.5 if is_real else 1.0) * 5 * batch * points * math.log2(max(points, 2)))


_FORMULAS: dict[Any, Callable[..., float]] = {
    torch.ops.meshwright.attention: _attention,
    torch.ops.meshwright.attention_backward: _attention_backward,
    aten.convolution_backward: _convolution_backward,
    aten._grouped_mm: _grouped_product,
    aten._fft_r2c: _fourier,
    aten._fft_c2c: _fourier,
    aten._fft_c2r: _fourier,
}
