"""What a rank has of a tensor: boxes of it, and where their numbers lie in the rank's memory.

Knows nothing of ranks and files; boxes themselves are `meshwright.program.piece`'s.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from meshwright.capture.stride import dense_stride
from meshwright.execute.cut.cut import Cut, local_shape, strips
from meshwright.execute.shard import Share
from meshwright.program.piece import Box, bounds, cut_run, whole_box


@dataclass(frozen=True, slots=True)
class Tile:
    """A box of a tensor, and where its numbers are in what a rank has."""

    box: Box
    at: int
    """The place of the first number, counted from the first one that the rank has."""
    stride: tuple[int, ...]

    def view(self, data: torch.Tensor) -> torch.Tensor:
        """Its numbers in the rank's tensor: a view."""
        return data.as_strided(self.box.shape, self.stride, data.storage_offset() + self.at)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorHolding:
    """What a rank has of a tensor."""

    shape: tuple[int, ...]
    """The shape of the whole tensor."""
    tiles: tuple[Tile, ...]

    @property
    def boxes(self) -> tuple[Box, ...]:
        """The boxes that it is made of; no two of them overlap."""
        return tuple(tile.box for tile in self.tiles)

    @property
    def size(self) -> int:
        """How many numbers the rank has of the tensor."""
        return sum(box.size for box in self.boxes)

    @property
    def is_whole(self) -> bool:
        """Whether that is all of the tensor."""
        return self.boxes == (whole_box(self.shape),)


def whole_holding(tensor: torch.Tensor) -> TensorHolding:
    """All of a tensor, as it lies in memory."""
    shape = tuple(tensor.shape)
    return TensorHolding(shape=shape, tiles=(Tile(whole_box(shape), 0, tuple(tensor.stride())),))


def hold_share(shape: Sequence[int], stride: Sequence[int], share: Share) -> TensorHolding:
    """A share of a dense tensor of these strides.

    A member's part is dense and in the order of its dimensions, as `Share.part` makes it.
    """
    if share.experts > 1:
        count = shape[0] // share.experts
        own = hold_share((count, *shape[1:]), stride, replace(share, experts=1, expert=0))
        moved = tuple(_moved(tile, share.expert * count) for tile in own.tiles)
        return TensorHolding(shape=tuple(shape), tiles=moved)
    shape, dim, ranges = tuple(shape), 0, [(0, shape[0])] if shape else []
    if isinstance(share.cut, Cut):
        dim, ranges = share.cut.dim, list(strips(share.cut, share.width, share.member))
        shape = local_shape(shape, share.cut, share.width, share.member)
        stride = dense_stride(range(len(shape), 0, -1), shape)
    start, stop = bounds(prod(shape), share.holders, share.holder)
    order = sorted(range(len(shape)), key=lambda each: (-stride[each], each))
    tiles: list[Tile] = []
    for local in cut_run(shape, order, start, stop):
        steps = zip(local.offset, stride, strict=True)
        at = sum(index * step for index, step in steps) - start
        tiles += _cut_strips(Tile(local, at, tuple(stride)), dim, ranges)
    whole = list(shape)
    if isinstance(share.cut, Cut):
        whole[dim] = share.cut.size
    return TensorHolding(shape=tuple(whole), tiles=tuple(tiles))


def _moved(tile: Tile, first: int) -> Tile:
    """A tile of some experts, the first of which has this number."""
    offset, *others = tile.box.offset
    return Tile(Box((first + offset, *others), tile.box.shape), tile.at, tile.stride)


def _cut_strips(local: Tile, dim: int, ranges: Sequence[tuple[int, int]]) -> Iterator[Tile]:
    """The tiles of a tile of a part, whose dimension `dim` is made of ranges of the tensor's."""
    if not ranges:
        yield local
        return
    box, begin = local.box, 0
    for first, end in ranges:
        low = max(begin, box.offset[dim])
        high = min(begin + end - first, box.offset[dim] + box.shape[dim])
        if low < high or not box.size:
            offset = (*box.offset[:dim], first + low - begin, *box.offset[dim + 1 :])
            shape = (*box.shape[:dim], max(high - low, 0), *box.shape[dim + 1 :])
            at = local.at + (low - box.offset[dim]) * local.stride[dim]
            yield Tile(Box(offset, shape), at, local.stride)
        begin += end - first
