"""Which cases of a test with many are for `scripts/test`, and which for `scripts/test-all`."""

from collections.abc import Iterable, Sequence
from itertools import combinations, product
from typing import Any

import pytest


def few(values: Iterable[Any], *quick: Any) -> list[Any]:
    """All values as parameters, marked slow unless they are among those that are `quick`."""
    found = list(values)
    missing = [each for each in quick if each not in found]
    assert not missing, f"no cases of this test: {missing}"
    return [each if each in quick else pytest.param(each, marks=pytest.mark.slow) for each in found]


def pairwise(*factors: Iterable[Any]) -> list[tuple[Any, ...]]:
    """Rows of a value a factor in which any two values of two factors stand together somewhere.

    Most faults need one or two settings to meet, and these rows are a tenth of the product of four
    factors. Greedy and always the same: each row begins with the first pair that is still missing,
    and every other factor takes the value that brings in the most of those that are.
    """
    choices: list[Sequence[Any]] = [list(each) for each in factors]
    missing = dict.fromkeys(
        ((one, first), (other, second))
        for one, other in combinations(range(len(choices)), 2)
        for first, second in product(range(len(choices[one])), range(len(choices[other])))
    )
    rows = []
    while missing:
        row = dict(next(iter(missing)))
        for factor in range(len(choices)):
            if factor in row:
                continue
            row[factor] = max(
                range(len(choices[factor])),
                key=lambda value, factor=factor: sum(  # type: ignore[misc]
                    tuple(sorted([(factor, value), each])) in missing for each in row.items()
                ),
            )
        for pair in combinations(sorted(row.items()), 2):
            missing.pop(pair, None)
        rows.append(tuple(choices[factor][row[factor]] for factor in range(len(choices))))
    return rows
