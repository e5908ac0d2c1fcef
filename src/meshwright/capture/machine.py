"""Measures this machine's CPU in a second or two, as a device that a rank runs on.

It is measured by PyTorch, or by NumPy where there is no PyTorch.

Every figure is the best of many runs, each shorter than the few milliseconds that a system gives a
process at a time: on a busy machine most runs are interrupted and the best are not, so figures are
those of the machine by itself. How far the usual run is from the best says how busy it was.
"""

import itertools
import os
import platform
import socket
import statistics
import threading
import time
from collections.abc import Callable, Mapping
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.cluster.machine import CPU, make_machine
from meshwright.cluster.part import DeviceType
from meshwright.interpreter import num_cores
from meshwright.units import format_count, format_percent

SECONDS = 0.25
"""How long each figure is measured."""
LEAST_RUNS = 5
SIDE = 384
"""Rows and columns of products: 0.1 GFLOP, some milliseconds of one core at most."""
NUM_ELEMENTS = 1 << 20
"""Of sums of two tensors, each of 4 MB: more than the cache of a core."""
NUM_TENSORS = 16
"""Sums go around so many, so that what they read is in no cache."""
SMALL = 8
"""Rows and columns of what calls are timed with: so few that they take no time by themselves."""
MESSAGE_BYTES = 1 << 20

MEASURED = "measured on"
"""What the source of its figures begins with."""

Clock = Callable[[], float]


class Timed(NamedTuple):
    """The times of a run that was repeated."""

    best: float
    usual: float

    @property
    def spread(self) -> float:
        """How much longer than the best run the median one took, as a part of the best."""
        return self.usual / self.best - 1


def machine_facts(threads: int) -> dict[str, str]:
    """What the figures of a machine depend on, without measuring it."""
    return {
        "machine": platform.node(),
        "processor": processor_name(),
        "cores": str(num_cores()),
        "memory_bytes": str(int(memory_bytes())),
        "threads": str(threads),
        "torch": _version("torch"),
    }


def measure_machine(threads: int, today: date, clock: Clock = time.perf_counter) -> Cluster:
    """This machine as a cluster of one device, which has so many threads."""
    has_torch = find_spec("torch") is not None
    runs = _torch_runs(threads) if has_torch else _numpy_runs()
    timed = {name: time_run(run, clock) for name, (run, _) in runs.items()}
    rate = {name: amount / timed[name].best for name, (_, amount) in runs.items()}
    message, latency = _time_loopback(clock)
    spread = statistics.median(each.spread for each in timed.values())
    by = f"torch {_version('torch')}" if has_torch else "NumPy, with all cores"
    kind = DeviceType(
        name=CPU,
        flops_per_second={name: rate[name] for name in ("fp32", "bf16") if name in rate},
        memory_bytes=memory_bytes(),
        memory_bytes_per_second=rate["sum"],
        is_asynchronous=False,
        call_seconds=1 / rate["call"],
        # By name: files with these figures go to other machines.
        source=f"{MEASURED} {platform.node()} {today}: {processor_name()}, "
        f"{format_count(threads, 'thread')} of {format_count(num_cores(), 'core')}, {by}, "
        f"spread {format_percent(spread)}",
    )
    return make_machine(kind, bytes_per_second=message, latency_seconds=latency)


def time_run(run: Callable[[], object], clock: Clock) -> Timed:
    """Repeat a run for a while; the first one is not counted."""
    run()
    times: list[float] = []
    until = clock() + SECONDS
    while len(times) < LEAST_RUNS or clock() < until:
        begin = clock()
        run()
        times.append(clock() - begin)
    return Timed(min(times), statistics.median(times))


Runs = Mapping[str, tuple[Callable[[], object], float]]
"""What is measured: a run, and how much of it that does (FLOPs, bytes or calls)."""


def _torch_runs(threads: int) -> Runs:
    import torch

    torch.set_num_threads(threads)
    single = torch.ones(SIDE, SIDE)
    half = single.bfloat16()
    many, small = torch.ones(2 * NUM_TENSORS, NUM_ELEMENTS), torch.ones(SMALL, SMALL)
    aten: Any = torch.ops.aten
    weight = torch.ones(SMALL)
    around = itertools.cycle(range(0, 2 * NUM_TENSORS, 2))

    def call() -> None:
        # One after another, as in a step: a kernel that is called in a loop finds its code cached.
        made = aten.mm.default(small, small)
        made = aten.add.Tensor(made, small)
        made, _, _ = aten.native_layer_norm.default(made, [SMALL], weight, weight, 1e-5)
        made = aten.gelu.default(made)
        made = aten.mul.Tensor(made, small)
        made = aten._softmax.default(made, -1, False)
        aten.sum.dim_IntList(made, [0])
        aten.addmm.default(weight, made, small)

    def add() -> None:
        one = next(around)
        torch.add(many[one], many[one + 1])

    return {
        "fp32": (lambda: torch.mm(single, single), 2 * SIDE**3),
        "bf16": (lambda: torch.mm(half, half), 2 * SIDE**3),
        "sum": (add, 3 * 4 * NUM_ELEMENTS),
        "call": (call, 8),
    }


def _numpy_runs() -> Runs:
    single, small = np.ones((SIDE, SIDE), np.float32), np.ones((SMALL, SMALL), np.float32)
    many = np.ones((2 * NUM_TENSORS, NUM_ELEMENTS), np.float32)
    around = itertools.cycle(range(0, 2 * NUM_TENSORS, 2))

    def add() -> None:
        one = next(around)
        np.add(many[one], many[one + 1])

    def call() -> None:
        np.matmul(small, small)
        np.add(small, small)
        np.exp(small)
        np.sum(small, axis=0)

    return {
        "fp32": (lambda: np.matmul(single, single), 2 * SIDE**3),
        "sum": (add, 3 * 4 * NUM_ELEMENTS),
        "call": (call, 4),
    }


def _time_loopback(clock: Clock) -> tuple[float, float]:
    """Bytes a second and latency of messages between two sockets of this machine, as ranks have."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    message = bytearray(MESSAGE_BYTES)
    with near, far:
        for each in (near, far):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_answer, args=(far,), daemon=True).start()

        def exchange(size: int) -> None:
            near.sendall(size.to_bytes(4))
            near.sendall(memoryview(message)[:size])
            near.recv(1)

        latency = time_run(lambda: exchange(1), clock).best / 2
        seconds = time_run(lambda: exchange(MESSAGE_BYTES), clock).best
    return MESSAGE_BYTES / max(seconds - latency, seconds / 2), latency


def _answer(end: socket.socket) -> None:
    """Receive messages, each after its size, and answer each by a byte, until the end is closed."""
    room = bytearray(MESSAGE_BYTES)
    try:
        while size := int.from_bytes(end.recv(4, socket.MSG_WAITALL)):
            end.recv_into(memoryview(room)[:size], size, socket.MSG_WAITALL)
            end.sendall(b"\0")
    except OSError:  # closed meanwhile
        return


def memory_bytes() -> float:
    """The memory of this machine, or what its container may have of it."""
    total = float(os.sysconf("SC_PAGE_SIZE")) * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii").strip()
    except OSError:
        return total
    return min(total, float(limit)) if limit.isdecimal() else total


def processor_name() -> str:
    """What the processor calls itself."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:  # not Linux
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, "") or platform.processor() or platform.machine() or "cpu"


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""
