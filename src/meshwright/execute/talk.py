"""The collectives of an expanded step, as ops of a trace.

Each is a value that can be called. On fake tensors, while a trace is built, a call gives tensors of
the shapes of its results; at run time `begin` starts the collective on real tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from meshwright.execute.cut.cut import Cut, joined, local_shape, pieces
from meshwright.execute.exchange import Exchange
from meshwright.execute.shard import (
    bounds,
    pack,
    pack_shards,
    storage_row,
    unpack,
    unpack_shards,
)
from meshwright.execute.traced import Layout
from meshwright.execute.work import All, Finish, Work


def nothing() -> None:
    """Do nothing: the `finish` of a collective whose results need no more work."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A collective under way."""

    made: Any
    """Its results, which hold what they should after `finish`."""
    work: Work
    finish: Finish
    """Makes the results of what arrived: in the thread of the collective's lane, if it has one."""


class Talk(Protocol):
    """A collective that can stand in a trace."""

    __name__: str

    def __call__(self, *args: Any) -> Any:
        """Tensors as large as its results."""

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it."""


@dataclass(frozen=True)
class AllReduce:
    """An all-reduce: the sum of the members' tensors."""

    __name__ = "all_reduce"

    def __call__(self, tensor: Tensor) -> Tensor:
        """A tensor of the shape of each term."""
        return torch.empty_like(tensor)

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it on a copy: others may still read the term."""
        total = torch.empty_like(args[0]).copy_(args[0])
        return Begun(total, exchange.all_reduce(storage_row(total), group), nothing)


@dataclass(frozen=True)
class GatherParts:
    """An all-gather: the whole tensor from the parts that all members have."""

    cut: Cut
    width: int
    __name__ = "gather_parts"

    def __call__(self, part: Tensor) -> Tensor:
        """A tensor of the whole shape."""
        return _laid_as(part, _resized(part.shape, self.cut.dim, self.cut.size))

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it."""
        own = args[0].contiguous()
        parts = [torch.empty_like(own) for _ in range(self.width)]
        flats = [each.view(-1).view(torch.uint8) for each in parts]
        work = exchange.all_gather(flats, own.view(-1).view(torch.uint8), group)
        made = self(args[0])

        def finish() -> None:
            made.copy_(joined(parts, self.cut))

        return Begun(made, work, finish)


@dataclass(frozen=True)
class ScatterTerms:
    """A reduce-scatter: a member's part of the sum of all members' tensors."""

    cut: Cut
    width: int
    member: int
    __name__ = "scatter_terms"

    def __call__(self, terms: Tensor) -> Tensor:
        """A tensor of the shape of the part."""
        return _laid_as(terms, local_shape(terms.shape, self.cut, self.width, self.member))

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it."""
        parts = [pieces(args[0], self.cut, self.width, each) for each in range(self.width)]
        made = self(args[0])
        rows = torch.stack([each.reshape(-1) for each in parts])
        if made.is_contiguous():
            return Begun(made, exchange.reduce_scatter(made.view(-1), rows, group), nothing)
        flat = made.new_empty(made.numel())

        def finish() -> None:
            made.copy_(flat.view(made.shape))

        return Begun(made, exchange.reduce_scatter(flat, rows, group), finish)


@dataclass(frozen=True)
class GatherSeveral:
    """An all-gather of several tensors in one message: whole ones from the parts of all members."""

    cuts: tuple[Cut, ...]
    width: int
    __name__ = "gather_several"

    def __call__(self, *parts: Tensor) -> list[Tensor]:
        """Tensors of the whole shapes."""
        return [
            _laid_as(each, _resized(each.shape, cut.dim, cut.size))
            for each, cut in zip(parts, self.cuts, strict=True)
        ]

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it."""
        own = torch.cat([each.reshape(-1) for each in args])
        rows = own.new_empty((self.width, len(own)))
        work = exchange.all_gather(
            [each.view(torch.uint8) for each in rows], own.view(torch.uint8), group
        )
        made = self(*args)
        sizes = [each.numel() for each in args]

        def finish() -> None:
            columns = torch.split(rows, sizes, 1)
            for target, part, cut, found in zip(made, args, self.cuts, columns, strict=True):
                target.copy_(joined([each.view(part.shape) for each in found], cut))

        return Begun(made, work, finish)


@dataclass(frozen=True)
class ScatterSeveral:
    """A reduce-scatter of several tensors in one message: a member's parts of their sums."""

    cuts: tuple[Cut, ...]
    width: int
    member: int
    __name__ = "scatter_several"

    def __call__(self, *terms: Tensor) -> list[Tensor]:
        """Tensors of the shapes of the parts."""
        return [
            _laid_as(each, local_shape(each.shape, cut, self.width, self.member))
            for each, cut in zip(terms, self.cuts, strict=True)
        ]

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it."""
        pairs = list(zip(args, self.cuts, strict=True))
        rows = torch.stack(
            [
                torch.cat([pieces(term, cut, self.width, each).reshape(-1) for term, cut in pairs])
                for each in range(self.width)
            ]
        )
        own = rows.new_empty(rows.shape[1])
        made = self(*args)

        def finish() -> None:
            sizes = [each.numel() for each in made]
            for target, part in zip(made, torch.split(own, sizes), strict=True):
                target.copy_(part.view(target.shape))

        return Begun(made, exchange.reduce_scatter(own, rows, group), finish)


@dataclass(frozen=True)
class Shift:
    """What the member before has, while the next one gets what this one has."""

    __name__ = "shift"

    def __call__(self, own: Tensor) -> Tensor:
        """As large."""
        return own.new_empty(own.shape)

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it."""
        own = args[0].contiguous().view(-1)
        made = torch.empty_like(own)
        work = exchange.shift(made.view(torch.uint8), own.view(torch.uint8), group)
        return Begun(made.view(args[0].shape), work, nothing)


@dataclass(frozen=True)
class TakePart:
    """Takes a member's part of a tensor that it has all of, without communication."""

    cut: Cut
    width: int
    member: int
    __name__ = "take_part"

    def __call__(self, whole: Tensor) -> Tensor:
        """A copy of the part."""
        part = pieces(whole, self.cut, self.width, self.member)
        return _laid_as(whole, part.shape).copy_(part)


def _laid_as(tensor: Tensor, shape: Sequence[int]) -> Tensor:
    """A dense tensor of a shape whose dimensions lie in memory in the order of another's."""
    return tensor.new_empty_strided(tuple(shape), dense_stride(tensor.stride(), shape))


def dense_stride(strides: Sequence[int], shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of a dense tensor whose dimensions lie in memory in the order of these."""
    order = sorted(range(len(shape)), key=lambda dim: (-strides[dim], dim))
    stride, size = [0] * len(shape), 1
    for dim in reversed(order):
        stride[dim], size = size, size * shape[dim]
    return tuple(stride)


def _resized(shape: Sequence[int], dim: int, size: int) -> tuple[int, ...]:
    return (*shape[:dim], size, *shape[dim + 1 :])


@dataclass(frozen=True)
class GatherWeights:
    """The all-gather of ZeRO 3: whole weights one after the other in one buffer, from the shards of
    all holders."""

    layouts: tuple[Layout, ...]
    holders: int
    __name__ = "gather_weights"

    def __call__(self, *_shards: Tensor) -> Tensor:
        """A buffer as long as all weights together."""
        return torch.empty(sum(each.length for each in self.layouts), dtype=self.layouts[0].dtype)

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it."""
        dtype = self.layouts[0].dtype
        row = pack_shards(args, self.layouts, self.holders)[dtype]
        rows = torch.empty((self.holders, len(row)), dtype=dtype, device=row.device)
        made = torch.empty(
            sum(each.length for each in self.layouts), dtype=dtype, device=row.device
        )
        work = exchange.all_gather(
            [each.view(torch.uint8) for each in rows], row.view(torch.uint8), group
        )
        return Begun(made, work, lambda: unpack({dtype: rows}, self.weights(made)))

    def weights(self, made: Tensor) -> list[Tensor]:
        """The weights in the buffer."""
        found, start = [], 0
        for each in self.layouts:
            found.append(made.as_strided(each.shape, each.stride, start))
            start += each.length
        return found


@dataclass(frozen=True)
class SpreadWeights:
    """The all-gather of ZeRO 1 and 2 after updates: fills whole weights in place, of which every
    holder has updated its shard."""

    holders: int
    holder: int
    __name__ = "spread_weights"

    def __call__(self, *weights: Tensor) -> Tensor:
        """Nothing: the weights are the result."""
        return torch.empty(0, dtype=weights[0].dtype)

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it."""
        layouts = [Layout.of(each) for each in args]
        shards = [
            storage_row(each)[slice(*bounds(each.numel(), self.holders, self.holder))]
            for each in args
        ]
        own = pack_shards(shards, layouts, self.holders)
        gathered = {
            dtype: torch.empty((self.holders, len(row)), dtype=dtype, device=row.device)
            for dtype, row in own.items()
        }
        works = [
            exchange.all_gather(
                [each.view(torch.uint8) for each in gathered[dtype]], row.view(torch.uint8), group
            )
            for dtype, row in own.items()
        ]
        nothing = torch.empty(0, dtype=args[0].dtype, device=args[0].device)
        return Begun(nothing, All(works), lambda: unpack(gathered, args))


@dataclass(frozen=True)
class ScatterGradients:
    """The reduce-scatter of ZeRO: a holder's shards of the sums of all holders' gradients."""

    layouts: tuple[Layout, ...]
    """The layouts of the weights: a shard's numbers stand in the order of the weight in memory."""
    holders: int
    holder: int
    __name__ = "scatter_gradients"

    def __call__(self, *gradients: Tensor) -> list[Tensor]:
        """Tensors as long as the holder's shards."""
        sizes = [bounds(each.numel(), self.holders, self.holder) for each in gradients]
        return [
            torch.empty(stop - start, dtype=each.dtype)
            for each, (start, stop) in zip(gradients, sizes, strict=True)
        ]

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it."""
        buffers = pack(args, self.holders, self.layouts)
        own = {dtype: each.new_empty(each.shape[1]) for dtype, each in buffers.items()}
        works = [
            exchange.reduce_scatter(own[dtype], rows, group) for dtype, rows in buffers.items()
        ]
        layouts = [
            replace(layout, dtype=each.dtype)
            for layout, each in zip(self.layouts, args, strict=True)
        ]
        shards = unpack_shards(own, layouts, self.holders, self.holder)
        return Begun(shards, All(works), nothing)
