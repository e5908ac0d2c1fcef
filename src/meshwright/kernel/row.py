"""Gathers entries under rows: those of row k are `order[start[k]:start[k + 1]]`.

Also under keys, and in lines in which one follows the other.
"""

from collections.abc import Iterable
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from meshwright.array import Ints, Longs

Key = TypeVar("Key")
Value = TypeVar("Value")


def row_starts(rows: npt.NDArray[np.integer], num_rows: int) -> Ints:
    """Where each row begins once its entries stand together, and where the last one ends."""
    start = np.zeros(num_rows + 1, dtype=np.int32)
    np.cumsum(np.bincount(rows, minlength=num_rows), out=start[1:])
    return start


def gather_rows(rows: npt.NDArray[np.integer], num_rows: int) -> tuple[Longs, Ints]:
    """The entries by their rows, within a row in the order they had; and where each row begins."""
    order: Longs = np.argsort(rows, kind="stable")
    return order, row_starts(rows, num_rows)


def follow_lines(
    line: npt.NDArray[np.integer], turn: npt.NDArray[np.generic] | None = None
) -> tuple[Longs, Longs]:
    """Entries, and what follows each in its line, by turn; None: in the order they have."""
    order = np.argsort(line, kind="stable") if turn is None else np.lexsort((turn, line))
    is_next = line[order[1:]] == line[order[:-1]]
    return order[:-1][is_next], order[1:][is_next]


def group_values(pairs: Iterable[tuple[Key, Value]]) -> dict[Key, list[Value]]:
    """The values with each key, in the order they had."""
    found: dict[Key, list[Value]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def sum_values(pairs: Iterable[tuple[Key, float]]) -> dict[Key, float]:
    """The sum of the values with each key."""
    found: dict[Key, float] = {}
    for key, value in pairs:
        found[key] = found.get(key, 0.0) + value
    return found
