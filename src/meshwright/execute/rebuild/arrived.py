"""Gives calls on tokens that arrive at experts as many rows as arrive.

A planned step has a fixed number of rows there; in a rebuilt one `ARRIVED` stands for the number.
"""

from typing import Any

import torch
from torch.fx import Node

from meshwright.execute.traced import ARRIVED


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
