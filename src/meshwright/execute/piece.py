"""Pieces of tensors: which numbers of a tensor somebody has, and which two have in common.

A piece is a range, in some order of storage, of a box of a tensor: a shard of what a member of a
tensor team holds, for instance. Any range of a box falls into a few boxes, so that what two pieces
share, whatever their boxes and orders are, is boxes again. Knows nothing of ranks and files.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

import torch

from meshwright.execute.shard import bounds


@dataclass(frozen=True, slots=True)
class Box:
    """Numbers of a tensor whose index in each dimension is in a range."""

    offset: tuple[int, ...]
    """The index of the first one."""
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """How many numbers."""
        return prod(self.shape)

    def within(self, outer: "Box") -> tuple[slice, ...]:
        """Where it lies in a box around it."""
        starts = (own - other for own, other in zip(self.offset, outer.offset, strict=True))
        return tuple(slice(at, at + size) for at, size in zip(starts, self.shape, strict=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A range of a box of a tensor, whose numbers stand in some order."""

    box: Box
    order: tuple[int, ...]
    """The dimensions, from the slowest to the fastest."""
    start: int
    stop: int

    @property
    def is_box(self) -> bool:
        """Whether it is all of its box."""
        return (self.start, self.stop) == (0, self.box.size)

    @property
    def size(self) -> int:
        """How many numbers."""
        return self.stop - self.start


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a rank has of a tensor."""

    shape: tuple[int, ...]
    """Of the whole tensor."""
    piece: Piece

    @property
    def is_whole(self) -> bool:
        """Whether that is all of it."""
        return self.piece.is_box and self.piece.box.shape == self.shape


def whole_holding(shape: Sequence[int]) -> Holding:
    """All of a tensor."""
    return Holding(shape=tuple(shape), piece=box_piece(shape))


def box_piece(shape: Sequence[int], offset: Sequence[int] | None = None) -> Piece:
    """All of a box; without an offset that is all of a tensor."""
    box = Box(tuple(offset) if offset is not None else (0,) * len(shape), tuple(shape))
    return Piece(box=box, order=tuple(range(len(shape))), start=0, stop=box.size)


def shard_piece(box: Box, stride: Sequence[int], holders: int, holder: int) -> Piece:
    """The shard of a holder of a box that lies in storage with these strides."""
    start, stop = bounds(box.size, holders, holder)
    return Piece(box=box, order=storage_order(stride), start=start, stop=stop)


def storage_order(stride: Sequence[int]) -> tuple[int, ...]:
    """The dimensions of a dense tensor, from the slowest to the fastest."""
    return tuple(sorted(range(len(stride)), key=lambda dim: (-stride[dim], dim)))


def cut_boxes(piece: Piece) -> Iterator[tuple[Box, int]]:
    """Boxes that a piece is made of, each with the place of its first number in the piece.

    Every box is a run of numbers: at most one less than twice as many as there are dimensions.
    """
    sizes = tuple(piece.box.shape[dim] for dim in piece.order)
    for first, shape, at in _cut_run(sizes, piece.start, piece.stop):
        offset, extent = [0] * len(sizes), [0] * len(sizes)
        for dim, begin, size in zip(piece.order, first, shape, strict=True):
            offset[dim], extent[dim] = piece.box.offset[dim] + begin, size
        yield Box(tuple(offset), tuple(extent)), at - piece.start


def _cut_run(
    sizes: tuple[int, ...], start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """First index, shape and place of the boxes of a range, slowest dimension first."""
    if start >= stop:
        return
    if not sizes:
        yield (), (), start
        return
    inner = prod(sizes[1:])
    row, end = start // inner, stop // inner
    if start % inner:  # the rest of a row
        stops = min((row + 1) * inner, stop)
        yield from _cut_row(sizes, row, inner, start, stops)
        start, row = stops, row + 1
    if row < end:
        zeros = (0,) * (len(sizes) - 1)
        yield (row, *zeros), (end - row, *sizes[1:]), row * inner
        start = end * inner
    yield from _cut_row(sizes, end, inner, start, stop)


def _cut_row(
    sizes: tuple[int, ...], row: int, inner: int, start: int, stop: int
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...], int]]:
    base = row * inner
    for first, shape, at in _cut_run(sizes[1:], start - base, stop - base):
        yield (row, *first), (1, *shape), base + at


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Overlap:
    """A box that a wanted piece has in common with a box of one that there is."""

    source: int
    """The number of the piece that there is."""
    source_box: Box
    source_at: int
    """Where the numbers of that box begin in the piece."""
    target_box: Box
    target_at: int
    box: Box


def find_overlaps(wanted: Piece, pieces: Iterable[Piece]) -> tuple[list[Overlap], list[Box]]:
    """From where each number of a piece can be had, and the boxes that nobody has.

    Where pieces overlap the first one counts.
    """
    missing = [(box, box, at) for box, at in cut_boxes(wanted) if box.size]
    found: list[Overlap] = []
    for source, piece in enumerate(pieces):
        if not missing:
            break
        if not any(intersect(left, piece.box) for left, _, _ in missing):
            continue
        for own, own_at in cut_boxes(piece):
            rest: list[tuple[Box, Box, int]] = []
            for left, target, at in missing:
                common = intersect(left, own)
                if common is None:
                    rest.append((left, target, at))
                    continue
                found.append(
                    Overlap(
                        source=source,
                        source_box=own,
                        source_at=own_at,
                        target_box=target,
                        target_at=at,
                        box=common,
                    )
                )
                rest += [(each, target, at) for each in subtract(left, common)]
            missing = rest
    return found, [left for left, _, _ in missing]


def run_of(box: Box, part: Box, order: Sequence[int]) -> tuple[int, int]:
    """From the first number of a part of a box to the last, where the box is a run in an order."""
    first = last = 0
    for dim in order:
        begin = part.offset[dim] - box.offset[dim]
        first = first * box.shape[dim] + begin
        last = last * box.shape[dim] + begin + part.shape[dim] - 1
    return first, last + 1


def view_run(run: torch.Tensor, box: Box, part: Box, order: Sequence[int]) -> torch.Tensor:
    """A part of a box as a tensor, from the numbers of `run_of`: a view."""
    stride = [0] * len(order)
    step = run.stride(0)
    for dim in reversed(order):
        stride[dim] = step
        step *= box.shape[dim]
    return run.as_strided(part.shape, stride)


def view_part(data: torch.Tensor, piece: Piece, overlap: Overlap) -> torch.Tensor:
    """The part of a wanted piece's numbers that an overlap fills: a view.

    The numbers are a row or, of all of a box, a tensor of its shape.
    """
    if data.shape == piece.box.shape and piece.is_box:
        return data[overlap.box.within(piece.box)]
    first, after = run_of(overlap.target_box, overlap.box, piece.order)
    run = data[overlap.target_at + first : overlap.target_at + after]
    return view_run(run, overlap.target_box, overlap.box, piece.order)


def stored_form(data: torch.Tensor, piece: Piece) -> torch.Tensor:
    """The numbers of a piece as files have them: all of a box in its shape, a range as a row."""
    if not piece.is_box or data.shape == piece.box.shape:
        assert data.numel() == piece.size
        return data
    return view_run(data, piece.box, piece.box, piece.order)
