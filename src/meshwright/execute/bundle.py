"""Makes torch's process groups of a program's groups, pairs and rails, each once and in the same
order on all ranks."""

import inspect
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from meshwright.execute.environment import INTERFACE
from meshwright.execute.way import Division, RankWiring, Ring, cut_pieces
from meshwright.program.collective import Lane

_ANY = -1
"""Stands for the rail of process groups that have none."""
_PAIR = -1
"""Begins the key of a process group of transfers, which no collective of the same ranks shares."""
_LANE = -2
"""Begins the key of a process group of a lane other than that of gradients."""


AS_GIVEN: dict[str, Any] = (
    {"sort_ranks": False} if "sort_ranks" in inspect.signature(dist.new_group).parameters else {}
)
"""So that torch 2.13 leaves the ranks of a group in the order given; older ones sort them."""


def _in_order(ranks: Iterable[int]) -> tuple[int, ...]:
    """Ranks in the order that they will have in a group."""
    return tuple(ranks) if AS_GIVEN else tuple(sorted(ranks))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bundle:
    """The process groups of the same ranks: one a rail, or one alone."""

    groups: Mapping[int, Any]
    """The process group of each rail, by its number."""
    division: Division = ((0, 1.0),)
    ranks: tuple[int, ...] = ()
    """In the order that they have in the groups."""

    def cut(self, flat: torch.Tensor) -> list[tuple[torch.Tensor, Any]]:
        """The pieces of a flat tensor, each with its process group."""
        size = flat.element_size()
        return [
            (flat[start // size : end // size], self.groups[rail])
            for rail, start, end in cut_pieces(flat.numel() * size, self.division)
        ]


class Opener:
    """Makes process groups, each once, in the same order on all ranks."""

    def __init__(self, rank_of: Sequence[int], wiring: RankWiring | None) -> None:
        self.rank_of, self.wiring = rank_of, wiring
        self.known: dict[tuple[tuple[int, ...], int], Any] = {}
        self.order_of: dict[tuple[int, frozenset[int]], tuple[int, ...]] = {}

    def open_group(self, number: int, members: Sequence[int], lane: int) -> Bundle:
        """Of a group of the program; around a ring where rails are known.

        What runs at the same time on two lanes has connections of its own.
        """
        ring = None if self.wiring is None else self.wiring.rails.rings.get(number)
        if ring is None:
            ranks = tuple(self.rank_of[each] for each in members)
            # Groups that differ in who serves are the same processes.
            ranks = self.order_of.setdefault((lane, frozenset(ranks)), _in_order(ranks))
            key = ranks if lane == Lane.SYNC else (_LANE, lane, *ranks)
            return Bundle(groups={0: self._make(key, ranks, _ANY)}, ranks=ranks)
        # When gloo (of torch 2.13) adds up, each rank sends to the one before it.
        return self._open_ring(ring, ring.devices[::-1])

    def open_gatherers(self) -> dict[int, Bundle]:
        """Of groups that gather around a ring: each rank sends to the one after it."""
        if self.wiring is None:
            return {}
        rails = self.wiring.rails
        return {
            number: self._open_ring(ring, ring.devices)
            for number, ring in sorted(rails.rings.items())
            if number in rails.gathered
        }

    def _open_ring(self, ring: Ring, devices: Sequence[int]) -> Bundle:
        ranks = _in_order(self.rank_of[each] for each in devices)
        return Bundle(
            groups={rail: self._make(ranks, ranks, rail) for rail, _ in ring.division},
            division=ring.division,
            ranks=ranks,
        )

    def open_pair(self, source: int, target: int) -> Bundle:
        """Of an ordered pair of devices by themselves."""
        ranks = self.rank_of[source], self.rank_of[target]
        return Bundle(groups={0: self._make((_PAIR, *ranks), tuple(sorted(ranks)), _ANY)})

    def open_rails(self) -> dict[tuple[int, int], Bundle]:
        """Of all pairs of devices that have rails."""
        if self.wiring is None:
            return {}
        rails, host_of = self.wiring.rails, self.wiring.host_of
        groups = {}
        for rail in rails.used:
            on_it = (
                self.rank_of[k] for k, host in enumerate(host_of) if host in rails.places[rail]
            )
            ranks = tuple(sorted(rank for rank in on_it if rank >= 0))
            # Never a collective's own: a transfer would wait behind it on their one connection.
            groups[rail] = self._make((_PAIR, *ranks), ranks, rail)
        return {
            pair: Bundle(groups=groups, division=division) for pair, division in rails.pairs.items()
        }

    def _make(self, key: tuple[int, ...], ranks: tuple[int, ...], rail: int) -> Any:
        """A process group of these ranks, on a rail or wherever the environment says."""
        if (key, rail) not in self.known:
            names = {} if self.wiring is None else self.wiring.names
            with bound_to(names.get(rail)):
                self.known[key, rail] = dist.new_group(list(ranks), **AS_GIVEN)
        return self.known[key, rail]


@contextmanager
def bound_to(interface: str | None) -> Iterator[None]:
    """Within this gloo makes process groups on an interface of this host; None: on any."""
    if interface is None:
        yield
        return
    before = os.environ.get(INTERFACE)
    os.environ[INTERFACE] = interface
    try:
        yield
    finally:
        del os.environ[INTERFACE]
        if before is not None:
            os.environ[INTERFACE] = before
