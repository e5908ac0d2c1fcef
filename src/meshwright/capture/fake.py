"""Tensors without numbers, on which steps are traced.

Knows what torch's own do not: grouped products of other types than bf16, which a CPU computes but
torch 2.13 refuses on fake tensors.
"""

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

import torch

from meshwright.capture.torch_private import (
    FakeTensor,
    FakeTensorMode,
    forbid_data,
    make_subclass,
    without_dispatch,
)

_GROUPED = torch.ops.aten._grouped_mm.default

CPU = torch.device("cpu")
"""Where all of them are said to be: the target device is a symbol, as fake CUDA tensors abort a CPU
build of torch in autograd."""
ALIGNED_BYTES = 16
"""Kernels of grouped products begin every row at a multiple of so many."""


class StepMode(FakeTensorMode):  # type: ignore[no-untyped-call]
    """Within this, ops give tensors that have shapes and types only."""

    @cached_property
    def _fields(self) -> dict[str, Any]:
        """What each of its tensors is told at first."""
        return dict(vars(FakeTensor(self, torch.empty(0, device="meta"), CPU)))

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

    def lay(
        self,
        shape: Sequence[int],
        stride: Sequence[int],
        dtype: torch.dtype,
        storage: torch.UntypedStorage | None = None,
        offset: int = 0,
    ) -> torch.Tensor:
        """A tensor of that layout, in a storage of its own if none is given; no op is asked."""
        with without_dispatch():
            made = torch.empty_strided(shape, stride, dtype=dtype, device="meta")
            if storage is not None:
                made.set_(storage, offset, shape, stride)
        # What the class's own constructor does, in a fifth of its time.
        fake = make_subclass(FakeTensor, made, dispatch_device=True, device_for_backend_keys=CPU)
        forbid_data(fake)
        vars(fake).update(self._fields)
        return fake


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
