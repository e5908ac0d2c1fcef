"""Attention in blocks of keys that come from other members of a context team, one after the other.

A block is attention of a member's queries to one member's keys and values. Blocks of forward are
combined by the logarithms of their sums of exponentials; backward takes the sums of all blocks, so
that its terms are simply added. What is combined is in fp32 until the last block. Knows nothing of
how keys travel: `meshwright.execute.talk`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from meshwright.execute.cut.around import Arguments, Around
from meshwright.execute.cut.attention import LaterRows, find_mask

Shapes = tuple[tuple[int, ...], ...]
"""The shape of a member's keys, and that of its values."""


@dataclass(frozen=True)
class Block(Around):
    """An attention, or its backward, to the keys of one member.

    It is given what the blocks before it make besides, as the last arguments.
    """

    names: tuple[str, ...]
    """The names of the op's arguments, in the order of its schema."""
    first: int
    """The number of the block's first key among all keys."""
    num_combined: int
    """How many arguments are of the blocks before it; 0: there is none before it."""
    is_last: bool

    def _given(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """The op's own arguments, of the mask the columns of the block."""
        own = args[: len(args) - self.num_combined]
        named = dict(zip(self.names, own, strict=False)) | dict(kwargs)
        name, mask = find_mask(self.names, named)
        if mask is not None and mask.shape[-1] > 1:
            named[name] = mask.narrow(-1, self.first, named["key"].shape[-2])
        return [named.pop(name) for name in self.names[: len(own)]], named

    def _kept(self, made: Any, args: Sequence[Any]) -> Any:
        """What this block and those before it make together."""
        before = args[len(args) - self.num_combined :]
        if len(made) > 2:
            return self._add(made, before)
        own, _ = self._given(args, {})
        total, sums = made
        return self._combine(total, sums, before, dict(zip(self.names, own, strict=False)))

    def _add(self, made: Sequence[Tensor], before: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """The gradient of the queries so far, and that of the block's keys and values in a row."""
        query, key, value = made
        total = widened(query)
        total = total + before[0] if before else total
        return total.to(query.dtype) if self.is_last else total, pack_keys(key, value)

    def _combine(
        self, made: Tensor, log_sum: Tensor, before: Sequence[Tensor], arguments: dict[str, Any]
    ) -> tuple[Tensor, Tensor]:
        """The results so far, weighed by their parts of the sum of exponentials."""
        hidden = self._hidden(arguments)
        total, sums = widened(made), log_sum
        if hidden is not None:  # of which kernels say that the sum is one
            total = total.masked_fill(hidden.unsqueeze(-1), 0.0)
            sums = sums.masked_fill(hidden, -math.inf)
        if before:
            joined = torch.logaddexp(before[1], sums)
            total = _weighed(before[0], before[1], joined) + _weighed(total, sums, joined)
            sums = joined
        if not self.is_last:
            return total, sums
        return total.to(made.dtype), sums.masked_fill(sums == -math.inf, 0.0)

    def _hidden(self, arguments: dict[str, Any]) -> Tensor | None:
        """By query whether it sees no key of the block; None: each sees one."""
        _, mask = find_mask(self.names, arguments)
        if mask is None:
            return None
        if isinstance(self.target, LaterRows):
            mask = self.target.mask(arguments["query"], arguments["key"], mask)
        assert mask is not None
        sees = (mask if mask.dtype is torch.bool else mask > -math.inf).any(-1)
        return (~sees).expand(arguments["query"].shape[:-1])


@dataclass(frozen=True)
class Skipped:
    """A block of which a member's queries see no key: what was before it, and no gradients.

    Its arguments are those of a `Block` that is not the first.
    """

    num_combined: int
    is_last: bool
    keys: tuple[int, int] | None
    """Of a backward: the places of key and value among the arguments."""
    __name__ = "skipped_attention"

    def __call__(self, *args: Any) -> tuple[Tensor, Tensor]:
        """The results so far, and a gradient of zeros for keys."""
        query = next(each for each in args if isinstance(each, Tensor))
        total, *sums = args[len(args) - self.num_combined :]
        total = total.to(query.dtype if self.is_last else total.dtype, copy=True)
        if self.keys is None:
            return total, sums[0].clone()
        key, value = (args[place] for place in self.keys)
        return total, key.new_zeros(key.numel() + value.numel())


def widened(tensor: Tensor) -> Tensor:
    """A tensor in fp32, or in fp64 if it is in that."""
    return tensor if tensor.dtype in (torch.float32, torch.float64) else tensor.float()


def _weighed(total: Tensor, sums: Tensor, joined: Tensor) -> Tensor:
    """A part of a result by its part of all sums of exponentials; nothing has no part."""
    share = torch.where(sums == -math.inf, 0.0, (sums - joined).exp())
    return total * share.unsqueeze(-1)


def pack_keys(key: Tensor, value: Tensor) -> Tensor:
    """Keys and values, or their gradients, in a row."""
    return torch.cat([key.reshape(-1), value.reshape(-1)])


def add_blocks(term: Tensor, total: Tensor) -> Tensor:
    """The sum of two blocks of gradients."""
    return term + total


@dataclass(frozen=True)
class AddKeys:
    """The gradients of a member's own keys and values, from its own term and those of others."""

    shapes: Shapes
    strides: Shapes
    __name__ = "add_keys"

    def __call__(self, term: Tensor, total: Tensor) -> list[Tensor]:
        """The gradients of the keys, and those of the values."""
        sizes = [math.prod(shape) for shape in self.shapes]
        parts = torch.split(term + total, sizes)
        return [
            part.new_empty_strided(shape, stride).copy_(part.view(shape))
            for part, shape, stride in zip(parts, self.shapes, self.strides, strict=True)
        ]
