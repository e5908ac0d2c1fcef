"""Memory that a kernel takes besides its inputs and outputs, as seen on an H200.

Known by a trace of the allocator: convolutions of tensor cores copy images and weights into another
layout; sums over rows keep the partial sums of many blocks; backward attention adds up the gradient
of the queries in fp32. Others take little.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

import meshwright.capture.attention  # noqa: F401 - defines the ops
from meshwright.capture.product import Product
from meshwright.capture.stepped import step_op

aten = torch.ops.aten
_SUM_BYTES = 4
"""Partial sums are fp32."""
_SUM_COLUMNS = 128
"""Columns that a block sums, ..."""
_SUM_ROWS = 64
"""... of at least so many rows, ..."""
_SUM_BLOCKS = 16 * 132
"""... and so many blocks fill the device."""


def find_workspace(target: Any, args: tuple[Any, ...], product: Product) -> float:
    """Bytes that a call holds while it runs."""
    formula = _FORMULAS.get(getattr(target, "_overloadpacket", None))
    return float(formula(args, product)) if formula else 0.0


def _convolution(args: tuple[Any, ...], product: Product) -> float:
    values, weight = args[:2]
    made = product.rows * product.columns * product.count * values.element_size()
    return _relaid(values, weight, made, product)


def _convolution_backward(args: tuple[Any, ...], product: Product) -> float:
    gradient, values, weight = args[:3]
    return _relaid(values, weight, float(gradient.numel() * gradient.element_size()), product)


def _relaid(values: Any, weight: Any, made: float, product: Product) -> float:
    """Copies with channels side by side, unless a window of one takes images as they lie."""
    if product.depth * product.count == values.shape[1] and product.alignment >= 16:
        return 0.0
    return float((values.numel() + weight.numel()) * values.element_size()) + made


def _sum(_: tuple[Any, ...], product: Product) -> float:
    """Partial sums of every block of rows, where there are several."""
    if product.columns <= 1 or product.depth <= _SUM_ROWS:
        return 0.0
    most = math.ceil(_SUM_BLOCKS / math.ceil(product.columns / _SUM_COLUMNS))
    blocks = min(math.ceil(product.depth / _SUM_ROWS), most)
    return _SUM_BYTES * _SUM_COLUMNS * product.columns * blocks


def _attention_backward(args: tuple[Any, ...], _: Product) -> float:
    query = args[1]
    return float(query.numel() * 4) if query.element_size() < 4 else 0.0


def _step(args: tuple[Any, ...], _: Product) -> float:
    """The gradient in fp32, where a parameter of 16 bits is updated by way of a copy in fp32."""
    (parameter, *_), gradients, *states = args
    kept = [each for some in states for each in some if each.dim()]
    is_wide = any(each.element_size() > parameter.element_size() for each in kept)
    return float(4 * gradients[0].numel()) if is_wide else 0.0


_FORMULAS: dict[Any, Callable[[tuple[Any, ...], Product], float]] = {
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution_backward,
    aten.sum: _sum,
    torch.ops.meshwright.attention_backward: _attention_backward,
    step_op.overloadpacket: _step,
}
