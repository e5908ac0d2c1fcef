"""Memory that a kernel takes besides its inputs and outputs, as seen on an H200.

Known by a trace of the allocator: convolutions of tensor cores copy images and weights into another
layout, those in fp32 transform them (Winograd's way, or Fourier's); sums over rows keep the partial
sums of many blocks; backward attention adds up the gradient of the queries in fp32, and attention
that no fused kernel takes stores all scores. Others take little.
"""

import math
from collections.abc import Callable
from typing import Any

import torch

import meshwright.capture.attention  # noqa: F401 - defines the ops
from meshwright.capture.attention_kernel import stores_scores
from meshwright.capture.channels import lies_last
from meshwright.capture.product import Product
from meshwright.capture.stepped import step_op
from meshwright.cost.product import TRANSFORMED_PRODUCTS

aten = torch.ops.aten
_SUM_BYTES = 4
"""Partial sums are fp32."""
_SUM_COLUMNS = 128
"""Columns that a block sums, ..."""
_SUM_ROWS = 64
"""... of at least so many rows, ..."""
_SUM_BLOCKS = 16 * 132
"""... and so many blocks fill the device."""
_HALF_BYTES = 2
_SUM_LOADED = 4
"""Columns that a thread sums at once, where there are a multiple of them."""
_SORTED_TOKENS = 3072
"""Fewer tokens than this are added up without sorting (ATen/native/cuda/Embedding.cu)."""
_WINOGRAD_TILE, _WINOGRAD_POINTS = 4, 36
_FOURIER_SIDE, _FOURIER_TILE = 28, 32
_SPECTRUM_SIDES = (16, 32, 64)
_SPECTRUM_PAIRS = 32768
"""Of channels, from which their spectra may be made."""
_TRANSFORMED_CHANNELS = 64
"""With fewer channels nothing is transformed."""
_KEPT_BYTES = 4
"""Of a score that is stored, in fp32, ..."""
_STORED_BYTES = 9
"""... of all there is of one at once, before and after softmax and whether it is seen, ..."""
_STORED_BACKWARD_BYTES = 12
"""... and of its gradients. (72 sizes on an H200, torch 2.11.)"""


def find_workspace(
    target: Any, args: tuple[Any, ...], product: Product, *, is_tf32: bool = True
) -> float:
    """Bytes that a call holds while it runs; `is_tf32`: fp32 numbers are multiplied in TF32."""
    packet = getattr(target, "_overloadpacket", None)
    formula = _FORMULAS.get(packet)
    if packet in _IN_FP32 and not is_tf32 and args[0].element_size() > _HALF_BYTES:
        formula = _IN_FP32[packet]
    return float(formula(args, product)) if formula else 0.0


def _convolution(args: tuple[Any, ...], product: Product) -> float:
    values, weight = args[:2]
    made = product.rows * product.columns * product.count * values.element_size()
    return _relaid(values, weight, made, product)


def _convolution_backward(args: tuple[Any, ...], product: Product) -> float:
    gradient, values, weight = args[:3]
    return _relaid(values, weight, float(gradient.numel() * gradient.element_size()), product)


def _spectra(args: tuple[Any, ...], product: Product) -> float:
    """In fp32: large products of windows of three at stride one go by the spectra of images, padded
    to a power of two; those of the weights are there twice."""
    values, weight, _, stride = args[:4]
    if not _is_transformed(values, weight, stride, product):
        return 0.0
    batch, channels, *sides = values.shape
    pairs, side = channels * weight.shape[0], max(sides)
    if pairs < _SPECTRUM_PAIRS or side > _SPECTRUM_SIDES[-1] - 2:
        return 0.0
    if side > _SPECTRUM_SIDES[0] and product.rows * pairs < TRANSFORMED_PRODUCTS:
        return 0.0
    padded = next(each for each in _SPECTRUM_SIDES if side <= each - 2)
    return float(_spectrum_bytes(padded) * (2 * pairs + batch * (channels + weight.shape[0])))


def _transformed(args: tuple[Any, ...], product: Product) -> float:
    """In fp32: gradients of windows of three at stride one are made of transformed tensors.

    That of the weight goes by tiles of 4 x 4 pixels, transformed to 6 x 6 numbers; that of the
    input, where images are not small, by spectra of tiles of 32 x 32 pixels, of at most two tiles
    of an image at a time.
    """
    gradient, values, weight, _, stride = args[:5]
    if not _is_transformed(values, weight, stride, product):
        return 0.0
    batch, channels, *sides = values.shape
    width, side = gradient.shape[1], max(sides)
    if args[10][1]:
        tiles = math.prod(math.ceil(each / _WINOGRAD_TILE) for each in sides)
        transformed = batch * (channels + width) * tiles + channels * width
        return float(_WINOGRAD_POINTS * transformed * values.element_size())
    if side < _FOURIER_SIDE:
        return 0.0
    tiles = 2 if side > _FOURIER_TILE - 2 else 1
    spectra = channels * width + tiles * batch * (channels + width)
    return float(_spectrum_bytes(_FOURIER_TILE) * spectra)


def _is_transformed(values: Any, weight: Any, stride: Any, product: Product) -> bool:
    is_window = list(weight.shape[2:]) == [3, 3] and max(stride) == 1
    fewest = min(values.shape[1], weight.shape[0])
    return is_window and product.count == 1 and fewest >= _TRANSFORMED_CHANNELS


def _spectrum_bytes(side: int) -> float:
    """Of a real image: half of its frequencies, as complex numbers."""
    return float(side * (side // 2 + 1) * 8)


def _relaid(values: Any, weight: Any, made: float, product: Product) -> float:
    """Copies with channels side by side, unless a window of one takes images as they lie."""
    if product.depth * product.count == values.shape[1] and product.alignment >= 16:
        return 0.0
    is_alone = product.columns == 1 and product.count > 1
    if is_alone or lies_last(values):
        return 0.0
    return float((values.numel() + weight.numel()) * values.element_size()) + made


def _sum(_: tuple[Any, ...], product: Product) -> float:
    """Partial sums of every block of rows, where there are several."""
    if product.columns <= 1 or product.depth <= _SUM_ROWS:
        return 0.0
    most = math.ceil(_SUM_BLOCKS / math.ceil(product.columns / _SUM_COLUMNS))
    blocks = min(math.ceil(product.depth / _SUM_ROWS), most)
    is_even = product.columns % _SUM_LOADED == 0
    threads = _SUM_COLUMNS if is_even else _SUM_COLUMNS // _SUM_LOADED
    return _SUM_BYTES * threads * product.columns * blocks


def _copied(values: Any) -> float:
    """What does not lie in order is copied first."""
    return 0.0 if values.is_contiguous() else float(values.nbytes)


def _embedding_backward(args: tuple[Any, ...], _: Product) -> float:
    """Gradients of tokens are sorted by their words, and added up in parts, in fp32."""
    gradient, tokens = args[:2]
    return float(4 * gradient.numel()) if tokens.numel() > _SORTED_TOKENS else 0.0


def _attention(args: tuple[Any, ...], product: Product) -> float:
    """Where scores are stored: what is there at once, but for what backward reads."""
    query, key = args[:2]
    if not stores_scores(query, key):
        return 0.0
    return _STORED_BYTES * _scores(product) - _kept_scores(args[4], product)


def _attention_backward(args: tuple[Any, ...], product: Product) -> float:
    """Gradients of queries are added up in fp32; those of grouped keys and values are made for each
    head of the queries first."""
    query, key = args[1:3]
    if stores_scores(query, key):
        return _STORED_BACKWARD_BYTES * _scores(product)
    is_grouped = query.dim() > 3 and key.shape[-3] != query.shape[-3]
    return float(query.numel() * (4 + 2 * query.element_size() * is_grouped))


def _scores(product: Product) -> float:
    return product.rows * product.columns * product.count


def _kept_scores(dropout: float, product: Product) -> float:
    """Weights and, after dropout, those that are left and which these are."""
    return (_KEPT_BYTES + (_KEPT_BYTES + 1 if dropout else 0)) * _scores(product)


def find_kept(target: Any, args: tuple[Any, ...], product: Product) -> float:
    """Bytes that a call keeps for its backward besides its inputs and outputs."""
    is_attention = getattr(target, "_overloadpacket", None) is torch.ops.meshwright.attention
    if not is_attention or not stores_scores(*args[:2]):
        return 0.0
    query, key = args[:2]
    repeated = 2.0 * (query.numel() - key.numel()) * query.element_size()
    return float(_kept_scores(args[4], product) + repeated)


def _step(args: tuple[Any, ...], _: Product) -> float:
    """The gradient in fp32, where a parameter of 16 bits is updated by way of a copy in fp32."""
    (parameter, *_), gradients, *states = args
    kept = [each for some in states for each in some if each.dim()]
    is_wide = any(each.element_size() > parameter.element_size() for each in kept)
    return float(4 * gradients[0].numel()) if is_wide else 0.0


_IN_FP32: dict[Any, Callable[[tuple[Any, ...], Product], float]] = {
    aten.convolution: _spectra,
    aten.convolution_backward: _transformed,
}
_FORMULAS: dict[Any, Callable[[tuple[Any, ...], Product], float]] = {
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution_backward,
    aten.sum: _sum,
    # The product of the result and its gradient.
    aten._softmax_backward_data: lambda args, _: float(args[0].nbytes),
    # One dimension is rolled after the other.
    aten.roll: lambda args, _: float(args[0].nbytes) if len(args[1]) > 1 else 0.0,
    aten.native_layer_norm: lambda args, _: _copied(args[0]),
    aten.native_layer_norm_backward: lambda args, _: _copied(args[0]) + _copied(args[1]),
    aten.embedding_dense_backward: _embedding_backward,
    torch.ops.meshwright.attention: _attention,
    torch.ops.meshwright.attention_backward: _attention_backward,
    step_op.overloadpacket: _step,
}
