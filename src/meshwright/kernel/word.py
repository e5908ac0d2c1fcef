"""Mixes the bits of 64-bit words: what differs in one bit then differs in about half of them."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[np.uint64]
W = TypeVar("W", Words, np.uint64)

GOLDEN = np.uint64(0x9E3779B97F4A7C15)
"""What SplitMix64 adds to its state before each word."""


def mix_words(word: W) -> W:
    """The finaliser of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014); overflow is meant."""
    word = (word ^ (word >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    word = (word ^ (word >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return word ^ (word >> np.uint64(31))
