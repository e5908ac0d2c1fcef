"""Shards of dense tensors: which numbers each holder has, and the buffers in which they travel.

A tensor's numbers stand in a row, in the order of its storage, whatever its strides. Holder h of n
has a run of ceil(size / n) of them, the last ones fewer or none. A collective moves the shards of
several tensors of one type as one buffer with a row for each holder, every shard filled up to the
length of the longest with zeros. Knows nothing of ranks.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch

from meshwright.capture.stride import is_dense
from meshwright.execute.cut.cut import WHOLE, AnyCut, Cut, pieces
from meshwright.execute.traced import Layout
from meshwright.program.piece import bounds, shard_length

Buffers = dict[torch.dtype, torch.Tensor]
"""What travels, by the type of its numbers."""


@dataclass(frozen=True, slots=True)
class Share:
    """Which numbers of a tensor a rank holds: its experts, of these a team member's part, and of
    that a holder's row."""

    cut: AnyCut = WHOLE
    width: int = 1
    member: int = 0
    holders: int = 1
    holder: int = 0
    experts: int = 1
    """How many replicas hold different experts, which are the first dimension."""
    expert: int = 0

    def part(self, tensor: torch.Tensor) -> torch.Tensor:
        """The member's part of a tensor, dense."""
        if self.experts > 1:
            tensor = tensor.chunk(self.experts)[self.expert]
        if not isinstance(self.cut, Cut):
            return tensor
        return pieces(tensor, self.cut, self.width, self.member).contiguous()

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """What the rank holds of a dense tensor."""
        part = self.part(tensor)
        return part if self.holders == 1 else self.row(part)

    def row(self, part: torch.Tensor) -> torch.Tensor:
        """The holder's row of a dense part."""
        start, stop = bounds(part.numel(), self.holders, self.holder)
        return part.as_strided((stop - start,), (1,), part.storage_offset() + start)


def storage_row(tensor: torch.Tensor) -> torch.Tensor:
    """A dense tensor's numbers in the order of its storage: a view."""
    assert is_dense(tensor.shape, tensor.stride()), "only dense tensors are divided"
    return tensor.as_strided((tensor.numel(),), (1,))


def pack(
    tensors: Sequence[torch.Tensor], holders: int, layouts: Sequence[Layout] | None = None
) -> Buffers:
    """Whole tensors as the buffers of a reduce-scatter, of shape (holders, numbers of a row).

    `layouts` are those of the weights that the tensors are gradients of, whose order of storage
    counts; None: the tensors' own.
    """
    buffers: Buffers = {}
    places = list(_places([(each.dtype, each.numel()) for each in tensors], holders))
    widths = {dtype: at + length for dtype, at, length in places}  # the last one's end
    for dtype, width in widths.items():
        device = next(each.device for each in tensors if each.dtype == dtype)
        buffers[dtype] = torch.empty((holders, width), dtype=dtype, device=device)
    for k, (dtype, at, length) in enumerate(places):
        layout = layouts[k] if layouts else None
        _fill_from(buffers[dtype][:, at : at + length], tensors[k], layout)
    return buffers


def unpack_shards(
    rows: Mapping[torch.dtype, torch.Tensor], layouts: Sequence[Layout], holders: int, holder: int
) -> list[torch.Tensor]:
    """The shards of one holder: views of the rows that a reduce-scatter gave it."""
    sizes = [_size_of(layout) for layout in layouts]
    shards = []
    for (dtype, size), (_, at, _) in zip(sizes, _places(sizes, holders), strict=True):
        start, stop = bounds(size, holders, holder)
        shards.append(rows[dtype][at : at + stop - start])
    return shards


def pack_shards(shards: Sequence[torch.Tensor], layouts: Sequence[Layout], holders: int) -> Buffers:
    """One holder's shards as its rows of an all-gather, filled up with zeros."""
    sizes = [_size_of(layout) for layout in layouts]
    pieces: dict[torch.dtype, list[torch.Tensor]] = {}
    for (dtype, _, length), shard in zip(_places(sizes, holders), shards, strict=True):
        row = pieces.setdefault(dtype, [])
        row.append(shard)
        if len(shard) < length:
            row.append(shard.new_zeros(length - len(shard)))
    return {dtype: torch.cat(row) for dtype, row in pieces.items()}


def unpack(gathered: Mapping[torch.dtype, torch.Tensor], targets: Sequence[torch.Tensor]) -> None:
    """Fill dense tensors from the buffers that an all-gather made, each by one copy."""
    sizes = [(each.dtype, each.numel()) for each in targets]
    holders = next(iter(gathered.values())).shape[0] if gathered else 1
    for target, (dtype, at, length) in zip(targets, _places(sizes, holders), strict=True):
        _read_columns(gathered[dtype][:, at : at + length], storage_row(target))


def _size_of(layout: Layout) -> tuple[torch.dtype, int]:
    return layout.dtype, prod(layout.shape)


def _fill_from(columns: torch.Tensor, tensor: torch.Tensor, layout: Layout | None) -> None:
    """Write a tensor's numbers in the order of a layout's storage.

    One in another order is written by one copy where shards are whole rows of it, else by two.
    """
    if layout is None or tuple(tensor.stride()) == layout.stride:
        _fill_columns(columns, storage_row(tensor))
        return
    steps = sorted(range(tensor.dim()), key=lambda dim: (-layout.stride[dim], dim))
    ordered = tensor.permute(steps)
    if len(ordered) % len(columns) == 0 and tensor.numel():
        apart = ordered.reshape(len(columns), -1, *ordered.shape[1:])
        columns.view(apart.shape).copy_(apart)
        return
    same = torch.empty_strided(
        layout.shape, layout.stride, dtype=tensor.dtype, device=tensor.device
    ).copy_(tensor)
    _fill_columns(columns, storage_row(same))


def _places(
    sizes: Sequence[tuple[torch.dtype, int]], holders: int
) -> Iterator[tuple[torch.dtype, int, int]]:
    """By tensor: its type, where its shard begins in a row of that type, and how long it is."""
    used: dict[torch.dtype, int] = {}
    for dtype, size in sizes:
        at, length = used.get(dtype, 0), shard_length(size, holders)
        used[dtype] = at + length
        yield dtype, at, length


def _fill_columns(columns: torch.Tensor, row: torch.Tensor) -> None:
    """Write a row of numbers, cut into rows of the columns' width; zeros after its end."""
    full, rest = _cut(columns, row)
    if full:
        columns[:full].copy_(row[: full * columns.shape[1]].view(full, -1))
    if full < len(columns):
        columns[full, :rest].copy_(row[len(row) - rest :])
        columns[full, rest:].zero_()
        columns[full + 1 :].zero_()


def _read_columns(columns: torch.Tensor, row: torch.Tensor) -> None:
    """The other way round."""
    full, rest = _cut(columns, row)
    if full:
        row[: full * columns.shape[1]].view(full, -1).copy_(columns[:full])
    if rest:
        row[len(row) - rest :].copy_(columns[full, :rest])


def _cut(columns: torch.Tensor, row: torch.Tensor) -> tuple[int, int]:
    """How many rows of the columns are full, and the numbers in the one after."""
    width = columns.shape[1]
    return divmod(len(row), width) if width else (0, 0)
