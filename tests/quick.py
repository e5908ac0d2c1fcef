"""Which cases of a test with many are for `scripts/test`; `scripts/test-all` runs all of them."""

from collections.abc import Iterable
from typing import Any

import pytest


def few(values: Iterable[Any], *quick: Any) -> list[Any]:
    """All values as parameters, marked slow unless they are among those that are `quick`."""
    found = list(values)
    missing = [each for each in quick if each not in found]
    assert not missing, f"no cases of this test: {missing}"
    return [each if each in quick else pytest.param(each, marks=pytest.mark.slow) for each in found]
