"""Random numbers inside compiled kernels."""

from typing import Any

import numpy as np

from meshwright.compiled import inlined


@inlined
def uniform(state: Any) -> float:
    """A number in [0, 1): splitmix64 (Steele, Lea, Flood, OOPSLA 2014) on an array of one word."""
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    bits = state[0]
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return np.float64(bits >> np.uint64(11)) * 2.0**-53


@inlined
def below(state: Any, count: Any) -> Any:
    """A whole number from 0 to count - 1."""
    return np.int64(uniform(state) * count)


@inlined
def geometric(state: Any, mean: float) -> Any:
    """A whole number from 1 on: exponentially distributed with this mean, cut off, plus one."""
    return np.int64(1) + np.int64(-np.log(1.0 - uniform(state)) * mean)
