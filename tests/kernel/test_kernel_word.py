"""Words that are mixed, plain and within compiled kernels."""

from typing import Any

import numpy as np

from meshwright.compiled import compiled
from meshwright.kernel.draw import exponential, uniform
from meshwright.kernel.word import GOLDEN, mix_words

PUBLISHED = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)
"""The first words of SplitMix64 from the state 0, as its reference program prints them."""


@compiled
def _draw(state: Any, found: Any) -> None:
    for k in range(len(found)):
        found[k] = uniform(state)


@compiled
def _tolerate(state: Any, mean: float, found: Any) -> None:
    for k in range(len(found)):
        found[k] = exponential(state, mean)


def test_words_are_those_of_splitmix() -> None:
    states = np.arange(1, 4, dtype=np.uint64) * GOLDEN
    assert mix_words(states).tolist() == list(PUBLISHED)


def test_kernels_draw_the_same_words() -> None:
    state, found = np.zeros(1, np.uint64), np.zeros(3)
    _draw(state, found)
    assert found.tolist() == [(word >> 11) / 2.0**53 for word in PUBLISHED]


def test_a_step_is_accepted_as_often_as_metropolis_says() -> None:
    """A loss of twice the temperature: e^-2 = 0.1353; the standard error of 40,000 draws is 0.0017,
    and the draws of a seed are always the same."""
    state, found = np.array([7], np.uint64), np.zeros(40_000)
    _tolerate(state, 0.5, found)
    assert abs(float((found >= 1.0).mean()) - np.exp(-2.0)) < 0.007
