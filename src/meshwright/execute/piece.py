"""Boxes of tensors: which numbers of a tensor somebody has, and which two have in common.

What a rank holds of a tensor, a member's part of a team's tensor or a holder's shard of such a
part, falls into a few boxes, whatever the order in which its numbers stand. What two hold in common
is boxes again. Knows nothing of ranks and files.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod

import torch

from meshwright.capture.stride import dense_stride
from meshwright.execute.cut.cut import Cut, local_shape, strips
from meshwright.execute.shard import Share, bounds


@dataclass(frozen=True, slots=True)
class Box:
    """Numbers of a tensor whose index in each dimension is in a range."""

    offset: tuple[int, ...]
    """The index of its first number in each dimension."""
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers the box has."""
        return prod(self.shape)

    def within(self, outer: "Box") -> tuple[slice, ...]:
        """Where it lies in a box around it."""
        starts = (own - other for own, other in zip(self.offset, outer.offset, strict=True))
        return tuple(slice(at, at + size) for at, size in zip(starts, self.shape, strict=True))


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


def whole_box(shape: Sequence[int]) -> Box:
    """All of a tensor."""
    return Box((0,) * len(shape), tuple(shape))


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


def cut_run(shape: Sequence[int], order: Sequence[int], start: int, stop: int) -> Iterator[Box]:
    """Boxes that a range of a tensor's numbers is made of, in their order.

    The numbers are counted in an order of the dimensions, from the slowest to the fastest. The
    boxes are at most one less than twice as many as there are dimensions.
    """
    sizes = tuple(shape[dim] for dim in order)
    if (start, stop) == (0, prod(sizes)):
        yield whole_box(shape)
        return
    for first, extent in _cut_run(sizes, start, stop):
        offset, found = [0] * len(sizes), [0] * len(sizes)
        for dim, begin, size in zip(order, first, extent, strict=True):
            offset[dim], found[dim] = begin, size
        yield Box(tuple(offset), tuple(found))


def _cut_run(
    sizes: tuple[int, ...], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """First index and shape of the boxes of a range, slowest dimension first."""
    if start >= stop:
        return
    if not sizes:
        yield (), ()
        return
    inner, zeros = prod(sizes[1:]), (0,) * (len(sizes) - 1)
    while start < stop:
        row, place = divmod(start, inner)
        whole = 0 if place else (stop - start) // inner
        end = start + whole * inner if whole else min((row + 1) * inner, stop)
        if whole:
            yield (row, *zeros), (whole, *sizes[1:])
        else:  # a part of a row
            for first, shape in _cut_run(sizes[1:], place, end - row * inner):
                yield (row, *first), (1, *shape)
        start = end


def intersect(one: Box, other: Box) -> Box | None:
    """What two boxes have in common; None: nothing."""
    ends = [
        (max(a, b), min(a + m, b + n))
        for a, m, b, n in zip(one.offset, one.shape, other.offset, other.shape, strict=True)
    ]
    if any(low >= high for low, high in ends):
        return None
    return Box(tuple(low for low, _ in ends), tuple(high - low for low, high in ends))


def subtract(box: Box, hole: Box) -> Iterator[Box]:
    """What is left of a box without another that lies in it."""
    offset, shape = list(box.offset), list(box.shape)
    for dim, (at, size) in enumerate(zip(hole.offset, hole.shape, strict=True)):
        before, after = at - offset[dim], offset[dim] + shape[dim] - at - size
        for begin, count in ((offset[dim], before), (at + size, after)):
            if count > 0:
                yield Box(
                    (*offset[:dim], begin, *offset[dim + 1 :]),
                    (*shape[:dim], count, *shape[dim + 1 :]),
                )
        offset[dim], shape[dim] = at, size


@dataclass(frozen=True, slots=True)
class Overlap:
    """A box that one of the wanted boxes has in common with one that there is."""

    wanted: int
    """The number of the wanted box."""
    source: int
    """The number of the box that there is."""
    box: Box


def find_overlaps(wanted: Iterable[Box], boxes: Iterable[Box]) -> tuple[list[Overlap], list[Box]]:
    """From where each number of some boxes can be had, and the boxes that nobody has.

    Where those that there are overlap, the first one counts.
    """
    missing = [(box, number) for number, box in enumerate(wanted) if box.size]
    found: list[Overlap] = []
    for source, own in enumerate(boxes):
        if not missing:
            break
        rest: list[tuple[Box, int]] = []
        for left, number in missing:
            common = intersect(left, own)
            if common is None:
                rest.append((left, number))
                continue
            found.append(Overlap(number, source, common))
            rest += [(each, number) for each in subtract(left, common)]
        missing = rest
    return found, [left for left, _ in missing]
