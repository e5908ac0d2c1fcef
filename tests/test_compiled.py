"""What kernels are compiled for, and how often."""

from typing import Any

import numba
import numpy as np
import pytest

from meshwright.compiled import compiled, inlined, outlined


@inlined
def _twice(value: Any) -> Any:
    return 2 * value


@outlined
def _fill(values: Any, first: Any, value: Any) -> Any:
    for k in range(first, len(values)):
        values[k] = value
    return first


_uncached: Any = numba.njit
"""A kernel that is compiled in every run: what comes from the cache compiles no helpers."""


@_uncached  # type: ignore[untyped-decorator]
def _call_all(values: Any, narrow: Any) -> Any:
    at = 0  # a constant at first, an integer from then on
    while at < len(values):
        at = _fill(values, at, 1.0) + 1
    at = _fill(values, 2, 3.0) + _fill(values, narrow[0], value=4.0)
    return at + _twice(narrow[0]) + _twice(5) + _twice(at)


def test_what_kernels_call_is_compiled_once_for_all_integers_and_constants() -> None:
    values = np.zeros(4)
    # 2 + 3 are where the last two fills begin; then 2 * 3 + 2 * 5 + 2 * (2 + 3).
    assert _call_all(values, np.array([3], np.int32)) == 5 + 6 + 10 + 10
    assert values.tolist() == [1, 1, 3, 4]
    helpers: list[Any] = [_twice, _fill]
    assert [len(helper.overloads) for helper in helpers] == [1, 1]


def test_floats_and_integers_are_two_types() -> None:
    @outlined
    def half(value: Any) -> Any:
        return value / 2

    kernel = _uncached(lambda one, two: half(one) + half(two))
    assert kernel(3, 4.0) == 3.5
    helper: Any = half
    assert len(helper.overloads) == 2


@pytest.mark.parametrize("helper", [_twice, _fill])
def test_python_cannot_call_a_helper(helper: Any) -> None:
    with pytest.raises(TypeError, match=r"^_(twice|fill) is a helper, which only kernels can call"):
        helper(np.zeros(1), 0, 0.0)


def test_python_can_call_a_kernel() -> None:
    @compiled
    def total(values: Any) -> Any:
        found = 0.0
        for k in range(len(values)):
            found += values[k]
        return found

    assert total(np.array([1.0, 2.0])) == 3.0
