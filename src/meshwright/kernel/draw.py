"""Random numbers inside compiled kernels."""

from typing import Any

import numpy as np

from meshwright.compiled import inlined
from meshwright.kernel.word import GOLDEN, mix_words

_mix = inlined(mix_words)


@inlined
def uniform(state: Any) -> float:
    """A number in [0, 1): splitmix64 (Steele, Lea, Flood, OOPSLA 2014) on an array of one word."""
    state[0] += GOLDEN
    return np.float64(_mix(state[0]) >> np.uint64(11)) * 2.0**-53


@inlined
def below(state: Any, count: Any) -> Any:
    """A whole number from 0 to count - 1."""
    return np.int64(uniform(state) * count)


@inlined
def exponential(state: Any, mean: float) -> Any:
    """A number from 0 on, exponentially distributed with this mean.

    A Metropolis step at the temperature `mean` is accepted if it makes worse by no more than this:
    exp(-worse / mean) is the chance of it.
    """
    return -np.log(1.0 - uniform(state)) * mean


@inlined
def geometric(state: Any, mean: float) -> Any:
    """A whole number from 1 on: exponentially distributed with this mean, cut off, plus one."""
    return np.int64(1) + np.int64(exponential(state, mean))
