"""Views of shards are shards of views."""

import math
from itertools import pairwise
from typing import Any

import pytest
import torch
from cut_oracle import check_op, operand
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwright.execute.cut.call import Uncut
from meshwright.execute.cut.cut import TERMS, AnyCut, Cut, pieces, plain_cut, through_view
from meshwright.execute.cut.table import cut_call

aten = torch.ops.aten


def test_heads_of_a_fused_projection_are_followed() -> None:
    # (3 x 4 x 5) columns of query, key and value: each segment has 4 heads of 5 features
    fused = torch.randn(2, 7, 60)
    cut = Cut.of(2, (20, 20, 20))
    shape = [2, 7, 3, 4, 5]
    check_op(aten.view.default, operand(fused, cut), shape, expect=plain_cut(3, 4))
    back = operand(fused.view(shape), plain_cut(3, 4))
    check_op(aten.view.default, back, [2, 7, 60], expect=cut)
    check_op(aten.view.default, back, [14, -1], expect=Cut.of(1, (20, 20, 20)))
    parts = check_op(aten.split.Tensor, operand(fused, cut), 20, 2)
    assert parts == (plain_cut(2, 20),) * 3
    joined = [operand(each, plain_cut(2, 20)) for each in torch.split(fused, 20, 2)]
    check_op(aten.cat.default, joined, -1, expect=cut)


def test_tokens_of_samples_are_followed() -> None:
    tokens = torch.randn(3, 8, 5)
    flat = Cut.of(0, (8, 8, 8))
    check_op(aten.view.default, operand(tokens, plain_cut(1, 8)), [24, 5], width=4, expect=flat)
    check_op(
        aten.view.default, operand(tokens.view(24, 5), flat), [3, 8, 5], width=4,
        expect=plain_cut(1, 8),
    )  # fmt: skip
    check_op(
        aten.view.default, operand(tokens, plain_cut(0, 3)), [24, 5], width=3,
        expect=plain_cut(0, 24),
    )  # fmt: skip


def test_a_range_that_one_team_has_cut_is_cut_by_another() -> None:
    """Of a sample's 8 tokens a context team of 4 has two each, and `sequence` cuts those again."""
    tokens = torch.randn(3, 8, 5)
    whole = operand(tokens, plain_cut(1, 8))
    first = cut_call(aten.slice.Tensor, (whole, 1, 0, 8), {}, tokens, 4, 0)
    own = operand(tokens[:, :2], plain_cut(1, 2))
    second = cut_call(first.target, (own, *first.args[1:]), {}, tokens[:, :2], 2, 1)
    assert first.cuts == plain_cut(1, 8)
    assert second.cuts == plain_cut(1, 2)


def test_grouped_projections_have_segments_of_different_sizes() -> None:
    # 4 query heads and 2 key and value heads of 3 features
    cut = Cut.of(1, (12, 6, 6))
    fused = operand(torch.randn(5, 24), cut)
    check_op(aten.view.default, fused, [5, 8, 3], expect=Cut.of(1, (4, 2, 2)))
    cuts = check_op(aten.split_with_sizes.default, fused, [12, 6, 6], 1)
    assert cuts == (plain_cut(1, 12), plain_cut(1, 6), plain_cut(1, 6))
    check_op(aten.slice.Tensor, fused, 1, 12, 24, expect=Cut.of(1, (6, 6)))


def test_uneven_dimensions_stay_by_themselves() -> None:
    scores = operand(torch.randn(6, 11), plain_cut(1, 11))
    check_op(aten.view.default, scores, [2, 3, 11], expect=plain_cut(2, 11))
    check_op(aten.view.default, scores, [6, 1, 11], expect=plain_cut(2, 11))
    check_op(aten.t.default, scores, expect=plain_cut(0, 11))
    with pytest.raises(Uncut, match=r"aten\.view\.default: .*Cut\(1: 11\)"):
        check_op(aten.view.default, scores, [66])


def test_a_cut_through_rows_is_refused() -> None:
    # of 2 x 6 numbers four members have a half of a row each
    with pytest.raises(Uncut, match="a group of 4"):
        check_op(aten.view.default, operand(torch.randn(12), plain_cut(0, 12)), [2, 6], width=4)


def test_numbers_seen_as_another_type_are_refused() -> None:
    with pytest.raises(Uncut, match="another type"):
        check_op(aten.view.dtype, operand(torch.randn(4, 4), plain_cut(0, 4)), torch.int32)


@st.composite
def reshapes(draw: st.DrawFn) -> tuple[int, list[int], list[int], Cut]:
    """A width, two shapes of as many entries, and a cut of the first."""
    width = draw(st.sampled_from([2, 3]))
    factors = draw(st.lists(st.sampled_from([1, 2, 3, width, 2 * width]), min_size=2, max_size=5))
    shapes = []
    for _ in range(2):
        ends = sorted(draw(st.sets(st.integers(1, len(factors) - 1))))
        bounds = [0, *ends, len(factors)]
        shapes.append([math.prod(factors[a:b]) for a, b in pairwise(bounds)])
    old, new = shapes
    dims = [dim for dim, size in enumerate(old) if size % width == 0]
    dim = draw(st.sampled_from(dims)) if dims else 0
    size = old[dim]
    counts = [each for each in range(1, size + 1) if size % (each * width) == 0]
    count = draw(st.sampled_from(counts)) if counts else 1
    return width, old, new, Cut(dim, ((count, size // count),))


@given(reshapes())
@settings(max_examples=300, deadline=None)
def test_a_cut_is_followed_through_a_view_or_there_is_none(
    case: tuple[int, list[int], list[int], Cut],
) -> None:
    width, old, new, cut = case
    tensor = torch.arange(math.prod(old)).view(old)
    found = through_view(cut, old, new, width)
    if found is not None:
        check_op(aten.view.default, operand(tensor, cut), new, width=width, expect=found)
        assert through_view(found, new, old, width) == cut
        return
    # Brute force: no cut of the new shape gives members these numbers in this order.
    for dim, size in enumerate(new):
        for count in range(1, size + 1):
            other = Cut(dim, ((count, size // count),))
            if size % count == 0 and other.divides(width) and cut.divides(width):
                assert not _are_same(tensor, cut, tensor.view(new), other, width)


def _are_same(one: torch.Tensor, cut: AnyCut, two: torch.Tensor, other: AnyCut, width: int) -> bool:
    return all(
        pieces(one, cut, width, each).flatten().tolist()
        == pieces(two, other, width, each).flatten().tolist()
        for each in range(width)
    )


@st.composite
def moves(draw: st.DrawFn) -> list[tuple[Any, tuple[Any, ...]]]:
    """A sequence of ops on a tensor of four dimensions."""
    found: list[tuple[Any, tuple[Any, ...]]] = []
    for _ in range(draw(st.integers(1, 4))):
        kind = draw(st.sampled_from(["permute", "transpose", "unsqueeze", "squeeze", "split",
                                     "slice", "select", "roll", "flip", "unbind"]))  # fmt: skip
        found.append((kind, (draw(st.integers(0, 3)), draw(st.permutations(range(4))))))
    return found


@given(moves(), st.integers(0, 3), st.sampled_from([2, 3]))
@settings(max_examples=200, deadline=None)
def test_sequences_of_moves_are_followed(
    chosen: list[tuple[Any, tuple[Any, ...]]], dim: int, width: int
) -> None:
    tensor: Any = torch.randn(6, 12, 6, 1)
    if dim == 3:
        dim = 1
    cut: Any = Cut.of(dim, (6, 6)) if dim == 1 else plain_cut(dim, 6)
    for kind, (number, order) in chosen:
        rank = tensor.dim()
        one = number % rank
        first = operand(tensor, cut)
        calls: dict[str, tuple[Any, tuple[Any, ...]]] = {
            "permute": (aten.permute.default, (first, [each for each in order if each < rank]))
            if rank <= 4
            else (aten.alias.default, (first,)),
            "transpose": (aten.transpose.int, (first, one, -1)),
            "unsqueeze": (aten.unsqueeze.default, (first, one)),
            "squeeze": (aten.squeeze.default, (first,)),
            "split": (aten.split.Tensor, (first, max(tensor.shape[one] // 2, 1), one)),
            "slice": (aten.slice.Tensor, (first, one, tensor.shape[one] // 2, 2**62)),
            "select": (aten.select.int, (first, one, 0)),
            "roll": (aten.roll.default, (first, [1], [one])),
            "flip": (aten.flip.default, (first, [one])),
            "unbind": (aten.unbind.int, (first, one)),
        }
        target, args = calls[kind]
        try:
            made = check_op(target, *args, width=width)
        except Uncut:
            assert cut.dim == one  # only ops along the cut dimension are refused
            return
        value = target(*(each.value if each is first else each for each in args))
        tensor, cut = (value[-1], made[-1]) if isinstance(value, list | tuple) else (value, made)


def test_other_views_follow_the_cut() -> None:
    x, cut = torch.randn(4, 1, 6), plain_cut(0, 4)
    check_op(aten.expand.default, operand(x, cut), [-1, 5, 6], expect=cut)
    check_op(aten.expand.default, operand(x, cut), [2, 4, 5, 6], expect=plain_cut(1, 4))
    check_op(aten.squeeze.dim, operand(x, cut), 1, expect=cut)
    check_op(aten.squeeze.dims, operand(x, plain_cut(2, 6)), [1], expect=plain_cut(1, 6))
    two = operand(torch.randn(2, 3), plain_cut(0, 2))
    check_op(aten.squeeze.default, two, expect=plain_cut(0, 2))  # a shard has one row
    check_op(aten.constant_pad_nd.default, operand(x, cut), [0, 2, 1, 0], 3.0, expect=cut)
    check_op(aten.slice_backward.default, operand(x, cut), [4, 1, 9], 2, 1, 7, 1, expect=cut)
    for start, end, around in ((0, 6, (6, 4)), (4, 10, (4, 6)), (2, 8, (2, 6, 2))):
        given = operand(torch.randn(3, 6), plain_cut(1, 6))
        args = ([3, 10], 1, start, end, 1)
        check_op(aten.slice_backward.default, given, *args, expect=Cut.of(1, around))
    select = operand(torch.randn(4, 6), plain_cut(1, 6))
    check_op(aten.select_backward.default, select, [4, 3, 6], 1, 2, expect=plain_cut(2, 6))
    check_op(aten.tril.default, operand(torch.randn(4, 3, 3), cut), expect=cut)
    check_op(aten.chunk.default, operand(torch.randn(4, 6), Cut.of(1, (2, 2, 2))), 3, 1)
    for target in (aten.detach.default, aten.alias.default, aten.clone.default):
        check_op(target, operand(x, cut), expect=cut)
    check_op(aten._to_copy.default, operand(x, cut), dtype=torch.float64, expect=cut)
    check_op(aten.expand.default, operand(x, TERMS), [4, 5, 6], expect=TERMS)


def test_tensors_are_joined_beside_and_along_the_cut() -> None:
    x, y = torch.randn(4, 6), torch.randn(4, 6)
    beside = [operand(x, plain_cut(0, 4)), operand(y)]
    check_op(aten.cat.default, beside, 1, expect=plain_cut(0, 4))
    check_op(aten.cat.default, beside, 0, expect=Cut.of(0, (4, 4)))
    check_op(aten.stack.default, beside, 1, expect=plain_cut(0, 4))
    check_op(aten.stack.default, beside, 0, expect=plain_cut(1, 4))
    none = operand(torch.empty(0))
    check_op(aten.cat.default, [none, operand(x, plain_cut(1, 6))], 0, expect=plain_cut(1, 6))
    with pytest.raises(Uncut):
        check_op(aten.cat.default, [operand(x, plain_cut(0, 4)), operand(y, TERMS)], 0)
    with pytest.raises(Uncut):
        check_op(aten.cat.default, beside, 0, width=3)
