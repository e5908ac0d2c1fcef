"""Packs columns of numbers as text that a page can hold.

A column of whole numbers is stored as differences, the bytes of equal weight together, so that
DEFLATE finds what repeats; then as base64, in which no character means anything to HTML. Knows
nothing of what the numbers are.
"""

import base64
import zlib
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

LEVEL = 6
"""Of DEFLATE: 9 takes three times as long for one per cent less."""
_WIDTHS = (np.uint8, np.uint16, np.uint32)


class Blobs:
    """Packed columns, numbered in the order in which they were added."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def add_whole(self, values: npt.ArrayLike, *, is_rising: bool = False) -> dict[str, Any]:
        """Add whole numbers from 0 to 2^32 - 1; `is_rising`: most are more than the one before."""
        numbers = np.asarray(values, dtype=np.int64)
        assert not len(numbers) or (numbers.min() >= 0 and numbers.max() < 2**32)
        if is_rising:  # differences wrap around, and so do their sums
            width: Any = np.uint32
            stored = np.diff(numbers, prepend=0).astype(np.uint32)
        else:
            most = int(numbers.max(initial=0))
            width = next(each for each in _WIDTHS if most <= np.iinfo(each).max)
            stored = numbers.astype(width)
        size = np.dtype(width).itemsize
        return {
            "kind": "delta" if is_rising else "whole",
            "bytes": size,
            "count": len(numbers),
            "blob": self._add(_by_weight(stored)),
        }

    def add_floats(self, values: npt.ArrayLike) -> dict[str, Any]:
        """Add numbers, kept to seven digits."""
        stored = np.asarray(values, dtype=np.float32)
        return {
            "kind": "float",
            "bytes": 4,
            "count": len(stored),
            "blob": self._add(_by_weight(stored)),
        }

    def add_texts(self, values: Sequence[str]) -> dict[str, Any]:
        """Add texts, whatever they hold."""
        # Half of a surrogate pair, which UTF-8 has no bytes for, is shown as a question mark.
        known = [each.encode("utf-8", "replace").decode() for each in values]
        data = msgspec.json.encode(known)
        return {"kind": "texts", "bytes": 1, "count": len(known), "blob": self._add(data)}

    def _add(self, data: bytes) -> int:
        packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
        packed = packer.compress(data) + packer.flush()
        self.texts.append(base64.b64encode(packed).decode("ascii"))
        return len(self.texts) - 1


def _by_weight(values: npt.NDArray[Any]) -> bytes:
    """The lowest byte of every number, then the next one of every number, and so on."""
    little = values.astype(values.dtype.newbyteorder("<"), copy=False)
    return little.view(np.uint8).reshape(len(values), -1).T.tobytes() if len(values) else b""
