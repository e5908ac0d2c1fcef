"""Times matrix products, convolutions and attention by how kernels fill a device.

Tiles of the result go to the multiprocessors in waves, sums are split where tiles are few, and
memory and a launch bound the rest; the constants are fitted to kernels timed on one device
(`h200.py`). Times of other device types follow from their peaks. Knows neither graphs nor the
library's choice of a kernel, which at times jumps by a factor of two between near sizes.

Times never fall when rows, columns, depth or count grow, and lie above FLOPs over peak except where
a kernel computes less than the FLOPs counted: causal attention half, and in fp32 convolutions that
a transform shortens (Winograd's or Fourier's).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from meshwright.array import Bools, Floats
from meshwright.cost import curve as shapes
from meshwright.cost.h200 import H200
from meshwright.cost.multiplication import Products

SPLITS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
"""Into how many parts sums may be split."""
FULL_ALIGNMENT = 16
"""Bytes that kernels load at once."""
PLANE_ALIGNMENT = 8
"""What stands for planes that do not fill 16 bytes, which a change of layout mends."""
POINTWISE = 0.05
"""How far from one the taps of a convolution with a window and stride of one may come out."""
ITEM_BYTES = {"fp64": 8, "fp32": 4, "tf32": 4, "bf16": 2, "fp16": 2, "fp8": 1}
CURVE_OF = {"fp16": "bf16", "bf16": "bf16", "fp8": "bf16", "tf32": "tf32"}
"""Whose curve a precision follows, each with its own peak; all others fp32's."""
SUM_BYTES = 4
"""Of the logarithm of the sum of a row's scores, which attention keeps in fp32 for its backward."""
TRANSFORMED_TAPS = (7.0, 26.0)
"""Windows of three and of five at stride one: those that transforms are made for."""
TRANSFORMED_PAIRS = 131072
"""Pairs of channels from which the forward product goes by transforms, if the products of pairs for
all pixels are half of `TRANSFORMED_PRODUCTS` or more."""
TRANSFORMED_PRODUCTS = 3.2e9
"""Products of pairs for all pixels from which on the gradient of the input goes by transforms."""
CONVOLUTIONS = (
    shapes.Math.CONVOLUTION,
    shapes.Math.CONVOLUTION_BACKWARD,
    shapes.Math.INPUT_CONVOLUTION_BACKWARD,
)
CAUSAL = (shapes.Math.CAUSAL_ATTENTION, shapes.Math.CAUSAL_ATTENTION_BACKWARD)
STORED = (shapes.Math.STORED_ATTENTION, shapes.Math.STORED_ATTENTION_BACKWARD)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductWork:
    """Products on a device: what its kernels have to do."""

    rows: Floats
    columns: Floats
    depth: Floats
    count: Floats
    multiple: Floats
    """How many products of that size: two in a convolution's full backward."""
    item_bytes: Floats
    bytes_moved: Floats
    alignment: Floats
    drops: Bools
    is_last: Bools
    rate: Floats
    """Peak FLOP/s of one multiprocessor."""
    memory_rate: Floats
    """Peak bytes a second of the device."""
    multiprocessors: Floats

    def only(self, chosen: npt.NDArray[np.intp]) -> "ProductWork":
        """The work of the chosen products alone."""
        return ProductWork(
            **{field.name: getattr(self, field.name)[chosen] for field in fields(self)}
        )

    @property
    def num_gradients(self) -> Floats:
        """Of a convolution's backward: one or two."""
        return np.where(self.multiple > 1.5, 2.0, 1.0)

    def apart(self) -> "ProductWork":
        """One gradient of each convolution; that of the output is read for every one of them."""
        output = self.rows * self.columns * self.count * self.item_bytes
        moved = (self.bytes_moved - output) / self.num_gradients + output
        return replace(self, bytes_moved=moved, multiple=np.ones(len(self.rows)))

    @property
    def taps(self) -> Floats:
        """Terms of a convolution's sums that one input element enters: window over stride, squared.

        The input holds what is left of the bytes without the output and the weights.
        """
        output = self.rows * self.columns * self.count * self.item_bytes
        weight = self.columns * self.depth * self.count * self.item_bytes
        held = (self.bytes_moved - output) / self.num_gradients - weight
        unrolled = self.rows * self.depth * self.count * self.item_bytes
        return np.where(held > 0, unrolled / np.maximum(held, 1.0), 1.0)


def product_seconds(
    products: Products,
    peak_flops_per_second: Floats,
    memory_bytes_per_second: float,
    calibration: shapes.Calibration = H200,
) -> Floats:
    """Time of each op on a device of these peaks; the peak FLOP/s are those of each op."""
    work = prepare(products, peak_flops_per_second, memory_bytes_per_second, calibration)
    seconds = np.empty(len(products.rows))
    for key, chosen in group(products, work):
        seconds[chosen] = _group_seconds(work.only(chosen), key, calibration)
    return seconds


def prepare(
    products: Products,
    peak_flops_per_second: Floats,
    memory_bytes_per_second: float,
    calibration: shapes.Calibration,
) -> ProductWork:
    """The work that products are on a device."""
    ones = np.ones(len(products.rows))
    single = 2 * products.rows * products.columns * products.depth * products.count
    items = np.array([ITEM_BYTES.get(name, 4) for name in products.precisions], dtype=np.float64)
    alignment = np.where(products.alignment > 0, products.alignment, FULL_ALIGNMENT)
    same = ("rows", "columns", "depth", "count", "bytes_moved", "drops", "is_last")
    return ProductWork(
        **{name: getattr(products, name) for name in same},
        multiple=products.flops / single,
        item_bytes=items[products.precision],
        alignment=alignment,
        rate=peak_flops_per_second / calibration.multiprocessors,
        memory_rate=memory_bytes_per_second * ones,
        multiprocessors=calibration.multiprocessors * ones,
    )


@dataclass(frozen=True, slots=True)
class Key:
    """Which curve an op follows."""

    kind: shapes.Math
    precision: str
    is_direct: bool
    """Rows are aligned; of a convolution, too, that its planes are used as they lie."""


def group(products: Products, work: ProductWork) -> Iterator[tuple[Key, npt.NDArray[np.intp]]]:
    """The ops of each curve."""
    names = [CURVE_OF.get(name, "fp32") for name in products.precisions]
    kinds = products.kind
    is_direct = work.alignment >= FULL_ALIGNMENT
    windowed = np.isin(kinds, CONVOLUTIONS)
    is_direct &= ~windowed | (np.abs(work.taps - 1) < POINTWISE)
    there = set(kinds.tolist())
    of_name = {
        name: np.isin(products.precision, [i for i, each in enumerate(names) if each == name])
        for name in dict.fromkeys(names)
    }
    for kind in (each for each in shapes.Math if each in there):
        for name, same in of_name.items():
            for direct in (False, True):
                chosen = np.flatnonzero((kinds == kind) & same & (is_direct == direct))
                if len(chosen):
                    yield Key(kind, name, direct), chosen


def _group_seconds(work: ProductWork, key: Key, calibration: shapes.Calibration) -> Floats:
    if key.kind == shapes.Math.MATMUL:
        return matmul_seconds(work, calibration.matmul[key.precision, key.is_direct])
    if key.kind == shapes.Math.CONVOLUTION_BACKWARD:
        return backward_seconds(
            work, key, lambda one, each: _windowed_seconds(one, each, calibration)
        )
    if key.kind in CONVOLUTIONS:
        return _windowed_seconds(work, key, calibration)
    if key.kind in STORED:
        matmul = calibration.matmul[key.precision, key.is_direct]
        return stored_seconds(work, calibration.stored[key.kind], matmul)
    name = "fp32" if key.precision == "tf32" else key.precision
    return attention_seconds(work, calibration.attention[name, key.kind], key.kind)


def backward_seconds(
    work: ProductWork, key: Key, seconds: Callable[[ProductWork, Key], Floats]
) -> Floats:
    """The gradient of the weight and, where there are two products, then that of the input."""
    one = work.apart()
    weight = seconds(one, key)
    has_two = work.num_gradients > 1
    if not has_two.any():
        return weight
    data = seconds(one, replace(key, kind=shapes.Math.INPUT_CONVOLUTION_BACKWARD))
    return np.where(has_two, weight + data, weight)


def _windowed_seconds(work: ProductWork, key: Key, calibration: shapes.Calibration) -> Floats:
    """One product of a convolution, by matrix units or without them."""
    is_forward = key.kind == shapes.Math.CONVOLUTION
    kind = shapes.Math.CONVOLUTION if is_forward else shapes.Math.CONVOLUTION_BACKWARD
    curve = calibration.convolution[key.precision, kind, key.is_direct]
    alone = np.where(
        work.is_last,
        depthwise_seconds(work, calibration.depthwise[key.precision, key.kind, True], key.kind),
        depthwise_seconds(work, calibration.depthwise[key.precision, key.kind, False], key.kind),
    )
    shared = np.minimum(convolution_seconds(work, curve, key), alone)
    return np.where((work.columns == 1) & (work.count > 1), alone, shared)


def matmul_seconds(work: ProductWork, curve: shapes.MatmulCurve) -> Floats:
    """Products of matrices, one by one or in batches."""
    slower = np.select(
        [work.alignment >= 16, work.alignment >= 8, work.alignment >= 4],
        [1.0, *curve.misaligned[:2]],
        curve.misaligned[2],
    )
    arithmetic = _grid_seconds(work, curve.grid, work.rows, work.columns, work.depth * slower)
    return _under(work, curve.roof, arithmetic * work.multiple, work.bytes_moved)


def convolution_seconds(work: ProductWork, curve: shapes.ConvolutionCurve, key: Key) -> Floats:
    """Forward, or the gradient of the weight or of the input."""
    taps = np.maximum(work.taps, 1.0)
    thin = work.alignment < np.where(taps > 1 + POINTWISE, FULL_ALIGNMENT, PLANE_ALIGNMENT)
    sums = np.where(thin, curve.misaligned, 1.0)
    slower = sums * taps**curve.taps_power
    rows, columns, depth = work.rows, work.columns, work.depth
    if key.kind == shapes.Math.CONVOLUTION:
        arithmetic = _grid_seconds(work, curve.grid, rows, columns, depth * slower)
        pairs = columns * depth / taps
        is_large = (pairs >= TRANSFORMED_PAIRS) & (rows * pairs >= TRANSFORMED_PRODUCTS / 2)
        forward = curve.transform_share, curve.transform_memory
        arithmetic = _transformed(work, forward, taps, arithmetic, is_large)
    elif key.kind == shapes.Math.CONVOLUTION_BACKWARD:  # sums over the pixels
        arithmetic = _grid_seconds(work, curve.grid, columns, depth, rows * slower)
        own = curve.transform_share, curve.transform_memory
        arithmetic = _transformed(work, own, taps, arithmetic)
    else:  # has a column an input channel
        slower = sums * taps**curve.data_taps_power / curve.data_share
        # whole: a hair above a tile's width would cost a tile
        channels = np.maximum(np.round(depth / taps), 1.0)
        arithmetic = _grid_seconds(work, curve.grid, rows, channels, columns * taps * slower)
        own = curve.data_transform_share, curve.data_transform_memory
        is_large = rows * columns * channels >= TRANSFORMED_PRODUCTS
        arithmetic = _transformed(work, own, taps, arithmetic, is_large)
    moved = work.bytes_moved * np.where(thin, curve.misaligned_memory, 1.0)
    if key.kind == shapes.Math.INPUT_CONVOLUTION_BACKWARD:
        moved = moved * curve.data_memory
    return _under(work, curve.roof, arithmetic, moved)


def _transformed(
    work: ProductWork,
    transform: tuple[float, float],
    taps: Floats,
    seconds: Floats,
    is_large: Bools | bool = True,
) -> Floats:
    """The smaller of that and the product of transformed tensors, by its share of the peak and what
    it moves, where there is one."""
    share, memory = transform
    if not share:
        return seconds
    low, high = TRANSFORMED_TAPS
    suits = (taps > low) & (taps < high) & (work.alignment >= FULL_ALIGNMENT) & is_large
    flops = 2 * work.rows * work.columns * work.depth * work.count
    peak = work.rate * work.multiprocessors * share
    moving = memory * work.bytes_moved / work.memory_rate
    return np.where(suits, np.minimum(seconds, flops / peak + moving), seconds)


def depthwise_seconds(work: ProductWork, curve: shapes.DepthwiseCurve, kind: shapes.Math) -> Floats:
    """Arithmetic without matrix units, then memory."""
    flops = 2 * work.rows * work.columns * work.depth * work.count
    if kind == shapes.Math.INPUT_CONVOLUTION_BACKWARD:  # a stride leaves out no pixel of the input
        flops = flops * np.maximum(work.depth / np.maximum(work.taps, 1.0), 1.0)
    arithmetic = flops / (work.rate * work.multiprocessors * curve.share)
    moving = curve.memory * work.bytes_moved / work.memory_rate
    seconds: Floats = arithmetic + moving + curve.launch_seconds
    return seconds


def attention_seconds(work: ProductWork, curve: shapes.AttentionCurve, kind: shapes.Math) -> Floats:
    """Fused attention, forward or backward."""
    tile_queries, tile_keys, tile_size = curve.tile
    keys = np.ceil(work.columns / tile_keys) * tile_keys
    if kind in CAUSAL:
        keys = (keys + tile_queries) / 2
    size = np.ceil(work.depth / tile_size) * tile_size
    terms = size + curve.score_terms + np.where(work.drops, curve.dropout_terms, 0.0)
    tiles = np.ceil(work.rows / tile_queries) * work.count
    flops = 2 * work.multiple * tile_queries * (keys + curve.prologue_keys) * terms
    arithmetic = _waves(work, tiles, curve.rounding) * flops / (work.rate * curve.share)
    # queries, keys, values and result, in backward the gradient of each, and a sum a query
    tensors = 2.0 if kind <= shapes.Math.MASKED_ATTENTION else 4.0
    own = tensors * (work.rows + work.columns) * work.depth * work.count * work.item_bytes
    own += SUM_BYTES * work.rows * work.count
    mask = np.maximum(work.bytes_moved - own, 0.0) * curve.mask_memory / curve.roof.memory
    return _under(work, curve.roof, arithmetic, own + mask)


def stored_seconds(
    work: ProductWork, curve: shapes.StoredCurve, matmul: shapes.MatmulCurve
) -> Floats:
    """Attention whose scores are stored: its products, and passes over all scores.

    Scores are in fp32, whatever the precision of the products.
    """
    ones = np.ones(len(work.rows))
    scores = SUM_BYTES * work.rows * work.columns * work.count
    sides = (work.rows + work.columns) * work.depth * work.count * work.item_bytes
    one = matmul_seconds(replace(work, multiple=ones, bytes_moved=scores + sides), matmul)
    passes = curve.memory + np.where(work.drops, curve.dropout_memory, 0.0)
    moving = passes * scores / work.memory_rate
    seconds: Floats = curve.products * one + moving + curve.launch_seconds
    return seconds


def _grid_seconds(
    work: ProductWork, grid: shapes.Grid, rows: Floats, columns: Floats, depth: Floats
) -> Floats:
    """The fastest of the tiles and ways to split the sums."""
    best = np.full(len(rows), np.inf)
    for (height, width), share in zip(grid.tiles, grid.shares, strict=True):
        rate = work.rate * share
        for tall, wide in {(height, width), (width, height)}:
            tiles = np.ceil(rows / tall) * np.ceil(columns / wide) * work.count
            for parts in SPLITS:
                flops = 2 * tall * wide * (depth / parts + grid.prologue)
                seconds = _waves(work, tiles * parts, grid.rounding) * flops / rate
                if parts > 1:
                    partial = rows * columns * work.count * parts
                    seconds += grid.split_bytes * partial / work.memory_rate
                np.minimum(best, seconds, out=best)
    return best


def _waves(work: ProductWork, tiles: Floats, rounding: float) -> Floats:
    """How often every multiprocessor takes a tile, the last, part-filled wave paid in part."""
    waves = tiles / work.multiprocessors
    paid: Floats = rounding * np.ceil(waves) + (1 - rounding) * np.maximum(waves, 1.0)
    return paid


def _under(work: ProductWork, roof: shapes.Roof, arithmetic: Floats, bytes_moved: Floats) -> Floats:
    """Arithmetic and memory, partly at once, after the launch."""
    moving = bytes_moved * roof.memory / work.memory_rate
    sharp = roof.sharpness
    larger, smaller = np.maximum(arithmetic, moving), np.minimum(arithmetic, moving)
    # the norm, scaled by the larger so that no power under- or overflows
    ratio = np.divide(smaller, larger, out=np.zeros_like(larger), where=larger > 0)
    joined: Floats = larger * (1 + ratio**sharp) ** (1 / sharp)
    return joined + roof.launch_seconds
