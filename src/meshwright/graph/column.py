"""The words of a graph as plain columns: what files hold and what `Graph` is made of.

Knows no rules beyond types; `Graph` checks.
"""

from enum import IntEnum
from typing import Any

import numpy as np

from meshwright.errors import InputError

MAX_OPS = 1 << 20
"""A graph may have this many ops: up to 1.4 GB while it is read."""
MAX_CELLS = 1 << 25
"""Measured times of all ops on all types of devices: 256 MiB."""

ANY_TYPE = "any"
"""Key of `Graph.seconds` for times that hold on every device type without a column of its own."""


def check_seconds(num_types: int, num_ops: int, where: str, what: str = "types of devices") -> None:
    """Refuse a few ops with times on very many types of devices, and the other way round."""
    if num_types * num_ops > MAX_CELLS:
        raise InputError(
            f"{where}: seconds of {num_ops:,} ops must be on at most "
            f"{MAX_CELLS // num_ops:,} {what}, got {num_types:,}"
        )


class Phase(IntEnum):
    """Which third of a training step an op belongs to."""

    FORWARD = 0
    BACKWARD = 1
    UPDATE = 2


class Split(IntEnum):
    """What an op gives when its inputs are one share of the batch."""

    NONE = 0
    """It needs the whole batch, or has none: every replica runs it in full."""
    BATCH = 1
    """Its share of the rows of its outputs."""
    SUM = 2
    """A partial sum of its outputs (a weight gradient)."""


OP_TEXTS = ("op_names", "kind", "module", "precision")
OP_CODES = ("phase", "split", "group", "partner")
OP_LINES = (
    "flops", "bytes_read", "bytes_written",
    "product_rows", "product_columns", "product_depth", "product_count",
)  # fmt: skip
"""Sizes that grow with the batch; each has a column `fixed_...` of what does not. They are a line
in the batch, but for ops that mix samples, whose further parts `Graph.superlinear` has."""
STEEP_POWERS = {"square": 2, "cube": 3}
"""With which power of the batch the parts in `Graph.superlinear` grow, by the start of their name:
`square_flops`, `cube_tensor_bytes`."""
OP_SIZES = (
    *OP_LINES, *(f"fixed_{name}" for name in OP_LINES), "product_alignment", "calls",
    "parameter_bytes", "state_bytes", "saved_bytes", "workspace_bytes",
)  # fmt: skip
TENSOR_SIZES = ("tensor_bytes", "fixed_tensor_bytes")
OP_STEEP = tuple(f"{power}_{name}" for power in STEEP_POWERS for name in OP_LINES)
TENSOR_STEEP = tuple(f"{power}_tensor_bytes" for power in STEEP_POWERS)


Columns = dict[str, Any]
"""The fields of a `Graph` by name, unchecked; `Graph` declares and documents each."""


def no_tensors() -> Columns:
    """The columns of a step without tensors."""
    none = np.empty(0, dtype=np.int32)
    return {
        "tensor_source": none,
        "tensor_bytes": np.empty(0),
        "fixed_tensor_bytes": np.empty(0),
        "tensor_partial": np.empty(0, dtype=np.bool_),
        "use_tensor": none,
        "use_op": none,
    }
