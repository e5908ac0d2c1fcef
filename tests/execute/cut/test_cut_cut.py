"""Pieces of a tensor put together are the tensor; what does not divide is refused."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.errors import InputError
from meshwright.execute.cut.cut import (
    TERMS,
    WHOLE,
    AnyCut,
    Cut,
    joined,
    local_shape,
    pieces,
    plain_cut,
)


@st.composite
def cuts(draw: st.DrawFn) -> tuple[int, tuple[int, ...], AnyCut]:
    """A width, a shape and a cut of it."""
    width = draw(st.sampled_from([2, 3, 4]))
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    dim = draw(st.integers(0, len(shape) - 1))
    if draw(st.booleans()):
        shape[dim] = draw(st.integers(1, 13))
        return width, tuple(shape), plain_cut(dim, shape[dim])
    sizes = [width * each for each in draw(st.lists(st.integers(1, 3), min_size=1, max_size=5))]
    shape[dim] = sum(sizes)
    return width, tuple(shape), Cut.of(dim, sizes)


@given(cuts())
@settings(max_examples=200, deadline=None)
def test_joined_pieces_are_the_tensor(case: tuple[int, tuple[int, ...], AnyCut]) -> None:
    width, shape, cut = case
    tensor = torch.randn(shape)
    parts = [pieces(tensor, cut, width, member) for member in range(width)]
    for member, part in enumerate(parts):
        assert tuple(part.shape) == local_shape(shape, cut, width, member)
    assert torch.equal(joined(parts, cut), tensor)


def test_a_member_has_its_part_of_every_segment() -> None:
    # segments 0 1 2 3 | 4 5 | 6 7: the second of two members has the second half of each
    cut = Cut.of(0, (4, 2, 2))
    assert cut.runs == ((1, 4), (2, 2))
    assert pieces(torch.arange(8), cut, 2, 1).tolist() == [2, 3, 5, 7]


def test_uneven_parts_are_those_of_chunk() -> None:
    tensor = torch.arange(101)
    parts = [pieces(tensor, plain_cut(0, 101), 4, member) for member in range(4)]
    assert [part.tolist() for part in parts] == [part.tolist() for part in tensor.chunk(4)]


def test_terms_add_up() -> None:
    tensor = torch.randn(3)
    assert torch.equal(joined([pieces(tensor, TERMS, 2, each) for each in (0, 1)], TERMS), tensor)
    assert pieces(tensor, WHOLE, 2, 1) is tensor


def test_segments_that_do_not_divide_are_refused() -> None:
    with pytest.raises(InputError, match=r"dimension 0 of size 7 must divide by the width 2"):
        pieces(torch.arange(7), Cut.of(0, (4, 3)), 2, 0)
    with pytest.raises(InputError, match=r"must be a cut of a tensor of shape \(7,\)"):
        pieces(torch.arange(7), plain_cut(0, 8), 2, 0)
