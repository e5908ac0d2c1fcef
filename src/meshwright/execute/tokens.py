"""What replicas that hold different experts do together: tokens travel to experts, and back.

Rows stand by expert, and experts by the replica that holds them. First replicas tell each other how
many rows they send, then they send them; a replica puts what it gets in the order of its experts,
and for each of them of the replicas, so that with replicas in the order of the batch experts add up
in the order of one process. How many rows arrive is known at run time only: a trace has `ARRIVED`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import torch
from torch import Tensor

from meshwright.capture.ledger import Kernel, op_name
from meshwright.errors import InputError, quoted
from meshwright.execute.exchange import Exchange
from meshwright.execute.talk import Begun
from meshwright.execute.traced import ARRIVED

Counts = list[list[int]]
"""By replica, and expert of the one that gets them: how many rows."""


@dataclass(frozen=True)
class CountTokens:
    """Where the rows of a replica's own experts end, and how many rows go where."""

    width: int
    """How many replicas hold different experts."""
    __name__ = "count_tokens"

    def __call__(self, ends: Tensor) -> list[Tensor]:
        """One number for each of its experts; and for each expert how many rows it sends, then how
        many of its own experts' rows it gets from each replica."""
        return [ends.new_empty(len(ends) // self.width), ends.new_empty((2, len(ends)))]

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it."""
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
    """The rows of a replica's own experts, from all replicas."""

    width: int
    rows: int
    """How many rows a replica has to send."""
    __name__ = "send_tokens"

    def __call__(self, tensor: Tensor, _counts: Tensor) -> Tensor:
        """Rows as they are, but not as many."""
        return tensor.new_empty((ARRIVED, tensor.numel() // self.rows))

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it."""
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
    """What experts made of a replica's rows, in the order in which it sent them."""

    width: int
    rows: int
    shape: tuple[int, ...]
    """Of what a replica gets: its rows."""
    __name__ = "return_tokens"

    def __call__(self, tensor: Tensor, _counts: Tensor) -> Tensor:
        """As many as it sent."""
        return tensor.new_empty(self.shape)

    def begin(self, exchange: Exchange, group: int, args: Sequence[Any]) -> Begun:
        """Start it."""
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
    """How many rows a replica sends to each, and gets from each."""
    sent, received = counts.view(2, width, -1).tolist()
    return sent, received


def _exchange_rows(
    exchange: Exchange, group: int, given: Sequence[Tensor], counts: Sequence[int]
) -> tuple[Any, list[Tensor]]:
    """Send rows to each replica; rows from each, which are there when the work is done."""
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
    """How many rows the grouped products have that read where rows end; InputError where anything
    else reads it. `ends`: the name of the op that makes it."""
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
