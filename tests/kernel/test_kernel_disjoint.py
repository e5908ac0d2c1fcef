"""Disjoint sets, plain and in arrays, against components found by repeated relabelling."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwright.kernel.disjoint import DisjointSets
from meshwright.kernel.root import join_pairs, roots_of

Pairs = list[tuple[int, int]]


@st.composite
def joined_pairs(draw: st.DrawFn) -> tuple[int, Pairs]:
    """A number of members, and pairs of them."""
    count = draw(st.integers(1, 12))
    member = st.integers(0, count - 1)
    return count, draw(st.lists(st.tuples(member, member), max_size=15))


def lowest_of_component(count: int, pairs: Pairs) -> list[int]:
    """Relabels by the lower label until nothing changes."""
    label = list(range(count))
    for _ in range(count):
        for one, other in pairs:
            label[one] = label[other] = min(label[one], label[other])
    return label


@given(joined_pairs())
def test_a_set_is_known_by_its_lowest_member(case: tuple[int, Pairs]) -> None:
    count, pairs = case
    sets = DisjointSets(range(count))
    for one, other in pairs:
        sets.join(one, other)
    assert sets.roots() == lowest_of_component(count, pairs)
    assert [sets.find(member) for member in range(count)] == sets.roots()


@given(joined_pairs())
def test_arrays_are_joined_as_sets_are(case: tuple[int, Pairs]) -> None:
    count, pairs = case
    parent = np.arange(count, dtype=np.int32)
    ends = np.array(pairs, dtype=np.int32).reshape(-1, 2)
    join_pairs(parent, ends[:, 0].copy(), ends[:, 1].copy())
    assert parent.tolist() == lowest_of_component(count, pairs)


def test_a_root_leads_another_set_whatever_its_number() -> None:
    sets = DisjointSets((3, 5, 9))
    sets.lead(9, 3)
    assert sets.roots() == [9, 5, 9]
    assert 3 in sets
    assert 4 not in sets
    with pytest.raises(KeyError):
        sets.find(4)


def test_roots_are_found_along_chains_of_any_direction() -> None:
    parent = np.array([2, 0, 4, 3, 4], dtype=np.int32)  # 1 -> 0 -> 2 -> 4, and 3 alone
    assert roots_of(parent).tolist() == [4, 4, 4, 3, 4]
