"""One rank among the others: its device, the process group, its watch, and a common clock.

Decides how long ranks wait for each other at the start.
"""

import os
import signal
import socket
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from meshwright.errors import InputError, NonFiniteError, RankError, some
from meshwright.execute.bundle import bound_to
from meshwright.execute.environment import (
    INTERFACE,
    LOOPBACK,
    own_rank,
    read_place,
    run_folder,
)
from meshwright.execute.fault import end_process, is_consequence, name_rank, show_line
from meshwright.execute.message import gather, message_device, share
from meshwright.execute.process import die_with_parent
from meshwright.execute.progress import NOBODY, Progress
from meshwright.execute.route import find_interface, find_source, is_local
from meshwright.execute.store import NamedStore, open_store
from meshwright.execute.watch import Watch
from meshwright.signals import handled_signals

TIMEOUT_SECONDS = 24 * 3600.0
"""torch's own; a rank that hangs is found by the watch long before."""
JOIN_SECONDS = 60.0
"""So long, or as long as a rank may be silent later on, others wait for one to start: importing
torch from a cold disk takes longer than any step."""

_SAY_SECONDS = 5.0
_ROUNDS = 16
_AHEAD_SECONDS = 0.02
"""A common start is fixed so much ahead that all have heard of it."""


def pick_device(kind: str | None) -> torch.device:
    """The device that this rank computes on: one of its host's GPUs, or the CPU."""
    if kind is None:
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("device cuda: torch finds none that it can use; use --device cpu")
    device = torch.device("cuda", read_place().local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def pick_backend(device: torch.device, backend: str | None) -> str:
    """NCCL where there is one and every rank of the host has a GPU of its own, else gloo.

    One that was asked for is refused where these ranks cannot use it.
    """
    num_ranks, reason = read_place().num_local_ranks, ""
    if device.type != "cuda":
        reason = f"ranks must compute on cuda, not on {device.type}"
    elif not dist.is_nccl_available():
        reason = "this PyTorch must have been built with it"
    elif num_ranks > torch.cuda.device_count():
        reason = (
            f"every rank of a host must have a GPU of its own, {num_ranks} have "
            f"{torch.cuda.device_count()}"
        )
    if backend == "nccl" and reason:
        raise InputError(f"backend nccl: {reason}; use gloo")
    return backend or ("gloo" if reason else "nccl")


def meet(stall_seconds: float) -> tuple[Any, list[str]]:
    """Wait until all ranks are there; a store, None for one rank alone, and the host of each."""
    place = read_place()
    if place.num_ranks == 1:
        return None, [place.host]
    if place.is_agents_store:
        die_with_parent()  # torchrun, once killed, leaves its ranks behind
    limit_seconds = max(stall_seconds, JOIN_SECONDS)
    store = open_store(limit_seconds, may_serve=True)
    store = _apart(store, store.add(f"runs of rank {place.rank}", 1))
    hosts = exchange_hosts(store, place.rank, place.num_ranks, place.host, limit_seconds)
    store.set_timeout(timedelta(seconds=TIMEOUT_SECONDS))  # from here on, the watch decides
    return store, hosts


def _apart(store: Any, number: int) -> Any:
    """The store for this process's so-manieth run; all ranks make the same ones."""
    return NamedStore(f"run {number}", store)


def exchange_hosts(store: Any, rank: int, count: int, host: str, limit_seconds: float) -> list[str]:
    """The host of every rank, once all have named theirs."""
    store.set(f"host/{rank}", host)
    keys = [f"host/{each}" for each in range(count)]
    try:
        store.wait(keys, timedelta(seconds=limit_seconds))
    except dist.DistStoreError:
        late = tuple(each for each, key in enumerate(keys) if not store.check([key]))
        names = some([name_rank(each) for each in late])
        raise RankError(
            "the start",
            f"{names} did not join within {limit_seconds:.0f} s",
            ranks=late,
            seconds=limit_seconds,
        ) from None
    return [store.get(key).decode() for key in keys]


@contextmanager
def joined_group(backend: str, store: Any, watch: Watch | None) -> Iterator[None]:
    """While this holds, this rank is in torch's default process group; alone it needs none."""
    rank, count = own_rank()
    if count == 1 or dist.is_initialized():
        yield
        return
    with waiting(watch, "joining the process group"):
        interface = _pick_interface(store, rank, count)
    with bound_to(interface):
        with waiting(watch, "joining the process group"):
            dist.init_process_group(
                backend,
                store=store,
                rank=rank,
                world_size=count,
                timeout=timedelta(seconds=TIMEOUT_SECONDS),
            )
        try:
            yield
        finally:
            dist.destroy_process_group()


def _pick_interface(store: Any, rank: int, count: int) -> str | None:
    """The interface that gloo binds to: the loopback if all ranks are on one machine, else the
    first that the environment names, else the one that leads to the other machines.

    Left to itself gloo takes the address of the host's name. Others may reach that though nobody
    else should, or nobody may: where a file says that the name is 127.0.1.1, or no name server has
    it. What the user has set for gloo stays.
    """
    place = read_place()
    source = find_source(place.address)
    store.set(f"machine/{rank}", _machine())
    store.set(f"address/{rank}", source)
    machines = [store.get(f"machine/{each}") for each in range(count)]
    if INTERFACE in os.environ:
        return None
    if len(set(machines)) == 1:
        return LOOPBACK
    if place.interfaces:
        return place.interfaces[0]
    if is_local(source):  # this machine has the store, and finds it by itself
        others = (each for each in range(count) if machines[each] != machines[rank])
        known = (store.get(f"address/{each}").decode() for each in others)
        source = find_source(next((each for each in known if not is_local(each)), ""))
    return None if is_local(source) else find_interface(source)


def _machine() -> str:
    """What tells apart machines, and parts of one that do not share a network."""
    try:
        return f"{_boot() or uuid.uuid4()} {os.stat('/proc/self/ns/net').st_ino}"
    except OSError:
        return str(uuid.uuid4())


@contextmanager
def watched(devices: Sequence[str], stall_seconds: float) -> Iterator[Watch | None]:
    """While this holds, a rank that hangs is found and named; `devices` by rank."""
    rank, count = own_rank()
    if count == 1:
        yield None
        return

    def make_store() -> Any:
        store = open_store(JOIN_SECONDS)
        return _apart(store, store.add(f"runs of rank {rank}", 0))

    watch = Watch(
        rank,
        devices,
        make_store,
        stall_seconds,
        run_folder(),
        store_rank=NOBODY if read_place().is_agents_store else 0,
    )
    watch.start()
    try:
        yield watch
    except BaseException as error:
        if run_folder() is None and is_consequence(error):
            # torchrun sends SIGTERM to those who are left.
            with handled_signals(signal.SIG_IGN, signal.SIGTERM):
                _name_lost(watch.find_lost(), devices)
        raise
    finally:
        watch.stop()


def _name_lost(lost: Sequence[int] | None, devices: Sequence[str]) -> None:
    """Say who has gone without a word, where no launcher of ours does; None: the store has."""
    place = read_place()
    if lost is None and place.local_rank == 0:  # nobody is left to ask who tells
        where = f"{place.address}:{place.port}"
        show_line(f"error: the store at {where} is gone, and with it the process that served it")
    elif lost:
        names = some([name_rank(each, devices[each]) for each in lost])
        show_line(f"error: {names} has gone without a word: killed, or the host is lost")


@contextmanager
def waiting(progress: Progress | None, doing: str) -> Iterator[None]:
    """While this holds, this rank waits for all others: one that hangs will be found."""
    rank, count = own_rank()
    if progress is None:
        yield
        return
    progress.doing = doing
    progress.count += 1
    progress.waits_for = tuple(each for each in range(count) if each != rank) or NOBODY
    try:
        yield
    finally:
        progress.waits_for = NOBODY
        progress.count += 1


@contextmanager
def shown_once() -> Iterator[None]:
    """Without a launcher of ours: of ranks that fail alike, one says so."""
    try:
        yield
    except (InputError, NonFiniteError) as error:
        if run_folder() is None and not _is_first_to_say(str(error)):
            end_process(1)
        raise


def _is_first_to_say(text: str) -> bool:
    place = read_place()
    if place.num_ranks == 1:
        return True
    try:
        # Where nobody listens, torch would say so on a page of its own.
        socket.create_connection((place.address, place.port), _SAY_SECONDS).close()
        return int(open_store(_SAY_SECONDS).add(f"said/{text}", 1)) == 1
    except (OSError, RuntimeError, RankError):  # better said twice than not at all
        return True


class CommonClock:
    """This rank's clock, set by that of the first."""

    def __init__(self) -> None:
        self.offset = self._measure_offset()

    def now(self) -> float:
        """Seconds by the first rank's clock."""
        return time.perf_counter() - self.offset

    def start_together(self) -> float:
        """Return on all ranks at the same moment, which is returned."""
        if not dist.is_initialized():
            return self.now()
        dist.barrier()
        moment = share(self.now() + _AHEAD_SECONDS, float)
        left = moment - self.now()
        if left > 0:
            time.sleep(left)
        return moment

    def _measure_offset(self) -> float:
        """How far this clock is ahead: zero on the first rank's host, else by the quickest of
        several questions and answers (Cristian, 1989)."""
        hosts = gather((socket.gethostname(), _boot()), tuple[str, str])
        if len(set(hosts)) == 1:
            return 0.0
        rank = dist.get_rank()
        offset = 0.0
        for other in range(1, len(hosts)):
            if rank in (0, other) and hosts[other] != hosts[0]:
                found = self._ask(other)
                offset = found if rank == other else offset
            dist.barrier()
        return offset

    def _ask(self, other: int) -> float:
        box = torch.zeros(1, dtype=torch.float64, device=message_device())
        best, offset = float("inf"), 0.0
        for _ in range(_ROUNDS):
            if dist.get_rank() == 0:
                dist.recv(box, other)
                box[0] = time.perf_counter()
                dist.send(box, other)
                continue
            before = time.perf_counter()
            dist.send(box, 0)
            dist.recv(box, 0)
            after = time.perf_counter()
            if after - before < best:
                best = after - before
                offset = (before + after) / 2 - float(box[0])
        return offset


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""
