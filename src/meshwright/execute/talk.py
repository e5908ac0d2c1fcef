"""The collectives of an expanded step, as ops of a trace.

Each is a value that can be called. On fake tensors, while a trace is built, a call gives tensors of
the shapes of its results; at run time `begin` starts the collective on real tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from meshwright.capture.stride import dense_stride
from meshwright.execute.cut.cut import Cut, joined, local_shape, pieces
from meshwright.execute.exchange import RankExchange
from meshwright.execute.shard import (
    pack,
    pack_shards,
    storage_row,
    unpack,
    unpack_shards,
)
from meshwright.execute.traced import Layout
from meshwright.execute.work import All, Communication, Finish
from meshwright.program.piece import bounds


def nothing() -> None:
    """Do nothing: the `finish` of a collective whose results need no more work."""


@dataclass(frozen=True, slots=True)
class Begun:
    """A collective under way."""

    made: Any
    """Its results, which hold what they should after `finish`."""
    work: Communication
    finish: Finish
    """Makes the results of what arrived: in the thread of the collective's lane, if it has one."""


class Talk(Protocol):
    """A collective that can stand in a trace."""

    __name__: str

    def __call__(self, *args: Any) -> Any:
        """Tensors as large as its results."""

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start the collective over a group on tensors of this rank."""


@dataclass(frozen=True)
class AllReduce:
    """An all-reduce: the sum of the members' tensors."""

    __name__ = "all_reduce"

    def __call__(self, tensor: Tensor) -> Tensor:
        """A tensor of the shape of each term."""
        return torch.empty_like(tensor)

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start the all-reduce on a copy, because others may still read the term."""
        total = torch.empty_like(args[0]).copy_(args[0])
        return Begun(total, exchange.all_reduce(storage_row(total), group), nothing)


@dataclass(frozen=True)
class GatherParts:
    """An all-gather of tensors in one message: whole ones from the parts of all members."""

    cuts: tuple[Cut, ...]
    width: int
    __name__ = "gather_parts"

    def __call__(self, *parts: Tensor) -> list[Tensor]:
        """Tensors of the whole shapes."""
        return [
            _laid_as(each, (*each.shape[: cut.dim], cut.size, *each.shape[cut.dim + 1 :]))
            for each, cut in zip(parts, self.cuts, strict=True)
        ]

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start the all-gather of a row of all parts."""
        rows, work = _gather_rows(exchange, _in_row(args), self.width, group)
        made = self(*args)
        sizes = [each.numel() for each in args]

        def finish() -> None:
            columns = torch.split(rows, sizes, 1)
            for target, part, cut, found in zip(made, args, self.cuts, columns, strict=True):
                target.copy_(joined([each.view(part.shape) for each in found], cut))

        return Begun(made, work, finish)


@dataclass(frozen=True)
class ScatterTerms:
    """A reduce-scatter of tensors in one message: a member's parts of their sums."""

    cuts: tuple[Cut, ...]
    width: int
    member: int
    __name__ = "scatter_terms"

    def __call__(self, *terms: Tensor) -> list[Tensor]:
        """Tensors of the shapes of the parts."""
        return [
            _laid_as(each, local_shape(each.shape, cut, self.width, self.member))
            for each, cut in zip(terms, self.cuts, strict=True)
        ]

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start the reduce-scatter of a row for each member."""
        pairs = list(zip(args, self.cuts, strict=True))
        rows = torch.stack(
            [
                _in_row([pieces(term, cut, self.width, each) for term, cut in pairs])
                for each in range(self.width)
            ]
        )
        made = self(*args)
        if len(made) == 1 and made[0].is_contiguous():  # the sums arrive where they belong
            return Begun(made, exchange.reduce_scatter(made[0].view(-1), rows, group), nothing)
        own = rows.new_empty(rows.shape[1])

        def finish() -> None:
            sizes = [each.numel() for each in made]
            for target, part in zip(made, torch.split(own, sizes), strict=True):
                target.copy_(part.view(target.shape))

        return Begun(made, exchange.reduce_scatter(own, rows, group), finish)


def _in_row(tensors: Sequence[Tensor]) -> Tensor:
    """The numbers of all tensors in a row; a view where one tensor is laid out so."""
    flats = [each.reshape(-1) for each in tensors]
    return flats[0] if len(flats) == 1 else torch.cat(flats)


def _gather_rows(
    exchange: RankExchange, own: Tensor, width: int, group: int
) -> tuple[Tensor, Communication]:
    """Start to gather the rows of so many members, each as long as this member's own."""
    rows = own.new_empty((width, len(own)))
    flats = [each.view(torch.uint8) for each in rows]
    return rows, exchange.all_gather(flats, own.view(torch.uint8), group)


@dataclass(frozen=True)
class Shift:
    """What the member before has, while the next one gets what this one has."""

    __name__ = "shift"

    def __call__(self, own: Tensor) -> Tensor:
        """A tensor of the shape of what each member has."""
        return own.new_empty(own.shape)

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start to send to the next member and to receive from the one before."""
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

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start the all-gather of the row of all shards."""
        dtype = self.layouts[0].dtype
        row = pack_shards(args, self.layouts, self.holders)[dtype]
        made = row.new_empty(sum(each.length for each in self.layouts))
        rows, work = _gather_rows(exchange, row, self.holders, group)
        return Begun(made, work, lambda: unpack({dtype: rows}, self.weights(made)))

    def weights(self, made: Tensor) -> list[Tensor]:
        """The weights in the buffer."""
        parts = torch.split(made, [each.length for each in self.layouts])
        pairs = zip(parts, self.layouts, strict=True)
        return [part.as_strided(each.shape, each.stride) for part, each in pairs]


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

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start an all-gather of the updated shards for each type of numbers."""
        layouts = [Layout.of(each) for each in args]
        shards = [
            storage_row(each)[slice(*bounds(each.numel(), self.holders, self.holder))]
            for each in args
        ]
        own = pack_shards(shards, layouts, self.holders)
        started = {
            dtype: _gather_rows(exchange, row, self.holders, group) for dtype, row in own.items()
        }
        gathered = {dtype: rows for dtype, (rows, _) in started.items()}
        works = [work for _, work in started.values()]
        return Begun(args[0].new_empty(0), All(works), lambda: unpack(gathered, args))


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

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start a reduce-scatter of the gradients for each type of numbers."""
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
