"""Moves tensors between ranks: transfers one way over a channel of their own, and collectives.

CPU tensors go through gloo, CUDA tensors through NCCL, or through gloo by way of the host where
NCCL is not to be had (two ranks on one device). A gloo receive that is posted late starts its
transfer late, and NCCL runs what is posted on one communicator in order; so receives are posted
ahead, and under NCCL every ordered pair of ranks has a communicator of its own. Gloo would run two
collectives at once, so that both are done late; they wait in line instead, as programs have them.
On hosts with several network interfaces gloo has a process group for each rail, and a message goes
in pieces over several (`meshwright.execute.way`); NCCL chooses interfaces by itself.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist

from meshwright.errors import InputError, quoted
from meshwright.execute.bundle import Bundle, Opener
from meshwright.execute.gloo import Ranks, start_gather, start_scatter, start_sum, start_swap
from meshwright.execute.way import Wiring
from meshwright.execute.work import Line, Plain, Work, join_works


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
    is_gloo: bool = True
    """Not NCCL, which knows messages between two ranks by their order only, not by tags."""
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
        host = self._host(flat)
        works = [
            dist.irecv(piece, self.rank_of[source], group=group, tag=self._tag(task))
            for piece, group in self._channel(source, target).cut(host)
        ]
        work = Plain(join_works(works), host)
        self._unstage(work, [(host, flat)])
        return work

    def _unstage(self, work: Work, pairs: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> None:
        """Bring what arrives on the host to the device."""

        def finish() -> None:
            for host, target in pairs:
                target.copy_(host)

        if self.is_staged:
            work.then(finish)

    def _channel(self, source: int, target: int) -> Bundle:
        return self.channels.get((source, target), self.default)

    def _tag(self, task: int) -> int:
        return task + 1 if self.is_gloo else 0

    def all_reduce(self, flat: torch.Tensor, group: int, *, is_max: bool = False) -> Work:
        """Start to add up a flat tensor over a group, in place, or to find the greatest numbers."""
        ranks = self.groups[group].ranks
        what = dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM

        def start(piece: torch.Tensor, way: Any) -> Any:
            if self.is_gloo:
                return start_sum(piece, Ranks(ranks, way), is_max=is_max)
            return dist.all_reduce(piece, what, group=way, async_op=True)

        return self._collective(flat, group, start)

    def broadcast(self, flat: torch.Tensor, group: int) -> Work:
        """Start to overwrite a flat tensor with that of the group's first rank."""
        root = self.members[group][0]
        return self._collective(
            flat, group, lambda each, way: dist.broadcast(each, root, group=way, async_op=True)
        )

    def all_gather(self, flats: Sequence[torch.Tensor], own: torch.Tensor, group: int) -> Work:
        """Start to gather equally long flat tensors of all members."""
        hosts = [self._host(each) for each in flats]
        sent = own.cpu() if self.is_staged else own
        work = self._in_turn(group, lambda: self._gather(hosts, sent, group), (hosts, sent))
        self._unstage(work, list(zip(hosts, flats, strict=True)))
        return work

    def _host(self, tensor: torch.Tensor) -> torch.Tensor:
        """Where something arrives that goes into a tensor: there, or on the host."""
        return torch.empty(tensor.shape, dtype=tensor.dtype) if self.is_staged else tensor

    def reduce_scatter(self, own: torch.Tensor, rows: torch.Tensor, group: int) -> Work:
        """Start to add up a row for each member, of which this rank gets its own."""
        bundle = self.groups[group]
        order = self._order(group)
        if order != sorted(order):
            rows = rows[order]
        if not self.is_gloo:
            way = bundle.groups[0]
            return Plain(
                dist.reduce_scatter_tensor(own, rows.flatten(), group=way, async_op=True), rows
            )
        if self.is_staged:
            rows = rows.cpu()
        host = self._host(own)
        pieces = bundle.cut(host)

        def start() -> Any:
            works, column = [], 0
            for piece, way in pieces:
                columns = rows[:, column : column + len(piece)].contiguous()
                works.append(
                    start_scatter(
                        piece, columns, Ranks(bundle.ranks, way), is_alone=len(pieces) == 1
                    )
                )
                column += len(piece)
            return join_works(works)

        work = self._in_turn(group, start, (rows, own))
        self._unstage(work, [(host, own)])
        return work

    def all_to_all(
        self, given: Sequence[torch.Tensor], sizes: Sequence[int], group: int
    ) -> tuple[Work, list[torch.Tensor]]:
        """Start to send flat tensors of bytes, one to each member, and to receive so many bytes
        from each; on one rail, because the pieces of several would not begin at the same row."""
        bundle = self.groups[group]
        order = self._order(group)
        rail, _ = max(bundle.division, key=lambda each: (each[1], -each[0]))
        sent = torch.cat([given[each] for each in order])
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=sent.device)
        if self.is_staged:
            sent = sent.cpu()
        host = self._host(received)
        taken = [sizes[each] for each in order]
        counts = [len(given[each]) for each in order]
        way = bundle.groups[rail]

        def start() -> Any:
            if self.is_gloo:
                return start_swap(
                    torch.split(host, taken), torch.split(sent, counts), Ranks(bundle.ranks, way)
                )
            return dist.all_to_all_single(host, sent, taken, counts, group=way, async_op=True)

        work = self._in_turn(group, start, (sent, received))
        self._unstage(work, [(host, received)])
        pieces = torch.split(received, taken)
        parts = dict(zip(order, pieces, strict=True))
        return work, [parts[each] for each in range(len(order))]

    def shift(self, made: torch.Tensor, own: torch.Tensor, group: int) -> Work:
        """Start to send a flat tensor to the next member of a group, and to receive as much from
        the one before."""
        bundle, ranks = self.groups[group], self.members[group]
        place = ranks.index(dist.get_rank())
        host = self._host(made)
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
        work = self._in_turn(group, lambda: join_works(dist.batch_isend_irecv(parts)), (host, sent))
        self._unstage(work, [(host, made)])
        return work

    def _gather(self, flats: Sequence[torch.Tensor], own: torch.Tensor, group: int) -> Any:
        bundle = self.gatherers.get(group, self.groups[group])
        of_rank = dict(zip(self.members[group], flats, strict=True))
        parts = [[each for each, _ in bundle.cut(of_rank[rank])] for rank in bundle.ranks]
        works: list[Any] = []
        pieces = bundle.cut(own)
        for number, (piece, way) in enumerate(pieces):
            found, ranks = [each[number] for each in parts], Ranks(bundle.ranks, way)
            if self.is_gloo:
                works.append(start_gather(found, piece, ranks, is_alone=len(pieces) == 1))
            else:
                works.append(dist.all_gather(found, piece, group=way, async_op=True))
        return join_works(works)

    def _collective(
        self, flat: torch.Tensor, group: int, start: Callable[[torch.Tensor, Any], Any]
    ) -> Work:
        host = flat.cpu() if self.is_staged else flat
        pieces = self.groups[group].cut(host)
        work = self._in_turn(group, lambda: join_works([start(*each) for each in pieces]), flat)
        self._unstage(work, [(host, flat)])
        return work

    def _order(self, group: int) -> list[int]:
        """The places among a group's members of the ranks of its process group, in their order."""
        place = {rank: number for number, rank in enumerate(self.members[group])}
        return [place[rank] for rank in self.groups[group].ranks]

    def _in_turn(self, group: int, start: Callable[[], Any], keep: Any) -> Work:
        """Start a collective after those of its lane; `keep` what must stay until it is done."""
        return self.lines[group].add(start) if group in self.lines else Plain(start(), keep)


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
    opener = Opener(rank_of, wiring if backend == "gloo" else None)
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
        is_gloo=backend == "gloo",
        opened=opener.opened,
    )


def _open_lines(lane_of: Mapping[int, int]) -> dict[int, Line]:
    """By group the line of its lane."""
    lines = {lane: Line() for lane in sorted(set(lane_of.values()))}
    return {group: lines[lane] for group, lane in lane_of.items()}


def close_exchange(exchange: Exchange) -> None:
    """Give the process groups back."""
    for line in set(exchange.lines.values()):
        line.close()
    for group in exchange.opened:
        dist.destroy_process_group(group)
