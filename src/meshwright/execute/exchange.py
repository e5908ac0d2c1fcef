"""Moves tensors between ranks: transfers one way over a channel of their own, and collectives.

CPU tensors go through gloo, CUDA tensors through NCCL, or through gloo by way of the host where
NCCL is not to be had (two ranks on one device), beside what the device computes
(`meshwright.execute.stage`). A gloo receive that is posted late starts its
transfer late, and NCCL runs what is posted on one communicator in order; so receives are posted
ahead, and under NCCL every ordered pair of ranks has a communicator of its own. Gloo would run two
collectives at once, so that both are done late; they wait in line instead, as programs have them.
On hosts with several network interfaces gloo has a process group for each rail, and a message goes
in pieces over several (`meshwright.execute.way`); NCCL chooses interfaces by itself.
"""

from collections.abc import Callable, Hashable, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
import torch.distributed as dist

from meshwright.errors import InputError, quoted
from meshwright.execute.bundle import Bundle, Opener
from meshwright.execute.gloo import Ranks, start_gather, start_scatter, start_sum, start_swap
from meshwright.execute.stage import Begin, CudaSide, Launched, Side, Staged
from meshwright.execute.way import RankWiring
from meshwright.execute.work import Communication, LaneQueue, Plain, join_works


@dataclass(frozen=True, kw_only=True, eq=False)
class RankExchange:
    """The ways between this rank and the others."""

    device: torch.device
    rank_of: Sequence[int]
    """The rank of each device of the program; -1: the plan does not use it."""
    default: Bundle
    """The process group of all pairs of devices that have no channel."""
    groups: Mapping[int, Bundle] = field(default_factory=dict)
    """torch's process groups, by the number of the program's group."""
    members: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    """The ranks of each group, in the program's order."""
    channels: Mapping[tuple[int, int], Bundle] = field(default_factory=dict)
    """Under NCCL, and with rails: the process groups of each ordered pair of devices."""
    gatherers: Mapping[int, Bundle] = field(default_factory=dict)
    """Like `groups`, for gathering where that takes others."""
    lines: MutableMapping[Hashable, LaneQueue] = field(default_factory=dict)
    """Where collectives of a group wait for those of its lane, and what is staged between two
    devices for what was before; of none: they do so by themselves."""
    open_side: Callable[[], Side] | None = None
    """Makes a stream beside the device's main one; None: the device is the host."""
    sides: MutableMapping[Hashable, Side] = field(default_factory=dict)
    """The streams made so far, by the line or communicator that uses each."""
    is_gloo: bool = True
    """Whether messages go through gloo, else NCCL, which knows those between two ranks by their
    order only, not by tags."""
    opened: Sequence[Any] = ()
    """All process groups that were made, of which this rank is a member."""

    @property
    def is_staged(self) -> bool:
        """Whether what lies on the device goes by way of the host."""
        return self.is_gloo and self.open_side is not None

    def send(self, flat: torch.Tensor, source: int, target: int, task: int) -> Communication:
        """Start to send a flat tensor of bytes to a device."""
        pair, peer = (source, target), self.rank_of[target]
        return self._move(
            pair, [flat], [], lambda given, _: self._pass(dist.isend, given[0], pair, peer, task)
        )

    def receive(self, flat: torch.Tensor, source: int, target: int, task: int) -> Communication:
        """Start to receive a flat tensor of bytes from a device."""
        pair, peer = (source, target), self.rank_of[source]
        return self._move(
            pair, [], [flat], lambda _, found: self._pass(dist.irecv, found[0], pair, peer, task)
        )

    def _pass(
        self, what: Any, flat: torch.Tensor, pair: tuple[int, int], peer: int, task: int
    ) -> Any:
        """Send or receive the pieces of a tensor, each by its process group."""
        tag = task + 1 if self.is_gloo else 0
        pieces = self.channels.get(pair, self.default).cut(flat)
        return join_works([what(each, peer, group=group, tag=tag) for each, group in pieces])

    def all_reduce(self, flat: torch.Tensor, group: int, *, is_max: bool = False) -> Communication:
        """Start to add up a flat tensor over a group, in place, or to find the greatest numbers."""
        ranks = self.groups[group].ranks
        what = dist.ReduceOp.MAX if is_max else dist.ReduceOp.SUM

        def start(piece: torch.Tensor, way: Any) -> Any:
            if self.is_gloo:
                return start_sum(piece, Ranks(ranks, way), is_max=is_max)
            return dist.all_reduce(piece, what, group=way, async_op=True)

        return self._in_place(flat, group, start)

    def broadcast(self, flat: torch.Tensor, group: int) -> Communication:
        """Start to overwrite a flat tensor with that of the group's first rank."""
        root = self.members[group][0]
        return self._in_place(
            flat, group, lambda each, way: dist.broadcast(each, root, group=way, async_op=True)
        )

    def _in_place(
        self, flat: torch.Tensor, group: int, start: Callable[[torch.Tensor, Any], Any]
    ) -> Communication:
        def begin(_: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> Any:
            return join_works([start(*each) for each in self.groups[group].cut(found[0])])

        return self._move(group, [flat], [flat], begin)

    def all_gather(
        self, flats: Sequence[torch.Tensor], own: torch.Tensor, group: int
    ) -> Communication:
        """Start to gather equally long flat tensors of all members."""
        return self._move(
            group, [own], flats, lambda given, found: self._gather(found, given[0], group)
        )

    def reduce_scatter(self, own: torch.Tensor, rows: torch.Tensor, group: int) -> Communication:
        """Start to add up a row for each member, of which this rank gets its own."""
        bundle = self.groups[group]
        order = self._order(group)
        if order != sorted(order):
            rows = rows[order]

        def begin(given: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> Any:
            if not self.is_gloo:
                way = bundle.groups[0]
                flat = given[0].flatten()
                return dist.reduce_scatter_tensor(found[0], flat, group=way, async_op=True)
            works, column = [], 0
            pieces = bundle.cut(found[0])
            for piece, way in pieces:
                columns = given[0][:, column : column + len(piece)].contiguous()
                ranks = Ranks(bundle.ranks, way)
                works.append(start_scatter(piece, columns, ranks, is_alone=len(pieces) == 1))
                column += len(piece)
            return join_works(works)

        return self._move(group, [rows], [own], begin)

    def all_to_all(
        self, given: Sequence[torch.Tensor], sizes: Sequence[int], group: int
    ) -> tuple[Communication, list[torch.Tensor]]:
        """Start to send flat tensors of bytes, one to each member, and to receive so many bytes
        from each; on one rail, because the pieces of several would not begin at the same row."""
        bundle = self.groups[group]
        order = self._order(group)
        rail, _ = max(bundle.division, key=lambda each: (each[1], -each[0]))
        sent = torch.cat([given[each] for each in order])
        received = torch.empty(sum(sizes), dtype=torch.uint8, device=sent.device)
        taken = [sizes[each] for each in order]
        counts = [len(given[each]) for each in order]
        way = bundle.groups[rail]

        def begin(given: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> Any:
            if self.is_gloo:
                pieces = torch.split(found[0], taken), torch.split(given[0], counts)
                return start_swap(*pieces, Ranks(bundle.ranks, way))
            return dist.all_to_all_single(
                found[0], given[0], taken, counts, group=way, async_op=True
            )

        work = self._move(group, [sent], [received], begin)
        pieces = torch.split(received, taken)
        parts = dict(zip(order, pieces, strict=True))
        return work, [parts[each] for each in range(len(order))]

    def shift(self, made: torch.Tensor, own: torch.Tensor, group: int) -> Communication:
        """Start to send a flat tensor to the next member of a group, and to receive as much from
        the one before."""
        bundle, ranks = self.groups[group], self.members[group]
        place = ranks.index(dist.get_rank())
        following, before = ranks[(place + 1) % len(ranks)], ranks[place - 1]

        def begin(given: Sequence[torch.Tensor], found: Sequence[torch.Tensor]) -> Any:
            ways = [(dist.isend, given[0], following), (dist.irecv, found[0], before)]
            parts = [
                dist.P2POp(what, piece, peer, group=way)
                for what, flat, peer in ways
                for piece, way in bundle.cut(flat)
            ]
            return join_works(dist.batch_isend_irecv(parts))

        return self._move(group, [own], [made], begin)

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

    def _order(self, group: int) -> list[int]:
        """The places among a group's members of the ranks of its process group, in their order."""
        place = {rank: number for number, rank in enumerate(self.members[group])}
        return [place[rank] for rank in self.groups[group].ranks]

    def _move(
        self,
        lane: Hashable,
        given: Sequence[torch.Tensor],
        found: Sequence[torch.Tensor],
        begin: Begin,
    ) -> Communication:
        """Begin after what the lane of a group or pair has begun before: send what is given, fill
        what is found, and keep both until that is done."""
        if self.is_staged:
            if lane not in self.lines:
                self.lines[lane] = LaneQueue()
            staged = Staged(self._side(lane), given, found, begin)
            if not given:
                staged.post()
            return staged.enter(self.lines[lane])
        if lane in self.lines:
            return self.lines[lane].add(lambda: begin(given, found))
        work = begin(given, found)
        plain = Plain(work, (given, found))
        return plain if self.is_gloo else Launched(plain, self._side(lane))

    def _side(self, lane: Hashable) -> Side:
        """The stream of a line; under NCCL that of a communicator, which takes turns by itself."""
        lane = self.lines.get(lane, lane)
        if lane not in self.sides:
            assert self.open_side is not None
            self.sides[lane] = self.open_side()
        return self.sides[lane]


def open_exchange(
    device: torch.device,
    rank_of: Sequence[int],
    groups: Sequence[tuple[int, ...]],
    used: Mapping[int, int],
    pairs: Sequence[tuple[int, int]],
    wiring: RankWiring | None = None,
) -> RankExchange:
    """Make the process groups of a program; all ranks call it with the same arguments.

    `groups` are those of the program, as device numbers, `used` the lanes of those that
    communicate, by number, `pairs` the ordered pairs of devices between which there are transfers.
    With `wiring`, whose names alone are a rank's own, these go over several interfaces.
    """
    if not dist.is_initialized():  # one rank by itself
        alone = Bundle(groups={0: None})
        return RankExchange(device=device, rank_of=tuple(rank_of), default=alone)
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
    return RankExchange(
        device=device,
        rank_of=tuple(rank_of),
        groups=made,
        gatherers=opener.open_gatherers(),
        members={number: tuple(rank_of[each] for each in groups[number]) for number in made},
        channels=channels,
        default=Bundle(groups={0: dist.group.WORLD}),
        lines=_open_lines(used) if backend == "gloo" else {},
        open_side=partial(CudaSide, device) if device.type == "cuda" else None,
        is_gloo=backend == "gloo",
        opened=[
            each for each in opener.known.values() if each is not dist.GroupMember.NON_GROUP_MEMBER
        ],
    )


def _open_lines(lane_of: Mapping[int, int]) -> dict[Hashable, LaneQueue]:
    """By group the line of its lane."""
    lines = {lane: LaneQueue() for lane in sorted(set(lane_of.values()))}
    return {group: lines[lane] for group, lane in lane_of.items()}


def close_exchange(exchange: RankExchange) -> None:
    """Give the process groups back."""
    for line in set(exchange.lines.values()):
        line.close()
    for group in exchange.opened:
        dist.destroy_process_group(group)
