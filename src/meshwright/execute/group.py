"""One rank's place among the others: the process group, its watch, and a common clock.

Reads the variables that torchrun sets, and so does `meshwright.execute.launch`.
"""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from meshwright.errors import InputError
from meshwright.execute.fault import run_folder
from meshwright.execute.watch import NOBODY, Watch

HOST = "MESHWRIGHT_HOST"
"""The launcher's variable: the host of the cluster that a rank plays."""
TIMEOUT_SECONDS = 24 * 3600.0
"""torch's own; a rank that hangs is found by the watch long before."""
RENDEZVOUS_SECONDS = 300.0

_ROUNDS = 16
_AHEAD_SECONDS = 0.02
"""A common start is fixed so much ahead that all have heard of it."""


def is_rank() -> bool:
    """Whether this process was started as one of several ranks."""
    return "RANK" in os.environ and "WORLD_SIZE" in os.environ


def own_rank() -> tuple[int, int]:
    """This process's rank, and how many there are."""
    if not is_rank():
        return 0, 1
    return int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def pick_device(kind: str | None) -> torch.device:
    """The device that this rank computes on: one of its host's GPUs, or the CPU."""
    if kind is None:
        kind = "cuda" if torch.cuda.is_available() else "cpu"
    if kind == "cpu":
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise InputError("device cuda: torch finds none that it can use; use --device cpu")
    local = int(os.environ.get("LOCAL_RANK", "0"))
    device = torch.device("cuda", local % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def pick_backend(device: torch.device, backend: str | None) -> str:
    """NCCL where every rank of the host has a GPU of its own, else gloo."""
    if backend is not None:
        return backend
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    shares = device.type == "cuda" and ranks > torch.cuda.device_count()
    return "nccl" if device.type == "cuda" and not shares else "gloo"


@contextmanager
def joined_group(backend: str) -> Iterator[None]:
    """While this holds, this rank is in torch's default process group; alone it needs none."""
    _, count = own_rank()
    if count == 1 or dist.is_initialized():
        yield
        return
    dist.init_process_group(backend, timeout=timedelta(seconds=TIMEOUT_SECONDS))
    try:
        yield
    finally:
        dist.destroy_process_group()


@contextmanager
def watched(devices: Sequence[str], stall_seconds: float) -> Iterator[Watch | None]:
    """While this holds, a rank that hangs is found and named; `devices` by rank."""
    rank, count = own_rank()
    if count == 1:
        yield None
        return
    is_agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    watch = Watch(
        rank,
        devices,
        _make_store,
        stall_seconds,
        run_folder(),
        store_rank=NOBODY if is_agents else 0,
    )
    watch.start()
    try:
        yield watch
    finally:
        watch.stop()


def _make_store() -> Any:
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    limit = timedelta(seconds=RENDEZVOUS_SECONDS)
    store = dist.TCPStore(  # type: ignore[attr-defined]
        address, port, is_master=False, timeout=limit
    )
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"meshwright/{attempt}", store)  # type: ignore[attr-defined]


def gather(value: Any) -> list[Any]:
    """A value of every rank, on every rank."""
    if not dist.is_initialized():
        return [value]
    values: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def host_names() -> list[str]:
    """The host of every rank."""
    return [str(each) for each in gather(os.environ.get(HOST) or socket.gethostname())]


class CommonClock:
    """This rank's clock, set by that of the first."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self.offset = self._measure_offset()

    def now(self) -> float:
        """Seconds by the first rank's clock."""
        return self.clock() - self.offset

    def start_together(self) -> float:
        """Return on all ranks at the same moment, which is returned."""
        if not dist.is_initialized():
            return self.now()
        dist.barrier()
        moment = [self.now() + _AHEAD_SECONDS]
        dist.broadcast_object_list(moment, 0)
        left = moment[0] - self.now()
        if left > 0:
            time.sleep(left)
        return moment[0]

    def _measure_offset(self) -> float:
        """How far this clock is ahead: zero on the first rank's host, else by the quickest of
        several questions and answers (Cristian, 1989)."""
        hosts = gather((socket.gethostname(), _boot()))
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
        box = torch.zeros(1, dtype=torch.float64)
        best, offset = float("inf"), 0.0
        for _ in range(_ROUNDS):
            if dist.get_rank() == 0:
                dist.recv(box, other)
                box[0] = self.clock()
                dist.send(box, other)
                continue
            before = self.clock()
            dist.send(box, 0)
            dist.recv(box, 0)
            after = self.clock()
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
