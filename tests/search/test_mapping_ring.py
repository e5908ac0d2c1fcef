"""Rings: the best of a few devices, good ones of many."""

from itertools import permutations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.search.method.pipeline.map.ring import exact_ring, find_ring, narrowest


@given(st.integers(1, 6), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=60, deadline=None)
def test_the_exact_ring_is_the_best_of_all_orders(count: int, seed: int, is_even: bool) -> None:
    random = np.random.default_rng(seed)
    slowness = random.integers(1, 5, (8, 8)).astype(np.float64)
    if is_even:
        slowness = np.minimum(slowness, slowness.T)
    devices = random.permutation(8)[:count].astype(np.int32)
    found = exact_ring(slowness, devices)
    assert sorted(found.tolist()) == sorted(devices.tolist())
    best = min(
        narrowest(slowness, np.array([devices[0], *rest], np.int32))
        for rest in permutations(devices[1:].tolist())
    )
    assert narrowest(slowness, found) == best


def test_a_long_ring_avoids_slow_links_that_it_can_avoid() -> None:
    # Two rows of ten, joined fast at both ends only: around, never across.
    row, column = np.arange(20) // 10, np.arange(20) % 10
    steps = abs(column[:, None] - column[None, :]) + abs(row[:, None] - row[None, :])
    is_end = (column[:, None] % 9 == 0) & (column[None, :] % 9 == 0)
    slow = (row[:, None] != row[None, :]) & ~is_end
    slowness = np.where(slow, 50.0, 1.0) * np.maximum(steps, 1)
    ring = find_ring(slowness, np.arange(20, dtype=np.int32))
    assert sorted(ring.tolist()) == list(range(20))
    assert narrowest(slowness, ring) <= 2.0
