"""Gathers entries under rows: those of row k are `order[start[k]:start[k + 1]]`."""

import numpy as np
import numpy.typing as npt

from meshwright.array import Ints, Longs


def row_starts(rows: npt.NDArray[np.integer], num_rows: int) -> Ints:
    """Where each row begins once its entries stand together, and where the last one ends."""
    start = np.zeros(num_rows + 1, dtype=np.int32)
    np.cumsum(np.bincount(rows, minlength=num_rows), out=start[1:])
    return start


def gather_rows(rows: npt.NDArray[np.integer], num_rows: int) -> tuple[Longs, Ints]:
    """The entries by their rows, within a row in the order they had; and where each row begins."""
    order: Longs = np.argsort(rows, kind="stable")
    return order, row_starts(rows, num_rows)
