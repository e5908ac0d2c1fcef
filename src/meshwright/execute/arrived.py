"""Rows whose number is known at run time only, as of tokens that reach an expert.

They must be a dimension of their own, the outermost, in all that an op reads and makes. A planned
step has a fixed number of rows there; in a rebuilt one `ARRIVED` stands for the number.
"""

from typing import Any

import torch
from torch.fx import Node

from meshwright.capture.ledger import Kernel
from meshwright.errors import InputError, quoted
from meshwright.execute.traced import ARRIVED, Layout


def check_rows(kernel: Kernel, layout: Layout) -> None:
    """Refuse an op of which such rows are part of another number."""
    others = [size for size in layout.shape if size != ARRIVED]
    if any(each and each % ARRIVED == 0 for each in (*others, *layout.stride, layout.offset)):
        raise unknown_rows(kernel)


def unknown_rows(kernel: Kernel) -> InputError:
    """The error of an op that would have to know how many there are."""
    return InputError(
        f"op {quoted(kernel.node.name)}: must keep tokens, whose number is known at run time only "
        f"where replicas divide experts, as rows of what it reads and makes"
    )


def has_arrived_rows(value: Any) -> bool:
    """Whether the number of rows of a node's value is known at run time only."""
    made = value.meta.get("val") if isinstance(value, Node) else None
    return isinstance(made, torch.Tensor) and ARRIVED in made.shape


def with_arrived_rows(value: Any, planned: set[int]) -> Any:
    """Arguments of a call in which each shape with a planned number of rows has `ARRIVED` rows."""
    if isinstance(value, dict):
        return {key: with_arrived_rows(each, planned) for key, each in value.items()}
    if not isinstance(value, tuple | list):
        return value
    if value and all(type(each) is int for each in value) and value[0] in planned:
        return type(value)((ARRIVED, *value[1:]))
    return type(value)(with_arrived_rows(each, planned) for each in value)
