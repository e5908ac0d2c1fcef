"""Boxes of tensors: which numbers of a tensor somebody has, and which two have in common.

What a device holds of a tensor, a member's part of a team's tensor or a holder's shard of such a
part, falls into a few boxes, whatever the order in which its numbers stand. What two hold in common
is boxes again. Knows nothing of plans and of what the numbers are.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod


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


def whole_box(shape: Sequence[int]) -> Box:
    """All of a tensor."""
    return Box((0,) * len(shape), tuple(shape))


def shard_length(size: int, holders: int) -> int:
    """How many numbers a shard has, filled up."""
    return -(-size // holders)


def bounds(size: int, holders: int, holder: int) -> tuple[int, int]:
    """From where to where the numbers of a holder are."""
    length = shard_length(size, holders)
    return min(holder * length, size), min((holder + 1) * length, size)


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
