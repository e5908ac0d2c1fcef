"""Expert parallelism at run time: all-to-alls that send tokens to their experts, and back.

A replica's rows are sorted by expert, and experts by the replica that holds them. Replicas first
exchange how many rows they send, then the rows. A replica sorts what arrives by its own experts,
and the rows of an expert by the replica that sent them. Replicas have consecutive samples of the
batch, so an expert adds up its rows in the order in which one process would. How many rows arrive
is known at run time only; in a trace `ARRIVED` stands for that number.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from meshwright.capture.ledger import Kernel, op_name
from meshwright.errors import InputError, quoted
from meshwright.execute.exchange import RankExchange
from meshwright.execute.talk import Begun
from meshwright.execute.traced import ARRIVED

Counts = list[list[int]]
"""Numbers of rows: a list for each replica, with an entry for each expert of the replica that
receives them."""


@dataclass(frozen=True)
class CountTokens:
    """An all-to-all of numbers of rows: where the rows of each of a replica's experts will end, and
    how many rows it sends and receives."""

    width: int
    """How many replicas hold different experts."""
    __name__ = "count_tokens"

    def __call__(self, ends: Tensor) -> list[Tensor]:
        """Two tensors: a number for each of the replica's experts; and for each expert how many
        rows the replica sends, then how many rows for its own experts it receives from each
        replica."""
        return [ends.new_empty(len(ends) // self.width), ends.new_empty((2, len(ends)))]

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start the all-to-all of numbers of rows."""
        ends = args[0]
        sent = torch.diff(ends, prepend=ends.new_zeros(1))
        own, counts = self(ends)
        parts = [each.view(torch.uint8) for each in sent.contiguous().chunk(self.width)]
        work, found = exchange.all_to_all(parts, [len(each) for each in parts], group)

        def finish() -> None:
            counts[0].copy_(sent)
            counts[1].copy_(torch.cat(found).view(ends.dtype))
            own.copy_(counts[1].view(self.width, -1).sum(0).cumsum(0))

        return Begun([own, counts], work, finish)


@dataclass(frozen=True)
class SendTokens:
    """The all-to-all that brings a replica the rows of its own experts from all replicas."""

    width: int
    rows: int
    """How many rows a replica has to send."""
    __name__ = "send_tokens"

    def __call__(self, tensor: Tensor, _counts: Tensor) -> Tensor:
        """A tensor of such rows, `ARRIVED` of them."""
        return tensor.new_empty((ARRIVED, tensor.numel() // self.rows))

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start the all-to-all of the rows for experts."""
        sent, received = _read_counts(args[1], self.width)
        rows = args[0].reshape(self.rows, -1)
        ends = [0, *accumulate(map(sum, sent))]
        given = [rows[start:end] for start, end in pairwise(ends)]
        made = rows.new_empty((sum(map(sum, received)), rows.shape[1]))
        work, found = _exchange_rows(exchange, group, given, [sum(each) for each in received])

        def finish() -> None:
            pieces = [torch.split(each, own) for each, own in zip(found, received, strict=True)]
            torch.cat([piece for own in zip(*pieces, strict=True) for piece in own], out=made)

        return Begun(made, work, finish)


@dataclass(frozen=True)
class ReturnTokens:
    """The all-to-all that returns what experts made of a replica's rows, in the order in which it
    sent them."""

    width: int
    rows: int
    shape: tuple[int, ...]
    """The shape of the tensor that a replica gets back."""
    __name__ = "return_tokens"

    def __call__(self, tensor: Tensor, _counts: Tensor) -> Tensor:
        """A tensor with as many rows as the replica sent."""
        return tensor.new_empty(self.shape)

    def begin(self, exchange: RankExchange, group: int, args: Sequence[Any]) -> Begun:
        """Start the all-to-all of what experts made of the rows."""
        sent, received = _read_counts(args[1], self.width)
        rows = args[0]
        by_expert = [count for counts in zip(*received, strict=True) for count in counts]
        pieces = torch.split(rows, by_expert)
        given = [torch.cat(pieces[member :: self.width]) for member in range(self.width)]
        made = rows.new_empty(self.shape)
        work, found = _exchange_rows(exchange, group, given, [sum(each) for each in sent])
        total = sum(map(sum, sent))

        def finish() -> None:
            flat = made.view(self.rows, -1)
            torch.cat(found, out=flat[:total])
            flat[total:].zero_()  # rows that no expert was asked for

        return Begun(made, work, finish)


def _read_counts(counts: Tensor, width: int) -> tuple[Counts, Counts]:
    """How many rows a replica sends to each replica, and receives from each."""
    sent, received = counts.view(2, width, -1).tolist()
    return sent, received


def _exchange_rows(
    exchange: RankExchange, group: int, given: Sequence[Tensor], counts: Sequence[int]
) -> tuple[Any, list[Tensor]]:
    """Start to send rows to each replica; returns the buffers of what each sends, full once the
    work is done."""
    first = given[0]
    width = first.shape[1] * first.element_size()
    flats = [each.contiguous().view(-1).view(torch.uint8) for each in given]
    work, found = exchange.all_to_all(flats, [count * width for count in counts], group)
    shaped = [
        each.view(first.dtype).view(count, first.shape[1])
        for each, count in zip(found, counts, strict=True)
    ]
    return work, shaped


def find_rows(kernels: Sequence[Kernel], ends: str) -> int:
    """The number of rows of the grouped products that read where the rows of each expert end.

    InputError if other ops read that tensor. `ends`: the name of the op that makes the tensor.
    """
    found = set()
    for kernel in kernels:
        if op_name(kernel.node) != "_grouped_mm":
            raise InputError(
                f"op {quoted(kernel.node.name)}: experts that replicas divide must be grouped "
                f"products of rows that are sorted by expert, but it reads {quoted(ends)}"
            )
        left, right = (each.meta["val"] for each in kernel.node.args[:2])  # type: ignore[union-attr]
        sizes = {(2, 3): left.shape[0], (2, 2): left.shape[1], (3, 2): right.shape[-1]}
        found.add(int(sizes[left.dim(), right.dim()]))
    assert len(found) == 1, "they are products of the same rows"
    return found.pop()
