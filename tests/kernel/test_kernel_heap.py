"""Heaps of kernels against Python's, with equal keys, at any base, with further fields."""

import heapq
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.compiled import compiled
from meshwright.kernel.heap import ENTRY, VERSIONED, pop, push

BASE = 3


@compiled
def _turn(entries: Any, base: int, keys: Any, kept: Any, order: Any) -> None:
    """Push the keys in turn, and pop one after those that are not kept; then pop the rest."""
    count, done = 0, 0
    for k in range(len(keys)):
        push(entries, base, count, keys[k], k)
        count += 1
        if not kept[k]:
            order[done] = pop(entries, base, count)
            count -= 1
            done += 1
    while count > 0:
        order[done] = pop(entries, base, count)
        count -= 1
        done += 1


@compiled
def _version(entries: Any, keys: Any, order: Any) -> None:
    """Push keys with a version each, then list the versions as their entries leave."""
    for k in range(len(keys)):
        entries[push(entries, 0, k, keys[k], k)].version = 100 + k
    for k in range(len(keys)):
        order[k] = entries[0].version
        pop(entries, 0, len(keys) - k)


@pytest.mark.parametrize("dtype", [ENTRY, VERSIONED], ids=["plain", "versioned"])
@given(turns=st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=1))
def test_entries_leave_by_key_then_code(dtype: Any, turns: list[tuple[int, bool]]) -> None:
    keys, kept = np.array([key for key, _ in turns], float), np.array([each for _, each in turns])
    order = np.zeros(len(turns), np.int64)
    entries = np.zeros(BASE + len(turns), dtype)
    _turn(entries, BASE, keys, kept, order)
    heap: list[tuple[int, int]] = []
    expected = []
    for code, (key, is_kept) in enumerate(turns):
        heapq.heappush(heap, (key, code))
        if not is_kept:
            expected.append(heapq.heappop(heap)[1])
    expected += [heapq.heappop(heap)[1] for _ in range(len(heap))]
    assert order.tolist() == expected
    assert not entries[:BASE].view(np.uint8).any()


@given(st.lists(st.integers(0, 4), min_size=1))
def test_further_fields_stay_with_their_entries(keys: list[int]) -> None:
    order = np.zeros(len(keys), np.int64)
    _version(np.zeros(len(keys), VERSIONED), np.array(keys, float), order)
    by_key = sorted(range(len(keys)), key=lambda code: (keys[code], code))
    assert order.tolist() == [100 + code for code in by_key]
