"""Tensors without numbers, on which steps are traced.

Knows what torch's own do not: grouped products of other types than bf16, which a CPU computes but
torch 2.13 refuses on fake tensors.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from meshwright.capture.torch_private import FakeTensorMode

_GROUPED = torch.ops.aten._grouped_mm.default

ALIGNED_BYTES = 16
"""Kernels of grouped products begin every row at a multiple of so many."""


class StepMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Within this, ops give tensors that have shapes and types only."""

    def dispatch(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """What an op gives."""
        if func is _GROUPED and args[0].dtype is not torch.bfloat16:
            with self:
                return _grouped_product(*args, **(kwargs or {}))
        return super().dispatch(func, types, args, kwargs or {})


def _grouped_product(
    left: torch.Tensor,
    right: torch.Tensor,
    offs: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Rows by groups of them, or a sum over a group's columns for each group.

    Kernels begin every row at a multiple of 16 bytes.
    """
    assert bias is None, "no kernel adds one"
    if left.dim() == 2 and right.dim() == 2:
        assert offs is not None
        shape = [offs.shape[0], left.shape[0], right.shape[1]]
    elif left.dim() == 3 and right.dim() == 3:
        shape = [left.shape[0], left.shape[1], right.shape[2]]
    else:
        shape = [left.shape[-2], right.shape[-1]]
    dtype = out_dtype or left.dtype
    unit = ALIGNED_BYTES // dtype.itemsize
    step = -(-shape[-1] // unit) * unit
    stride = [shape[1] * step, step, 1] if len(shape) == 3 else [step, 1]
    return torch.empty_strided(shape, stride, dtype=dtype, device=left.device)
