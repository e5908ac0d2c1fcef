"""How a tensor is cut over the members of a team. Knows nothing of ops.

A tensor is WHOLE on every member, cut along one dimension, or in TERMS: every member has a tensor
of the whole shape, and the whole tensor is their sum.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby

import torch
from torch import Tensor

from meshwright.errors import InputError

Shape = tuple[int, ...]


class Undivided(Enum):
    """States of a tensor of which every member has one of the whole shape."""

    WHOLE = "whole"
    TERMS = "terms"

    def __repr__(self) -> str:
        return self.name


WHOLE = Undivided.WHOLE
"""Every member has the whole tensor."""
TERMS = Undivided.TERMS
"""Every member has one term of the sum that the whole tensor is."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A dimension seen as consecutive segments, of each of which every member has its part.

    A member's parts of all segments, one after the other, are its dimension. A plain cut has one
    segment. Of three segments of equal size are the columns of a fused query, key and value.
    """

    dim: int
    runs: tuple[tuple[int, int], ...]
    """The segments, as pairs of a count and the size of each of that many segments."""

    def __post_init__(self) -> None:
        assert self.dim >= 0
        assert all(count > 0 and size > 0 for count, size in self.runs)

    @classmethod
    def of(cls, dim: int, sizes: Iterable[int]) -> "Cut":
        """A cut by the sizes of its segments."""
        return cls(dim, tuple((len(list(each)), size) for size, each in groupby(sizes)))

    @property
    def sizes(self) -> Shape:
        """The size of every segment."""
        return tuple(size for count, size in self.runs for _ in range(count))

    @property
    def size(self) -> int:
        """The size of the whole dimension."""
        return sum(count * size for count, size in self.runs)

    @property
    def is_plain(self) -> bool:
        """Whether the dimension is one segment."""
        return len(self.runs) == 1 and self.runs[0][0] == 1

    def divides(self, width: int) -> bool:
        """Whether all members of a team of `width` have equal parts of every segment."""
        return all(size % width == 0 for _, size in self.runs)

    def at(self, dim: int) -> "Cut":
        """The same cut of another dimension."""
        return Cut(dim, self.runs)

    def __repr__(self) -> str:
        parts = "+".join(f"{n}x{size}" if n > 1 else str(size) for n, size in self.runs)
        return f"Cut({self.dim}: {parts})"


AnyCut = Cut | Undivided


def plain_cut(dim: int, size: int) -> Cut:
    """The cut of a dimension as one segment."""
    return Cut(dim, ((1, size),))


def check_cut(what: str, shape: Sequence[int], cut: AnyCut, width: int) -> None:
    """Refuse a cut that a tensor of this shape cannot have over a team of `width`.

    Only a plain cut may have parts of different sizes, which are then those of `torch.chunk`.
    """
    if not isinstance(cut, Cut):
        return
    if not (cut.dim < len(shape) and cut.size == shape[cut.dim]):
        raise InputError(f"{what}: {cut} must be a cut of a tensor of shape {tuple(shape)}")
    if not cut.is_plain and not cut.divides(width):
        raise InputError(
            f"{what}: segments of dimension {cut.dim} of size {cut.size} must divide by the width "
            f"{width} of the group, got {cut}"
        )


def plain_bounds(size: int, width: int, member: int) -> tuple[int, int]:
    """What a member has of one segment: the first entry, and the one after the last."""
    chunk = math.ceil(size / width)
    return min(member * chunk, size), min((member + 1) * chunk, size)


def strips(cut: Cut, width: int, member: int) -> Iterator[tuple[int, int]]:
    """What a member has of the dimension, segment by segment: the first entry, and the one after
    the last. Those that touch are one."""
    start, before = 0, None
    for size in cut.sizes:
        first, end = (start + each for each in plain_bounds(size, width, member))
        start += size
        if first == end:
            continue
        if before is not None and before[1] != first:
            yield before
            before = None
        before = (before[0] if before else first), end
    if before is not None:
        yield before


def local_size(cut: Cut, width: int, member: int) -> int:
    """The size of a member's part of the dimension that is cut."""
    if cut.is_plain:
        first, end = plain_bounds(cut.size, width, member)
        return end - first
    return cut.size // width


def local_shape(shape: Sequence[int], cut: AnyCut, width: int, member: int) -> Shape:
    """The shape of a member's part of a tensor."""
    if not isinstance(cut, Cut):
        return tuple(shape)
    return (*shape[: cut.dim], local_size(cut, width, member), *shape[cut.dim + 1 :])


def pieces(tensor: Tensor, cut: AnyCut, width: int, member: int) -> Tensor:
    """A member's part of a whole tensor; a view of it where the cut is one run of segments.

    As terms, the first member has all of the tensor, the others zeros.
    """
    if cut is WHOLE:
        return tensor
    if not isinstance(cut, Cut):
        return tensor if member == 0 else torch.zeros_like(tensor)
    check_cut("pieces", tensor.shape, cut, width)
    found, start = [], 0
    for count, size in cut.runs:
        first, end = plain_bounds(size, width, member)
        run = tensor.narrow(cut.dim, start, count * size)
        if count == 1:
            found.append(run.narrow(cut.dim, first, end - first))
        else:
            apart = run.unflatten(cut.dim, (count, size))  # type: ignore[no-untyped-call]
            apart = apart.narrow(cut.dim + 1, first, end - first)
            found.append(apart.flatten(cut.dim, cut.dim + 1))
        start += count * size
    return found[0] if len(found) == 1 else torch.cat(found, cut.dim)


def joined(parts: Sequence[Tensor], cut: AnyCut) -> Tensor:
    """The whole tensor of the parts that all members have, in their order."""
    if cut is WHOLE:
        return parts[0]
    if not isinstance(cut, Cut):
        return torch.stack(list(parts)).sum(0)
    if cut.is_plain:
        return torch.cat(list(parts), cut.dim)
    width, found, start = len(parts), [], 0
    for count, size in cut.runs:
        length = count * size // width
        runs = [each.narrow(cut.dim, start, length) for each in parts]
        apart = [each.unflatten(cut.dim, (count, -1)) for each in runs]  # type: ignore[no-untyped-call]
        found.append(torch.cat(apart, cut.dim + 1).flatten(cut.dim, cut.dim + 1))
        start += length
    return torch.cat(found, cut.dim)


def through_view(cut: Cut, old: Sequence[int], new: Sequence[int], width: int) -> Cut | None:
    """The cut of a view of another shape; None: a member's part is no such view of its shard.

    In memory order the segments, times what lies inside of the dimension, are repeated by what lies
    outside of it. At most one dimension of the new shape is cut into the same pieces.
    """
    outer, inner = math.prod(old[: cut.dim]), math.prod(old[cut.dim + 1 :])
    if outer * inner == 0:
        return None
    for dim, size in enumerate(new):
        outside, inside = math.prod(new[:dim]), math.prod(new[dim + 1 :])
        if (outside, inside, size) == (outer, inner, cut.size):
            return cut.at(dim)
        sizes = _rescaled(cut.sizes, inner, inside, width)
        if sizes is None:
            continue
        if outer % outside == 0:
            return Cut.of(dim, sizes * (outer // outside))
        period, rest = divmod(len(sizes) * outer, outside)
        if rest == 0 and sizes == sizes[:period] * (outside // outer):
            return Cut.of(dim, sizes[:period])
    return None


def _rescaled(sizes: Shape, inner: int, inside: int, width: int) -> Shape | None:
    """Segments counted in units of `inside` entries instead of `inner`, if all members have whole
    units of them."""
    if any(size % width or size * inner % (inside * width) for size in sizes):
        return None
    return tuple(size * inner // inside for size in sizes)
