"""Moves tensors between ranks: transfers one way over a channel of their own, and collectives.

CPU tensors go through gloo, CUDA tensors through NCCL, or through gloo by way of the host where
NCCL is not to be had (two ranks on one device). A gloo receive that is posted late starts its
transfer late, and NCCL runs what is posted on one communicator in order; so receives are posted
ahead, and under NCCL every ordered pair of ranks has a communicator of its own. Gloo would run two
collectives at once, so that both are done late; they wait in line instead, as programs have them.
"""

import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist

from meshwright.errors import InputError, quoted

_JOIN_SECONDS = 2.0
"""As in `meshwright.execute.walk`."""


class Work(Protocol):
    """Communication under way."""

    def wait(self) -> None:
        """Return when it is done; on a CUDA stream, when what follows will find it done."""


@dataclass(slots=True)
class _Plain:
    """torch's work, and what must stay alive until it is done."""

    work: Any
    keep: Any

    def wait(self) -> None:
        self.work.wait()
        self.keep = None


@dataclass(slots=True)
class _Staged:
    """Work on a copy on the host, brought to the device when it is done."""

    work: Any
    host: torch.Tensor
    target: torch.Tensor

    def wait(self) -> None:
        self.work.wait()
        self.target.copy_(self.host)


@dataclass(slots=True)
class _Queued:
    """A collective that waits for its turn."""

    start: Callable[[], Any]
    done: threading.Event = field(default_factory=threading.Event)
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.start().wait()
        except BaseException as error:  # raised again by whoever waits
            self.error = error
        self.done.set()

    def wait(self) -> None:
        self.done.wait()
        if self.error is not None:
            raise self.error


class Line:
    """Runs collectives one after the other, beside the threads that ask for them."""

    def __init__(self) -> None:
        self.queue: queue.SimpleQueue[_Queued | None] = queue.SimpleQueue()
        self.thread = threading.Thread(target=self._serve, name="collectives", daemon=True)
        self.thread.start()

    def add(self, start: Callable[[], Any]) -> Work:
        """Start a collective after all that came before."""
        queued = _Queued(start)
        self.queue.put(queued)
        return queued

    def close(self) -> None:
        """End the thread after what it has."""
        self.queue.put(None)
        self.thread.join(_JOIN_SECONDS)

    def _serve(self) -> None:
        while (queued := self.queue.get()) is not None:
            queued.run()
            del queued


@dataclass(frozen=True, kw_only=True, eq=False)
class Exchange:
    """The ways between this rank and the others."""

    device: torch.device
    rank_of: Sequence[int]
    """The rank of each device of the program; -1: the plan does not use it."""
    groups: Mapping[int, Any]
    """torch's process groups, by the number of the program's group."""
    members: Mapping[int, tuple[int, ...]]
    """The ranks of each group."""
    channels: Mapping[tuple[int, int], Any]
    """Under NCCL: the process group of each ordered pair of devices."""
    is_staged: bool
    """Whether what lies on the device goes by way of the host."""
    default: Any = None
    line: Line | None = None
    """Where collectives wait for each other; None: they do so by themselves."""

    def send(self, flat: torch.Tensor, source: int, target: int, task: int) -> Work:
        """Start to send a flat tensor of bytes to a device."""
        if self.is_staged:
            flat = flat.cpu()
        group = self.channels.get((source, target), self.default)
        work = dist.isend(flat, self.rank_of[target], group=group, tag=self._tag(task))
        return _Plain(work, flat)

    def receive(self, flat: torch.Tensor, source: int, target: int, task: int) -> Work:
        """Start to receive a flat tensor of bytes from a device."""
        group = self.channels.get((source, target), self.default)
        if self.is_staged:
            host = torch.empty(flat.shape, dtype=flat.dtype)
            work = dist.irecv(host, self.rank_of[source], group=group, tag=self._tag(task))
            return _Staged(work, host, flat)
        work = dist.irecv(flat, self.rank_of[source], group=group, tag=self._tag(task))
        return _Plain(work, flat)

    def _tag(self, task: int) -> int:
        return 0 if self.channels else task + 1

    def all_reduce(self, flat: torch.Tensor, group: int) -> Work:
        """Start to add up a flat tensor over a group, in place."""
        return self._collective(
            flat, lambda each: dist.all_reduce(each, group=self.groups[group], async_op=True)
        )

    def broadcast(self, flat: torch.Tensor, group: int) -> Work:
        """Start to overwrite a flat tensor with that of the group's first rank."""
        root = self.members[group][0]
        return self._collective(
            flat,
            lambda each: dist.broadcast(each, root, group=self.groups[group], async_op=True),
        )

    def all_gather(self, flats: Sequence[torch.Tensor], own: torch.Tensor, group: int) -> Work:
        """Start to gather equally long flat tensors of all members."""
        if self.is_staged:
            hosts = [torch.empty(each.shape, dtype=each.dtype) for each in flats]
            own = own.cpu()
            work = self._in_turn(lambda: self._gather(hosts, own, group))
            return _StagedMany(work, hosts, list(flats))
        work = self._in_turn(lambda: self._gather(list(flats), own, group))
        return _Plain(work, (own, flats))

    def _gather(self, flats: list[torch.Tensor], own: torch.Tensor, group: int) -> Any:
        return dist.all_gather(flats, own, group=self.groups[group], async_op=True)

    def _collective(self, flat: torch.Tensor, start: Callable[[torch.Tensor], Any]) -> Work:
        if self.is_staged:
            host = flat.cpu()
            return _Staged(self._in_turn(lambda: start(host)), host, flat)
        return _Plain(self._in_turn(lambda: start(flat)), flat)

    def _in_turn(self, start: Callable[[], Any]) -> Any:
        return start() if self.line is None else self.line.add(start)


@dataclass(slots=True)
class _StagedMany:
    """Like `_Staged`, for several tensors."""

    work: Any
    hosts: list[torch.Tensor]
    targets: list[torch.Tensor]

    def wait(self) -> None:
        self.work.wait()
        for host, target in zip(self.hosts, self.targets, strict=True):
            target.copy_(host)


def open_exchange(
    device: torch.device,
    rank_of: Sequence[int],
    groups: Sequence[tuple[int, ...]],
    used: Sequence[int],
    pairs: Sequence[tuple[int, int]],
) -> Exchange:
    """Make the process groups of a program; all ranks call it with the same arguments.

    `groups` are those of the program, as device numbers, `used` the numbers of those that
    communicate, `pairs` the ordered pairs of devices between which there are transfers.
    """
    if not dist.is_initialized():  # one rank by itself
        return Exchange(
            device=device,
            rank_of=tuple(rank_of),
            groups={},
            members={},
            channels={},
            is_staged=False,
        )
    known: dict[tuple[int, ...], Any] = {}
    made: dict[int, Any] = {}
    members: dict[int, tuple[int, ...]] = {}
    for number in sorted(set(used)):
        ranks = tuple(rank_of[each] for each in groups[number])
        if ranks not in known:
            known[ranks] = dist.new_group(list(ranks), sort_ranks=False)
        made[number], members[number] = known[ranks], ranks
    backend = dist.get_backend()
    channels = {}
    if backend == "nccl":
        for source, target in sorted(set(pairs)):
            channels[source, target] = dist.new_group([rank_of[source], rank_of[target]])
    elif backend != "gloo":
        raise InputError(f"backend: must be gloo or nccl, got {quoted(backend)}")
    return Exchange(
        device=device,
        rank_of=tuple(rank_of),
        groups=made,
        members=members,
        channels=channels,
        is_staged=device.type == "cuda" and backend == "gloo",
        default=dist.group.WORLD,
        line=Line() if backend == "gloo" and made else None,
    )


def close_exchange(exchange: Exchange) -> None:
    """Give the process groups back."""
    if exchange.line is not None:
        exchange.line.close()
    for group in {id(each): each for each in exchange.groups.values()}.values():
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
    for group in exchange.channels.values():
        if group is not dist.GroupMember.NON_GROUP_MEMBER:
            dist.destroy_process_group(group)
