"""Rows that entries are gathered under."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from meshwright.kernel.row import gather_rows, row_starts


@given(st.integers(1, 6).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(0, n - 1)))))
def test_a_row_has_its_entries_in_their_order(case: tuple[int, list[int]]) -> None:
    num_rows, rows = case
    order, start = gather_rows(np.array(rows, dtype=np.int32), num_rows)
    found = [order[start[row] : start[row + 1]].tolist() for row in range(num_rows)]
    assert found == [[k for k, each in enumerate(rows) if each == row] for row in range(num_rows)]


def test_rows_without_entries_begin_where_they_end() -> None:
    assert row_starts(np.array([1, 1, 3]), 5).tolist() == [0, 0, 2, 2, 3, 3]
