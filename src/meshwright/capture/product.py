"""The matrix products inside an ATen op, by which cost models tell efficient calls from others.

A convolution is the product that an implicit GEMM computes; attention the product of queries and
keys, and then of its result and the values. A sum is a product with ones: so many terms (its depth)
for each of its results, which lie side by side (columns) or apart (rows).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

import meshwright.capture.attention  # noqa: F401 - defines the ops

aten = torch.ops.aten
_WIDEST = 16
"""Bytes that a thread loads at once; libraries ask for rows that start at multiples of them."""


@dataclass(frozen=True, slots=True)
class Product:
    """`count` products of (rows x depth) and (depth x columns) matrices."""

    rows: float
    columns: float
    depth: float
    count: float
    alignment: float
    """Bytes that every row in memory starts at a multiple of, at most 16."""


NONE = Product(0.0, 0.0, 0.0, 0.0, 0.0)


def find_product(target: Any, args: tuple[Any, ...], made: Any) -> Product:
    """The product that a call computes; `NONE` for other ops."""
    formula = _FORMULAS.get(getattr(target, "_overloadpacket", None))
    return formula(args, made) if formula else NONE


def _matrices(left: Any, right: Any, made: Any) -> Product:
    """Of `torch.mm`, `bmm` and grouped products, which cut one dimension into groups."""
    rows, depth, columns = left.shape[-2], left.shape[-1], right.shape[-1]
    count = max(math.prod(each.shape[:-2]) for each in (left, right, made))
    if left.dim() == 2:
        if right.dim() == 2:
            depth /= count
        else:
            rows /= count
    elif right.dim() == 2:
        columns /= count
    return _of(rows, columns, depth, count, left, right, made)


def _convolution(args: tuple[Any, ...], made: Any) -> Product:
    values, weight, _, stride, _, _, is_transposed, _, groups = args[:9]
    return _convolved(values, weight, made, stride, is_transposed, groups)


def _convolution_backward(args: tuple[Any, ...], _: Any) -> Product:
    gradient, values, weight, _, stride, _, _, is_transposed, _, groups = args[:10]
    return _convolved(values, weight, gradient, stride, is_transposed, groups)


def _convolved(
    values: Any, weight: Any, made: Any, stride: list[int], is_transposed: bool, groups: int
) -> Product:
    """Every point of the output (of the input, when transposed) is a row."""
    points = values if is_transposed else made
    rows = points.shape[0] * math.prod(points.shape[2:])
    size = values.element_size()
    channels = math.gcd(values.shape[1], made.shape[1]) // groups
    alignment = math.gcd(_WIDEST, channels * size)  # tensor cores want channels side by side, ...
    if math.prod(weight.shape[2:]) == 1 and max(stride) == 1:
        # ... unless a window of one lets them take images as they lie.
        plane = math.prod(values.shape[2:]) * size
        alignment = alignment if plane % _WIDEST == 0 else min(alignment, _WIDEST // 2)
    return Product(
        float(rows), weight.shape[0] / groups, float(math.prod(weight.shape[1:])), float(groups),
        float(alignment),
    )  # fmt: skip


def _summed(args: tuple[Any, ...], _: Any) -> Product:
    """Sums over some dimensions: of those left, what follows the last summed one is columns."""
    shape = args[0].shape
    chosen = args[1] if len(args) > 1 and args[1] else range(len(shape))
    summed = {dim % max(len(shape), 1) for dim in chosen}
    depth = math.prod(shape[dim] for dim in summed)
    inner = math.prod(shape[max(summed, default=-1) + 1 :])
    outer = math.prod(shape) / max(depth * inner, 1)
    if inner <= 1:  # side by side in memory, terms are read by all threads together
        return Product(float(outer), 1.0, 1.0, 1.0, 0.0)
    return Product(float(outer), float(inner), float(depth), 1.0, 0.0)


def _normalised(values: Any) -> Product:
    """Batch normalisation sums over all but the channels."""
    channels = values.shape[1]
    return Product(float(channels), 1.0, values.numel() / max(channels, 1), 1.0, 0.0)


def _normalised_rows(values: Any, width: Any) -> Product:
    """Layer normalisation takes a block for each row, however short: its rows stand for terms."""
    return Product(1.0, 1.0, values.numel() / max(math.prod(width), 1), 1.0, 0.0)


def _scattered(args: tuple[Any, ...], made: Any) -> Product:
    """Interpolation backward adds every gradient to few results, atomically: the more gradients
    share a result, the longer each waits."""
    gradients = args[0].numel()
    return Product(float(made.numel()), 1.0, gradients * (gradients / made.numel()), 1.0, 0.0)


def _attended(query: Any, key: Any, value: Any) -> Product:
    count = math.prod(query.shape[:-2])
    width = (query.shape[-1] + value.shape[-1]) / 2
    return _of(query.shape[-2], key.shape[-2], width, count, query, key, value)


def _of(rows: float, columns: float, depth: float, count: float, *matrices: Any) -> Product:
    alignment = _WIDEST
    for matrix in matrices:
        # One dimension of the two is dense; rows of memory start where the other one steps to.
        if min(matrix.shape[-2:]) > 1:
            step = max(matrix.stride()[-2:])
            alignment = math.gcd(alignment, int(step) * matrix.element_size())
    return Product(float(rows), float(columns), float(depth), float(count), float(alignment))


_FORMULAS: dict[Any, Callable[[tuple[Any, ...], Any], Product]] = {
    aten.mm: lambda args, made: _matrices(args[0], args[1], made),
    aten.bmm: lambda args, made: _matrices(args[0], args[1], made),
    aten.addmm: lambda args, made: _matrices(args[1], args[2], made),
    aten.baddbmm: lambda args, made: _matrices(args[1], args[2], made),
    aten._grouped_mm: lambda args, made: _matrices(args[0], args[1], made),
    aten._scaled_mm: lambda args, made: _matrices(args[0], args[1], made),
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution_backward,
    aten.upsample_bilinear2d_backward: _scattered,
    aten.upsample_bicubic2d_backward: _scattered,
    aten.sum: _summed,
    aten.mean: _summed,
    aten.native_layer_norm: lambda args, _: _normalised_rows(args[0], args[1]),
    aten.native_layer_norm_backward: lambda args, _: _normalised_rows(args[1], args[2]),
    aten.native_batch_norm: lambda args, _: _normalised(args[0]),
    aten.native_batch_norm_backward: lambda args, _: _normalised(args[1]),
    torch.ops.meshwright.attention: lambda args, _: _attended(*args[:3]),
    torch.ops.meshwright.attention_backward: lambda args, _: _attended(*args[1:4]),
}
