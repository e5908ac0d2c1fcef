"""Moves tensors between ranks: transfers one way over a channel of their own, and collectives.

CPU tensors go through gloo, CUDA tensors through NCCL, or through gloo by way of the host where
NCCL is not to be had (two ranks on one device). A gloo receive that is posted late starts its
transfer late, and NCCL runs what is posted on one communicator in order; so receives are posted
ahead, and under NCCL every ordered pair of ranks has a communicator of its own. Gloo would run two
collectives at once, so that both are done late; they wait in line instead, as programs have them.
On hosts with several network interfaces gloo has a process group for each rail, and a message goes
in pieces over several (`meshwright.execute.way`); NCCL chooses interfaces by itself.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from meshwright.errors import InputError, quoted
from meshwright.execute.environment import INTERFACE
from meshwright.execute.way import Division, Ring, Wiring, cut_pieces
from meshwright.execute.work import AddedUp, Line, Plain, Staged, StagedMany, Work, join_works
from meshwright.program.collective import Lane

_ANY = -1
"""Stands for the rail of process groups that have none."""
_PAIR = -1
"""Tells process groups of transfers apart from those of collectives of the same ranks, ..."""
_LANE = -2
"""... and those of other lanes."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bundle:
    """The process groups of the same ranks: one a rail, or one alone."""

    groups: Mapping[int, Any]
    """By rail."""
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchange:
    """The ways between this rank and the others."""

    device: torch.device
    rank_of: Sequence[int]
    """The rank of each device of the program; -1: the plan does not use it."""
    groups: Mapping[int, Bundle]
    """torch's process groups, by the number of the program's group."""
    members: Mapping[int, tuple[int, ...]]
    """The ranks of each group, in the program's order."""
    channels: Mapping[tuple[int, int], Bundle]
    """Under NCCL, and with rails: the process groups of each ordered pair of devices."""
    is_staged: bool
    """Whether what lies on the device goes by way of the host."""
    default: Bundle
    """Of all other pairs."""
    gatherers: Mapping[int, Bundle] = field(default_factory=dict)
    """Like `groups`, for gathering where that takes others."""
    lines: Mapping[int, Line] = field(default_factory=dict)
    """Where collectives of a group wait for those of its lane; of none: they do so by themselves.
    """
    is_tagged: bool = True
    """Whether messages between two ranks are told apart by tags; NCCL knows their order only."""
    opened: Sequence[Any] = ()
    """All process groups that were made."""

    @property
    def num_members(self) -> int:
        """Of the largest group."""
        return max(map(len, self.members.values()), default=1)

    def send(self, flat: torch.Tensor, source: int, target: int, task: int) -> Work:
        """Start to send a flat tensor of bytes to a device."""
        if self.is_staged:
            flat = flat.cpu()
        works = [
            dist.isend(piece, self.rank_of[target], group=group, tag=self._tag(task))
            for piece, group in self._channel(source, target).cut(flat)
        ]
        return Plain(join_works(works), flat)

    def receive(self, flat: torch.Tensor, source: int, target: int, task: int) -> Work:
        """Start to receive a flat tensor of bytes from a device."""
        host = torch.empty(flat.shape, dtype=flat.dtype) if self.is_staged else flat
        works = [
            dist.irecv(piece, self.rank_of[source], group=group, tag=self._tag(task))
            for piece, group in self._channel(source, target).cut(host)
        ]
        work = join_works(works)
        return Staged(work, host, flat) if self.is_staged else Plain(work, flat)

    def _channel(self, source: int, target: int) -> Bundle:
        return self.channels.get((source, target), self.default)

    def _tag(self, task: int) -> int:
        return task + 1 if self.is_tagged else 0

    def all_reduce(self, flat: torch.Tensor, group: int, *, is_max: bool = False) -> Work:
        """Start to add up a flat tensor over a group, in place, or to find the greatest numbers."""
        what = dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM
        return self._collective(
            flat, group, lambda each, way: dist.all_reduce(each, what, group=way, async_op=True)
        )

    def broadcast(self, flat: torch.Tensor, group: int) -> Work:
        """Start to overwrite a flat tensor with that of the group's first rank."""
        root = self.members[group][0]
        return self._collective(
            flat, group, lambda each, way: dist.broadcast(each, root, group=way, async_op=True)
        )

    def all_gather(self, flats: Sequence[torch.Tensor], own: torch.Tensor, group: int) -> Work:
        """Start to gather equally long flat tensors of all members."""
        if self.is_staged:
            hosts = [torch.empty(each.shape, dtype=each.dtype) for each in flats]
            own = own.cpu()
            work = self._in_turn(group, lambda: self._gather(hosts, own, group))
            return StagedMany(work, hosts, list(flats))
        work = self._in_turn(group, lambda: self._gather(flats, own, group))
        return Plain(work, (own, flats))

    def reduce_scatter(self, own: torch.Tensor, rows: torch.Tensor, group: int) -> Work:
        """Start to add up a row for each member, of which this rank gets its own.

        Gloo's own is an all-reduce that throws away most of its result; an exchange of rows, added
        up here, moves as little as rings do.
        """
        bundle = self.groups[group]
        place = {rank: number for number, rank in enumerate(self.members[group])}
        order = [place[rank] for rank in bundle.ranks]
        if order != sorted(order):
            rows = rows[order]
        if self.is_staged:
            rows = rows.cpu()
        if own.is_cuda and not self.is_staged:
            work = self._in_turn(
                group,
                lambda: dist.reduce_scatter_tensor(
                    own, rows.flatten(), group=bundle.groups[0], async_op=True
                ),
            )
            return Plain(work, rows)
        start, pieces = 0, []
        for column, way in bundle.cut(torch.empty(own.shape, dtype=own.dtype, device="meta")):
            given = rows[:, start : start + column.numel()].contiguous()
            pieces.append((given, torch.empty_like(given), way))
            start += column.numel()
        work = self._in_turn(
            group,
            lambda: join_works(
                [
                    dist.all_to_all_single(found, given, group=way, async_op=True)
                    for given, found, way in pieces
                ]
            ),
        )
        return AddedUp(work, [found for _, found, _ in pieces], own)

    def all_to_all(
        self, given: Sequence[torch.Tensor], sizes: Sequence[int], group: int
    ) -> tuple[Work, list[torch.Tensor]]:
        """Start to send flat tensors of bytes, one to each member, and to receive so many bytes
        from each; on one rail, because the pieces of several would not begin at the same row."""
        bundle = self.groups[group]
        place = {rank: number for number, rank in enumerate(self.members[group])}
        order = [place[rank] for rank in bundle.ranks]
        rail, _ = max(bundle.division, key=lambda each: (each[1], -each[0]))
        sent = torch.cat([given[each] for each in order])
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=sent.device)
        if self.is_staged:
            sent = sent.cpu()
        host = torch.empty(received.shape, dtype=torch.uint8) if self.is_staged else received
        work = self._in_turn(
            group,
            lambda: dist.all_to_all_single(
                host,
                sent,
                [sizes[each] for each in order],
                [len(given[each]) for each in order],
                group=bundle.groups[rail],
                async_op=True,
            ),
        )
        pieces = torch.split(received, [sizes[each] for each in order])
        parts = dict(zip(order, pieces, strict=True))
        found = [parts[each] for each in range(len(order))]
        if self.is_staged:
            return Staged(work, host, received), found
        return Plain(work, (sent, received)), found

    def shift(self, made: torch.Tensor, own: torch.Tensor, group: int) -> Work:
        """Start to send a flat tensor to the next member of a group, and to receive as much from
        the one before."""
        bundle, ranks = self.groups[group], self.members[group]
        place = ranks.index(dist.get_rank())
        host = torch.empty(made.shape, dtype=made.dtype) if self.is_staged else made
        sent = own.cpu() if self.is_staged else own
        ways = [
            (dist.isend, sent, ranks[(place + 1) % len(ranks)]),
            (dist.irecv, host, ranks[place - 1]),
        ]
        parts = [
            dist.P2POp(what, piece, peer, group=way)
            for what, flat, peer in ways
            for piece, way in bundle.cut(flat)
        ]
        work = self._in_turn(group, lambda: join_works(dist.batch_isend_irecv(parts)))
        return Staged(work, host, made) if self.is_staged else Plain(work, (made, own))

    def _gather(self, flats: Sequence[torch.Tensor], own: torch.Tensor, group: int) -> Work:
        bundle = self.gatherers.get(group, self.groups[group])
        of_rank = dict(zip(self.members[group], flats, strict=True))
        parts = [[each for each, _ in bundle.cut(of_rank[rank])] for rank in bundle.ranks]
        return join_works(
            [
                dist.all_gather([each[place] for each in parts], piece, group=way, async_op=True)
                for place, (piece, way) in enumerate(bundle.cut(own))
            ]
        )

    def _collective(
        self, flat: torch.Tensor, group: int, start: Callable[[torch.Tensor, Any], Any]
    ) -> Work:
        host = flat.cpu() if self.is_staged else flat
        pieces = self.groups[group].cut(host)
        work = self._in_turn(group, lambda: join_works([start(*each) for each in pieces]))
        return Staged(work, host, flat) if self.is_staged else Plain(work, flat)

    def _in_turn(self, group: int, start: Callable[[], Any]) -> Any:
        return self.lines[group].add(start) if group in self.lines else start()


def open_exchange(
    device: torch.device,
    rank_of: Sequence[int],
    groups: Sequence[tuple[int, ...]],
    used: Mapping[int, int],
    pairs: Sequence[tuple[int, int]],
    wiring: Wiring | None = None,
) -> Exchange:
    """Make the process groups of a program; all ranks call it with the same arguments.

    `groups` are those of the program, as device numbers, `used` the lanes of those that
    communicate, by number, `pairs` the ordered pairs of devices between which there are transfers.
    With `wiring`, whose names alone are a rank's own, these go over several interfaces.
    """
    if not dist.is_initialized():  # one rank by itself
        return Exchange(
            device=device,
            rank_of=tuple(rank_of),
            groups={},
            members={},
            channels={},
            is_staged=False,
            default=Bundle(groups={0: None}),
        )
    backend = dist.get_backend()
    if backend not in ("gloo", "nccl"):
        raise InputError(f"backend: must be gloo or nccl, got {quoted(backend)}")
    opener = _Opener(rank_of, wiring if backend == "gloo" else None)
    made = {
        number: opener.open_group(number, groups[number], lane)
        for number, lane in sorted(used.items())
    }
    if backend == "nccl":
        channels = {each: opener.open_pair(*each) for each in sorted(set(pairs))}
    else:
        channels = opener.open_rails()
    return Exchange(
        device=device,
        rank_of=tuple(rank_of),
        groups=made,
        gatherers=opener.open_gatherers(),
        members={number: tuple(rank_of[each] for each in groups[number]) for number in made},
        channels=channels,
        is_staged=device.type == "cuda" and backend == "gloo",
        default=Bundle(groups={0: dist.group.WORLD}),
        lines=_open_lines(used) if backend == "gloo" else {},
        is_tagged=backend == "gloo",
        opened=opener.opened,
    )


def _open_lines(lane_of: Mapping[int, int]) -> dict[int, Line]:
    """By group the line of its lane."""
    lines = {lane: Line() for lane in sorted(set(lane_of.values()))}
    return {group: lines[lane] for group, lane in lane_of.items()}


class _Opener:
    """Makes process groups, each once, in the same order on all ranks."""

    def __init__(self, rank_of: Sequence[int], wiring: Wiring | None) -> None:
        self.rank_of, self.wiring = rank_of, wiring
        self.known: dict[tuple[tuple[int, ...], int], Any] = {}
        self.order_of: dict[tuple[int, frozenset[int]], tuple[int, ...]] = {}

    @property
    def opened(self) -> list[Any]:
        """All that were made, of which this rank is a member."""
        return [
            each for each in self.known.values() if each is not dist.GroupMember.NON_GROUP_MEMBER
        ]

    def open_group(self, number: int, members: Sequence[int], lane: int) -> Bundle:
        """Of a group of the program; around a ring where rails are known.

        What runs at the same time on two lanes has connections of its own.
        """
        ring = None if self.wiring is None else self.wiring.rails.rings.get(number)
        if ring is None:
            ranks = tuple(self.rank_of[each] for each in members)
            # Groups that differ in who serves are the same processes.
            ranks = self.order_of.setdefault((lane, frozenset(ranks)), ranks)
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
        ranks = tuple(self.rank_of[each] for each in devices)
        return Bundle(
            groups={rail: self._open(ranks, rail) for rail, _ in ring.division},
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

    def _open(self, ranks: tuple[int, ...], rail: int = _ANY) -> Any:
        """A process group of these ranks, on a rail or wherever the environment says."""
        return self._make(ranks, ranks, rail)

    def _make(self, key: tuple[int, ...], ranks: tuple[int, ...], rail: int) -> Any:
        if (key, rail) not in self.known:
            names = {} if self.wiring is None else self.wiring.names
            with bound_to(names.get(rail)):
                self.known[key, rail] = dist.new_group(list(ranks), sort_ranks=False)
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


def close_exchange(exchange: Exchange) -> None:
    """Give the process groups back."""
    for line in set(exchange.lines.values()):
        line.close()
    for group in exchange.opened:
        dist.destroy_process_group(group)
