"""Shards of random tensors travel there and back."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch", reason="execution needs the torch extra")

from torch import Tensor  # noqa: E402

from meshwright.capture.stride import is_dense  # noqa: E402
from meshwright.execute.shard import (  # noqa: E402
    pack,
    pack_shards,
    storage_row,
    unpack,
    unpack_shards,
)
from meshwright.execute.traced import Layout  # noqa: E402
from meshwright.program.piece import bounds, shard_length  # noqa: E402

TYPES = (torch.float32, torch.bfloat16, torch.int64)


@st.composite
def dense_tensors(draw: st.DrawFn) -> Tensor:
    """Of up to four dimensions, in any order of storage."""
    shape = draw(st.lists(st.integers(0, 4), max_size=4))
    order = draw(st.permutations(range(len(shape))))
    dtype = draw(st.sampled_from(TYPES))
    count = torch.Size(shape).numel()
    start = draw(st.integers(0, 50))
    values = torch.arange(start, start + count).to(dtype)
    stored = values.view([shape[dim] for dim in order])
    made: Tensor = stored.permute([order.index(dim) for dim in range(len(shape))])
    return made


def test_seven_numbers_of_three_holders_are_three_three_and_one() -> None:
    assert [bounds(7, 3, holder) for holder in range(3)] == [(0, 3), (3, 6), (6, 7)]
    # two numbers of four holders: ceil(2 / 4) = 1 each, the last two have none
    assert [bounds(2, 4, holder) for holder in range(4)] == [(0, 1), (1, 2), (2, 2), (2, 2)]


@given(st.integers(0, 100), st.integers(1, 20))
def test_bounds_cover_all_numbers_once(size: int, holders: int) -> None:
    found = [bounds(size, holders, holder) for holder in range(holders)]
    assert found[0][0] == 0
    assert found[-1][1] == size
    assert all(before[1] == after[0] for before, after in pairwise(found))
    assert all(0 <= stop - start <= shard_length(size, holders) for start, stop in found)


def test_a_buffer_has_the_shards_of_all_tensors_in_each_holders_row() -> None:
    one, other = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([[4.0, 5.0], [6.0, 7.0]]).t()
    (buffer,) = pack([one, other], 2).values()
    # in storage `other` is 4 5 6 7
    assert buffer.tolist() == [[1.0, 2.0, 4.0, 5.0], [3.0, 0.0, 6.0, 7.0]]


def test_gradients_in_another_order_are_laid_out_as_their_weights() -> None:
    weight = torch.zeros(2, 3).t()
    gradient = torch.arange(6.0).view(3, 2)
    (buffer,) = pack([gradient], 2, [Layout.of(weight)]).values()
    assert buffer.tolist() == [[0.0, 2.0, 4.0], [1.0, 3.0, 5.0]]


def test_only_tensors_without_gaps_are_dense() -> None:
    whole = torch.zeros(4, 6)
    assert is_dense(whole.shape, whole.stride())
    assert is_dense(whole.t().shape, whole.t().stride())
    assert not is_dense((4, 3), (6, 1))
    assert not is_dense((4, 3), (0, 1))
    assert is_dense((1, 3), (77, 1))
    assert is_dense((), ())


@settings(max_examples=150, deadline=None)
@given(st.lists(dense_tensors(), min_size=1, max_size=5), st.integers(1, 9))
def test_shards_come_back_as_the_tensors_they_were(tensors: list[Tensor], holders: int) -> None:
    layouts = [Layout.of(each) for each in tensors]
    buffers = pack(tensors, holders)
    rows = []
    for holder in range(holders):
        own = {dtype: buffer[holder] for dtype, buffer in buffers.items()}
        shards = unpack_shards(own, layouts, holders, holder)
        for tensor, shard in zip(tensors, shards, strict=True):
            start, stop = bounds(tensor.numel(), holders, holder)
            assert torch.equal(shard, storage_row(tensor)[start:stop])
        rows.append(pack_shards(shards, layouts, holders))
    gathered = {dtype: torch.stack([each[dtype] for each in rows]) for dtype in buffers}
    assert all(torch.equal(gathered[dtype], buffers[dtype]) for dtype in buffers)
    made = [layout.empty(gathered[layout.dtype].device) for layout in layouts]
    unpack(gathered, made)
    for tensor, layout, new in zip(tensors, layouts, made, strict=True):
        assert torch.equal(tensor, new)
        assert new.stride() == layout.stride
    targets = [torch.zeros_like(each) for each in tensors]
    unpack(gathered, targets)
    assert all(torch.equal(a, b) for a, b in zip(tensors, targets, strict=True))


def test_shards_are_views_of_the_row_that_arrived() -> None:
    row = torch.arange(3.0)
    layouts = [Layout.of(torch.zeros(3)), Layout.of(torch.zeros(2))]
    first, second = unpack_shards({torch.float32: row}, layouts, 2, 0)
    assert (first.tolist(), second.tolist()) == ([0.0, 1.0], [2.0])
    assert first.data_ptr() == row.data_ptr()


def test_rows_that_lie_as_the_step_wants_them_are_not_copied() -> None:
    batch = torch.arange(24.0).view(6, 4)
    rows = batch[2:4]
    laid = Layout.of(torch.zeros(2, 4)).lay(rows, rows.device)
    assert laid.storage_offset() == 0
    assert laid.untyped_storage().nbytes() == rows.nbytes
    torch.testing.assert_close(laid, rows)
    batch[2, 0] = -1.0
    assert float(laid[0, 0]) == -1.0
    other = Layout.of(torch.zeros(4, 2).t()).lay(rows, rows.device)
    assert other.stride() == (1, 2)
    batch[2, 0] = -2.0
    assert float(other[0, 0]) == -1.0
    kinds = [Layout.of(torch.zeros(2, 4, dtype=torch.float64)).lay(rows, rows.device).dtype]
    assert kinds == [torch.float64]
