"""What is fitted of how a device's kernels multiply matrices: the shapes of the curves, no numbers.

Every figure is relative to a device's own peaks, so that a curve carries over to other types of
device, except `launch_seconds`, which does not shrink on a faster one.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

Tiles = tuple[tuple[int, int], ...]


class Math(IntEnum):
    """What kind of kernel multiplies; backward attention makes the scores anew, unless they were
    stored because no fused kernel takes what it is given.

    A convolution's backward is the gradient of its weight, or with two products that of its input,
    too; alone, the latter is a kind of its own.
    """

    MATMUL = 0
    CONVOLUTION = 1
    CONVOLUTION_BACKWARD = 2
    INPUT_CONVOLUTION_BACKWARD = 3
    ATTENTION = 4
    CAUSAL_ATTENTION = 5
    MASKED_ATTENTION = 6
    ATTENTION_BACKWARD = 7
    CAUSAL_ATTENTION_BACKWARD = 8
    MASKED_ATTENTION_BACKWARD = 9
    STORED_ATTENTION = 10
    STORED_ATTENTION_BACKWARD = 11


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Tiles of the result, dealt in waves to the multiprocessors; few tiles share out the sums."""

    tiles: Tiles
    """Rows and columns of the tiles to choose from, either way round."""
    shares: tuple[float, ...]
    """Share of peak FLOP/s that a full wave of each tile reaches."""
    rounding: float
    """How much of a last, part-filled wave is paid: 1 all of it, 0 only what it fills."""
    prologue: float
    """What starting and ending a tile costs, in terms of its sums."""
    split_bytes: float
    """Bytes moved for each element of the result and each part that its sums are split into."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Roof:
    """What bounds a kernel besides its arithmetic."""

    memory: float
    """Times the bytes of its tensors that it moves at peak bandwidth."""
    sharpness: float
    """Exponent of the norm that joins arithmetic and memory: 1 adds them, infinity overlaps."""
    launch_seconds: float
    """The least it takes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MatmulCurve:
    """How long products of matrices take, alone or in batches."""

    grid: Grid
    roof: Roof
    misaligned: tuple[float, float, float]
    """Times the sums take where rows start at multiples of 8, 4 and 2 bytes only, not of 16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvolutionCurve:
    """Convolutions, as the products of matrices that they are."""

    grid: Grid
    roof: Roof
    misaligned: float
    """Times the sums take where channels do not fill 16 bytes."""
    misaligned_memory: float
    """Times the bytes that are moved where channels do not fill 16 bytes."""
    taps_power: float
    """Sums take taps ** power longer, taps being the terms that one input element enters."""
    data_share: float = 1.0
    """Backward: share of peak of the input's gradient, relative to the weight's."""
    data_taps_power: float = 0.0
    """Backward: `taps_power` of the input's gradient."""
    data_memory: float = 1.0
    """Backward: bytes that the input's gradient moves, relative to the weight's."""
    transform_share: float = 0.0
    """FLOP/s over peak where a transform (Winograd's or Fourier's) saves multiplications, so that
    it may be above 1, forward or of the weight's gradient; 0: no such kernel."""
    transform_memory: float = 0.0
    """What the transforms move, as times the bytes of the tensors."""
    data_transform_share: float = 0.0
    """Backward: `transform_share` of the input's gradient."""
    data_transform_memory: float = 0.0
    """Backward: `transform_memory` of the input's gradient."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DepthwiseCurve:
    """Convolutions of each channel by itself, which no matrix unit helps.

    The gradient of the input computes a window for each pixel of the input, whatever the stride.
    """

    share: float
    """Share of peak FLOP/s."""
    memory: float
    """Times the bytes of its tensors that it moves, after its arithmetic."""
    launch_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionCurve:
    """Fused attention: a tile of queries visits all keys."""

    tile: tuple[int, int, int]
    """Queries and keys of a tile, and what its heads' size is a multiple of."""
    share: float
    """Share of peak FLOP/s that a full wave reaches."""
    rounding: float
    """How much of a last, part-filled wave is paid: 1 all of it, 0 only what it fills."""
    score_terms: float
    """What the softmax of one score costs, in terms of the head's size."""
    dropout_terms: float
    """What the random number of one score costs with dropout, in terms of the head's size."""
    prologue_keys: float
    """What starting a tile costs, in keys."""
    roof: Roof
    mask_memory: float = 0.0
    """Times that the bytes of the mask are moved at peak bandwidth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCurve:
    """Attention by products of matrices, with ops on all scores between them."""

    products: int
    """Products as large as that of queries and keys."""
    memory: float
    """Times that the bytes of the scores are moved at peak bandwidth besides the products."""
    dropout_memory: float
    """Times that the bytes of the scores are moved once more for dropout."""
    launch_seconds: float


@dataclass(frozen=True, slots=True)
class Stream:
    """Ops that only move bytes, or add terms up."""

    share: float
    """Bytes of its tensors over its time, as a share of peak bandwidth; above 1 where it does not
    touch all of them."""
    launch_seconds: float
    """The least it takes."""
    term_seconds: float = 0.0
    """Of a sum: time for each of its terms where few results leave most of the device idle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """The curves of one device."""

    multiprocessors: int
    matmul: Mapping[tuple[str, bool], MatmulCurve]
    """By precision, and whether rows start at multiples of 16 bytes."""
    convolution: Mapping[tuple[str, Math, bool], ConvolutionCurve]
    """By precision, direction, and whether planes are used as they lie.

    One curve for both gradients of a backward, under the kind of the weight's.
    """
    depthwise: Mapping[tuple[str, Math, bool], DepthwiseCurve]
    """By precision, kind, and whether channels lie side by side; each gradient has its own."""
    attention: Mapping[tuple[str, Math], AttentionCurve]
    stored: Mapping[Math, StoredCurve]
