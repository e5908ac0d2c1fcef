"""Collectives of gloo's ranks: gloo's own where they are good, others out of its sends.

Gloo goes around a ring, with n - 1 messages a rank for a gather and twice as many for a sum, and
posts receives late. For a power of two of ranks, exchanges at doubling distances move as many
bytes in log2 n messages, the large ones between near ranks (Thakur, Rabenseifner, Gropp,
"Optimization of Collective Communication Operations in MPICH", IJHPCA 19, 2005); this is what
`meshwright.cost.algorithm.halving_doubling_rounds` prices. Their rounds are made by whoever waits:
the line of their lane.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from meshwright.execute.work import Plain, Together, Waitable

FEW_BYTES = 64 * 1024
"""Of a sum in which messages cost more than bytes: up to here all of it goes to every distance."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """Who takes part, in order, over which process group."""

    ranks: Sequence[int]
    group: Any

    @property
    def own(self) -> int:
        """The place of this rank."""
        return self.ranks.index(dist.get_rank())

    @property
    def is_power_of_two(self) -> bool:
        """Whether exchanges at doubling distances reach all."""
        count = len(self.ranks)
        return count & (count - 1) == 0

    def post(self, place: int, found: torch.Tensor, given: torch.Tensor) -> list[Any]:
        """Start to exchange tensors with the rank at a place; empty ones do not travel.

        The receive is posted first, else their one connection may carry the two directions in
        turn: with two ranks, gloo's own gather took 60 ms for 42 now and then.
        """
        works = []
        if found.numel():
            works.append(dist.irecv(_bytes(found), self.ranks[place], group=self.group))
        if given.numel():
            works.append(dist.isend(_bytes(given), self.ranks[place], group=self.group))
        return works

    def exchange(self, place: int, found: torch.Tensor, given: torch.Tensor) -> None:
        """Exchange tensors with the rank at a place."""
        for each in self.post(place, found, given):
            each.wait()


def start_sum(flat: torch.Tensor, ranks: Ranks, *, is_max: bool = False) -> Waitable:
    """Start to add up a flat tensor in place, or to find the greatest numbers."""
    if ranks.is_power_of_two and flat.numel() * flat.element_size() <= FEW_BYTES:
        return _Rounds(partial(_sum_few, flat, ranks, is_max=is_max))
    what = dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM
    return Plain(dist.all_reduce(flat, what, group=ranks.group, async_op=True), flat)


def start_gather(
    found: Sequence[torch.Tensor], own: torch.Tensor, ranks: Ranks, *, is_alone: bool
) -> Waitable:
    """Start to gather equally long flat tensors; alone: nothing else must go on beside it."""
    if len(ranks.ranks) == 2:
        return start_swap(found, [own, own], ranks)
    if ranks.is_power_of_two and is_alone:
        return _Rounds(partial(_double, found, own, ranks))
    return Plain(dist.all_gather(list(found), own, group=ranks.group, async_op=True), (found, own))


def start_scatter(
    own: torch.Tensor, rows: torch.Tensor, ranks: Ranks, *, is_alone: bool
) -> Waitable:
    """Start to add up rows, of which each rank gets its own.

    Gloo's own is an all-reduce that throws away most of its result.
    """
    if ranks.is_power_of_two and is_alone:
        return _Rounds(partial(_halve, own, rows, ranks))
    found = torch.empty_like(rows)
    work = Plain(start_swap(found.unbind(), rows.unbind(), ranks), found)
    work.then(lambda: torch.sum(found, 0, out=own))
    return work


def start_swap(
    found: Sequence[torch.Tensor], given: Sequence[torch.Tensor], ranks: Ranks
) -> Waitable:
    """Start to give each rank its flat tensor, and to find one from each, all at once.

    Gloo's own all-to-all goes from rank to rank and sends first: a quarter longer on four ranks.
    """
    own, count = ranks.own, len(ranks.ranks)
    works = []
    # At one step all turn to different ranks, so that none is sought by all at once.
    for source in ((own - step) % count for step in range(1, count)):
        works += ranks.post(source, found[source], given[source][:0])
    for target in ((own + step) % count for step in range(1, count)):
        works += ranks.post(target, found[target][:0], given[target])
    found[own].copy_(given[own])
    return Together(works)


@dataclass(frozen=True, slots=True)
class _Rounds:
    """A collective whose rounds are made by whoever waits."""

    run: Callable[[], None]

    def wait(self) -> None:
        self.run()


def _halve(own: torch.Tensor, rows: torch.Tensor, ranks: Ranks) -> None:
    """A reduce-scatter: halves to the neighbour, quarters to the one two away, and so on."""
    left, distance = rows, 1
    while len(left) > 1:
        # Of the ranks that are left, every other one is on this rank's side.
        side = ranks.own // distance % 2
        given, kept = left[1 - side :: 2].contiguous(), left[side::2]
        found = torch.empty_like(given)
        ranks.exchange(ranks.own ^ distance, found, given)
        left = found.add_(kept)
        distance *= 2
    own.copy_(left[0])


def _double(found: Sequence[torch.Tensor], own: torch.Tensor, ranks: Ranks) -> None:
    """An all-gather: the rounds of `_halve` backwards."""
    place, count = ranks.own, len(ranks.ranks)
    # In this order what a rank has stands together after each round.
    order = [_reversed(each, count) for each in range(count)]
    rows = own.new_empty((count, own.numel()))
    rows[order[place]].copy_(own)
    size, distance = 1, count // 2
    while distance:
        start = order[place] // size * size
        other = start ^ size
        ranks.exchange(place ^ distance, rows[other : other + size], rows[start : start + size])
        size, distance = size * 2, distance // 2
    for row, target in zip(order, found, strict=True):
        target.copy_(rows[row])


def _sum_few(total: torch.Tensor, ranks: Ranks, *, is_max: bool) -> None:
    """An all-reduce of few numbers: all of them to the rank at each distance.

    Both ranks of an exchange add the same two numbers, so all end with the same bits.
    """
    own, distance = ranks.own, 1
    found = torch.empty_like(total)
    while distance < len(ranks.ranks):
        ranks.exchange(own ^ distance, found, total)
        if is_max:
            torch.maximum(total, found, out=total)
        else:
            total.add_(found)
        distance *= 2


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.uint8)


def _reversed(number: int, count: int) -> int:
    """A number below a power of two with its bits in reverse."""
    return int(f"{number:0{count.bit_length() - 1}b}"[::-1], 2)
