"""The knapsack inside a stage against trying every choice of ways."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.array import Floats
from meshwright.compiled import compiled
from solver.piper.choose import cheapest_choice
from solver.piper.fit import FITS, FITS_NOT, NO_ROOM, find_fit
from solver.piper.price import flight_grid

Classes = list[tuple[Floats, Floats]]


@compiled
def ask(
    count: Any, start: Any, seconds: Any, held: Any, limit: Any, memory: Any, rest: Any, lists: Any
) -> Any:
    return find_fit(count, start, seconds, held, limit, memory, rest, lists)


@st.composite
def knapsacks(draw: st.DrawFn) -> Classes:
    """Seconds and bytes of each class; some classes are alike but for noise in the seconds."""
    random = draw(st.randoms(use_true_random=False))
    alike = draw(st.booleans())
    found = []
    for _ in range(draw(st.integers(1, 7))):
        size = 2 if alike else random.choice([1, 2, 3])
        seconds = np.array([random.randint(0, 12) / 4 for _ in range(size)])
        held = np.array([float(random.randint(0, 12)) for _ in range(size)])
        if alike:
            seconds = np.array([3.0, 4.0 + random.randint(0, 3) / 8])
            held = np.array([7.0, 2.0])
        found.append((seconds, held))
    return found


def least_seconds(classes: Classes, memory: float) -> float:
    choices = itertools.product(*(range(len(seconds)) for seconds, _ in classes))
    best = math.inf
    for choice in choices:
        if sum(h[i] for (_, h), i in zip(classes, choice, strict=True)) <= memory:
            best = min(best, sum(s[i] for (s, _), i in zip(classes, choice, strict=True)))
    return best


def fits(classes: Classes, limit: float, memory: float, room: int = 1024) -> int:
    start = np.cumsum([0, *(len(seconds) for seconds, _ in classes)])
    seconds = np.concatenate([each for each, _ in classes])
    held = np.concatenate([each for _, each in classes])
    rest, lists = np.empty((4, len(classes) + 1)), np.empty((6, room))
    return int(ask(len(classes), start, seconds, held, limit, memory, rest, lists))


@settings(max_examples=300)
@given(knapsacks(), st.integers(0, 60))
def test_what_fits_is_known_exactly(classes: Classes, memory: int) -> None:
    best = least_seconds(classes, float(memory))
    if best < math.inf:
        assert fits(classes, best, float(memory)) == FITS
    below = best - 1 / 16 if best < math.inf else 1e9  # all seconds are eighths
    assert fits(classes, below, float(memory)) == FITS_NOT


@settings(max_examples=300)
@given(knapsacks(), st.integers(0, 60))
def test_the_choice_is_the_fastest_that_fits(classes: Classes, memory: int) -> None:
    best = least_seconds(classes, float(memory))
    if best == math.inf:
        return
    seconds, held = [s for s, _ in classes], [h for _, h in classes]
    for limit in (best, math.inf):
        chosen = cheapest_choice(seconds, held, float(memory), limit)
        assert sum(h[i] for h, i in zip(held, chosen, strict=True)) <= memory
        assert sum(s[i] for s, i in zip(seconds, chosen, strict=True)) == pytest.approx(best)


def test_lists_without_room_say_so() -> None:
    # Seconds almost as bytes: no price tells the classes apart, so many choices stay open.
    random = np.random.default_rng(1)
    classes = [
        (np.array([0.0, each]), np.array([each + noise, 0.0]))
        for each, noise in zip(random.uniform(1, 2, 20), random.uniform(0, 0.01, 20), strict=True)
    ]
    memory = sum(float(held[0]) for _, held in classes) / 2
    best = sum(float(s[i]) for (s, _), i in zip(classes, _choose(classes, memory), strict=True))
    assert fits(classes, best, memory, room=1) == NO_ROOM
    assert fits(classes, best * (1 + 1e-9), memory, room=1 << 16) == FITS
    assert fits(classes, best * (1 - 1e-9), memory, room=1 << 16) == FITS_NOT


def _choose(classes: Classes, memory: float) -> list[int]:
    return cheapest_choice([s for s, _ in classes], [h for _, h in classes], memory, math.inf)


def test_a_hundred_equal_savings_keep_the_lists_short() -> None:
    # 37 of 100 classes must take their second way: the 37 least dear ones, 1.00 to 1.36 dearer.
    classes = [(np.array([0.0, 1 + i / 100]), np.array([1.0, 0.0])) for i in range(100)]
    best = sum(1 + i / 100 for i in range(37))
    assert fits(classes, best + 1e-9, 63.5, room=128) == FITS
    assert fits(classes, best - 1e-9, 63.5, room=128) == FITS_NOT


def test_the_grid_of_flights_grows_by_half_at_most() -> None:
    assert flight_grid(1) == [1]
    assert flight_grid(20) == [1, 2, 3, 4, 6, 8, 12, 16]
    assert flight_grid(512)[-3:] == [256, 384, 512]
