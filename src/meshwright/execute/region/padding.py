"""Pads matrix products whose rows begin at odd addresses, as those of a vocabulary of 50257 do.

Tensor cores read 16 bytes at a time. A product of 16-bit numbers with a matrix whose rows are no
multiple of that takes seven times as long on an H200 (8192 x 768 by 768 x 50257: 6.6 ms against
0.9). Zeros are added to its matrices, which a compiler merges with the ops that make them, and what
they add to the result is left out again.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

_aten = torch.ops.aten

_UNIT_BYTES = 16
_FLOPS_PER_BYTE = 128.0
"""So many must be computed for a byte of the matrices, which padding may copy. On an H200 55 pay
for it: 9 fs are saved a flop, and 4 TB are read and written a second. The rest is a margin for
other devices, which were not measured."""


class Padder:
    """Products with padding; a matrix that several of them read is padded once."""

    def __init__(self) -> None:
        self.padded: dict[Any, tuple[Tensor, Tensor]] = {}
        """By memory and padding: the matrix, which keeps its memory alive, and the padded one."""

    @property
    def table(self) -> Mapping[Any, Callable[..., Any]]:
        """What to trace instead of products; each gives NotImplemented where it changes nothing."""
        return {
            _aten.mm.default: self.multiply,
            _aten.bmm.default: self.multiply,
            _aten.addmm.default: self.add_product,
        }

    def multiply(self, left: Tensor, right: Tensor) -> Any:
        """A product, or a batch of them."""
        extra = find_padding(left, right)
        if not any(extra):
            return NotImplemented
        rows, inner, columns = extra
        product = _aten.mm.default if left.dim() == 2 else _aten.bmm.default
        made = product(self._pad(left, rows, inner), self._pad(right, inner, columns))
        return made[..., : left.shape[-2], : right.shape[-1]]

    def add_product(
        self, bias: Tensor, left: Tensor, right: Tensor, *, beta: float = 1, alpha: float = 1
    ) -> Any:
        """A product that is added to rows or to a matrix."""
        extra = find_padding(left, right)
        if not any(extra):
            return NotImplemented
        rows, inner, columns = extra
        lacks = [columns, rows][: bias.dim()]  # as `pad` has them: the last dimension comes first
        sizes = reversed(bias.shape)
        added = [count if size > 1 else 0 for count, size in zip(lacks, sizes, strict=True)]
        bias = F.pad(bias, [each for count in added for each in (0, count)])
        left, right = self._pad(left, rows, inner), self._pad(right, inner, columns)
        made = _aten.addmm.default(bias, left, right, beta=beta, alpha=alpha)
        return made[: made.shape[0] - rows, : made.shape[1] - columns]

    def _pad(self, matrix: Tensor, below: int, beside: int) -> Tensor:
        """A matrix with rows below and columns beside it, in the same order in memory."""
        if not below and not beside:
            return matrix
        if not _is_row_major(matrix):
            return self._pad(matrix.mT, beside, below).mT
        memory = matrix.untyped_storage()._cdata, matrix.storage_offset()
        key = *memory, matrix.shape, matrix.stride(), below, beside
        if key not in self.padded:
            self.padded[key] = matrix, F.pad(matrix, (0, beside, 0, below))
        return self.padded[key][1]


def find_padding(left: Tensor, right: Tensor) -> tuple[int, int, int]:
    """How many rows, inner and result columns a product lacks, where it pays to add them."""
    nothing = 0, 0, 0
    if not _has_tensor_cores(left.dtype):
        return nothing
    unit = _UNIT_BYTES // left.element_size()
    (rows, inner), columns = left.shape[-2:], right.shape[-1]
    by_row = _is_row_major(left), _is_row_major(right)
    extra = (
        0 if by_row[0] else -rows % unit,
        -inner % unit if by_row[0] or not by_row[1] else 0,
        -columns % unit,  # the result is row-major
    )
    count = left.numel() // max(1, rows * inner)
    touched = count * (rows * inner + inner * columns + rows * columns) * left.element_size()
    flops = 2.0 * count * rows * inner * columns
    pays = any(extra) and flops > _FLOPS_PER_BYTE * touched
    return extra if pays else nothing


def _is_row_major(matrix: Tensor) -> bool:
    return matrix.stride(-1) == 1 or matrix.stride(-2) != 1


def _has_tensor_cores(dtype: torch.dtype) -> bool:
    if dtype is torch.float32:
        return torch.get_float32_matmul_precision() != "highest"
    return dtype in (torch.float16, torch.bfloat16)
