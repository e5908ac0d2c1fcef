"""Ops that multiply matrices, as numbers: what `product` times."""

from dataclasses import dataclass, fields

import numpy as np
import numpy.typing as npt

from meshwright.array import Bools, Floats, Longs
from meshwright.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Products:
    """Ops that multiply matrices, one entry an op.

    A convolution has a row for each output pixel, a column for each output channel of a group, and
    sums over the input channels of a group times the window; attention has queries, keys and the
    head's size, and the batch times heads as its count.
    """

    kind: npt.NDArray[np.int8]
    rows: Floats
    columns: Floats
    depth: Floats
    count: Floats
    """How many products of that size; of a convolution its groups."""
    flops: Floats
    """A multiple of 2 rows columns depth count; of causal attention as if it were not causal."""
    bytes_moved: Floats
    """All that its tensors hold, each read or written once; of attention the mask and the sums of
    scores, too."""
    alignment: Floats
    """Bytes that rows of its matrices start at a multiple of, 16 at most; 0: unknown, taken for 16.

    Of a convolution the channels of a group, in and out; with a window and stride of one, where
    images are used as they lie, no more than 8 if an image's plane does not fill 16 bytes.
    """
    precision: Longs
    """The precision of each op, as its place in `precisions`."""
    precisions: tuple[str, ...]
    """fp64, fp32, tf32, bf16, fp16 or fp8; any other is taken for fp32."""
    drops: Bools
    """Attention draws a random number for every score (dropout)."""
    is_last: Bools
    """The channels of a convolution's images lie side by side."""

    def __post_init__(self) -> None:
        for field in fields(self):
            if field.name == "precisions":
                continue
            values = getattr(self, field.name)
            if values.shape != self.rows.shape:
                raise InputError(
                    f"products: {field.name} must have an entry for each of "
                    f"{len(self.rows):,} ops, got shape {values.shape}"
                )
        for name in ("rows", "columns", "depth", "count", "flops"):
            values = getattr(self, name)
            bad = np.flatnonzero(~((values > 0) & (values < np.inf)))
            if len(bad):
                raise InputError(
                    f"products: {name} of op {bad[0]} must be positive and finite, "
                    f"got {values[bad[0]]}"
                )
