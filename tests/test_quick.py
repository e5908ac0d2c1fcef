"""Which cases are tried: held against the definition of a covering of pairs."""

from itertools import combinations, product

from hypothesis import given
from hypothesis import strategies as st

from quick import pairwise


@given(st.lists(st.integers(1, 7), min_size=2, max_size=4))
def test_any_two_values_meet_in_few_rows(sizes: list[int]) -> None:
    factors = [range(size) for size in sizes]
    rows = pairwise(*factors)
    for one, other in combinations(range(len(sizes)), 2):
        assert {(row[one], row[other]) for row in rows} == set(
            product(factors[one], factors[other])
        )
    first, second = sorted(sizes)[-2:]
    assert first * second <= len(rows) <= 2 * first * second + len(sizes)
