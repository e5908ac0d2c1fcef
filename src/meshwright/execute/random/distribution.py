"""Random numbers of the distributions that PyTorch's filling ops have, made of random bits."""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from meshwright.execute.random.bits import mix_bits

_UNIT = 2.0**-24
_OTHER = 0x9E3779B9 - (1 << 32)
_DIGITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}
"""The bits of a number's mantissa: whole numbers up to there are exact."""


def uniform(bits: Tensor, low: float = 0.0, high: float = 1.0) -> Tensor:
    """Numbers that are uniform from `low` on, below `high`."""
    return ((bits >> 8) & 0xFF_FFFF).float() * (_UNIT * (high - low)) + low


def normal(bits: Tensor, mean: float = 0.0, deviation: float = 1.0) -> Tensor:
    """By Box and Muller's formula; the second number is made of the bits of the first."""
    length = (-2 * _inside(bits).log()).sqrt()
    return length * (2 * math.pi * uniform(_others(bits))).cos() * deviation + mean


def exponential(bits: Tensor, rate: float = 1.0) -> Tensor:
    """Numbers that are distributed exponentially, with a rate."""
    return -_inside(bits).log() / rate


def log_normal(bits: Tensor, mean: float = 1.0, deviation: float = 2.0) -> Tensor:
    """Numbers whose logarithm is normal."""
    return normal(bits, mean, deviation).exp()


def cauchy(bits: Tensor, median: float = 0.0, width: float = 1.0) -> Tensor:
    """Numbers of the distribution of Cauchy around a median."""
    return (math.pi * (_inside(bits) - 0.5)).tan() * width + median


def geometric(bits: Tensor, probability: float) -> Tensor:
    """How many trials it takes until one of this probability succeeds."""
    return (_inside(bits).log() / math.log1p(-probability)).ceil().clamp(min=1)


def whole(bits: Tensor, low: int, high: int) -> Tensor:
    """Whole numbers from `low` on, below `high`."""
    upper, lower = bits.long() & 0x7FFF_FFFF, _others(bits).long() & 0xFFFF_FFFF
    return ((upper << 32) | lower) % (high - low) + low


def whole_end(dtype: torch.dtype) -> int:
    """Where whole numbers of a type end, unless they are told where."""
    if dtype is torch.bool:
        return 2
    if dtype in _DIGITS:
        return (1 << _DIGITS[dtype]) + 1
    return int(min(torch.iinfo(dtype).max, (1 << 63) - 2)) + 1


def _others(bits: Tensor) -> Tensor:
    """Other bits that are made of these."""
    return mix_bits(bits ^ _OTHER)


def _inside(bits: Tensor) -> Tensor:
    """Uniform numbers above 0 and below 1."""
    return ((bits >> 9) & 0x7F_FFFF).float() * (2 * _UNIT) + _UNIT


DISTRIBUTIONS: dict[str, Callable[..., Tensor]] = {
    "uniform_": uniform,
    "normal_": normal,
    "exponential_": exponential,
    "log_normal_": log_normal,
    "cauchy_": cauchy,
    "geometric_": geometric,
}
"""By the op that fills a tensor with them."""
