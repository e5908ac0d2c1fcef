"""What arrays hold, by the names that signatures use. Knows nothing of what the numbers mean."""

from dataclasses import fields
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
"""Whole numbers as graphs, clusters and problems keep them: half the bytes of a `Longs`."""
Longs = npt.NDArray[np.int64]
"""Whole numbers that products of sizes may reach, and what NumPy returns as places."""
Bools = npt.NDArray[np.bool_]
Records = Any
"""Arrays of rows with named columns. They are typed `Any` because mypy knows no column's type, and
spent a third of its time on expressions that index one column by another (2026-11)."""

Whole = TypeVar("Whole", bound=np.integer[Any])


def marked(count: int, places: Any) -> Bools:
    """A truth value for each of so many: whether it is at one of these places."""
    found = np.zeros(count, dtype=np.bool_)
    found[places] = True
    return found


def places_in(order: Any, count: int, kind: type[Whole]) -> npt.NDArray[Whole]:
    """Of each of so many numbers its place in an order; -1 where it does not stand in it."""
    found = np.full(count, -1, dtype=kind)
    found[order] = np.arange(len(order), dtype=kind)
    return found


def count_up(counts: Any) -> Longs:
    """0, 1, ... up to each of these counts, one run after the other."""
    ends = np.cumsum(counts)
    begins: Longs = np.repeat(ends - counts, counts)
    return np.arange(len(begins)) - begins


def sum_by(labels: Any, values: Any, count: int) -> Floats:
    """By label, from 0 to `count` - 1: the sum of the values with it."""
    return np.bincount(labels, weights=values, minlength=count).astype(np.float64, copy=False)


def sum_rows(labels: Any, table: Floats, count: int) -> Floats:
    """By label: the sum of the rows with it; an infinite entry stays one."""
    columns = [sum_by(labels, column, count) for column in table.T]
    return np.ascontiguousarray(np.stack(columns, axis=1))


def freeze_arrays(owner: Any) -> None:
    """Make all arrays among the fields of a dataclass read-only."""
    for each in fields(owner):
        value = getattr(owner, each.name)
        if isinstance(value, np.ndarray):
            value.setflags(write=False)
