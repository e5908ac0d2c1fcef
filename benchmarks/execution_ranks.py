"""Runs work on the hosts of a testbed: one process a host, forked, so that all start at once.

Starting a Python with torch takes seconds a rank; a fork of one that has everything loaded takes
none, and lowered programs need not be sent. Knows nothing of plans beyond how to walk one.
"""

import ctypes
import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.execute.bind import bind_part
from meshwright.execute.emulate import Emulation, hasten_wakeups
from meshwright.execute.environment import INTERFACES
from meshwright.execute.exchange import close_exchange, open_exchange
from meshwright.execute.group import CommonClock
from meshwright.execute.lookup import Lookup
from meshwright.execute.lowered import Lowered, communication
from meshwright.execute.seat import find_wiring
from meshwright.execute.walk import ProgramWalk, Times
from meshwright.network.testbed.apply import NAMESPACE_FOLDER
from meshwright.network.testbed.testbed import Testbed
from meshwright.simulate.measured import Run

_CLONE_NEWNET = 0x40000000
_PORT = 29500
JOIN_SECONDS = 60.0

Span = tuple[float, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A program to emulate so many times, then `timed` times instruction by instruction."""

    lowered: Lowered
    steps: int
    timed: int = 1
    cluster: Cluster | None = None
    """Whose hosts have several interfaces to use; None: they use their first one."""


def run_on_hosts(
    testbed: Testbed | None,
    num_ranks: int,
    work: Callable[[int], Any],
    limit_seconds: float,
    *,
    hastens: bool = True,
) -> list[Any]:
    """What `work(rank)` returns on every host, in a gloo group of all; without a testbed here.

    Raises InputError when a rank fails or the limit is over; no process is left in any case.
    """
    context = multiprocessing.get_context("fork")
    ways = [context.Pipe(duplex=False) for _ in range(num_ranks)]
    port = _PORT if testbed is not None else _free_port()
    processes = [
        context.Process(
            target=_serve, args=(testbed, rank, num_ranks, port, work, ways[rank][1], hastens)
        )
        for rank in range(num_ranks)
    ]
    try:
        for process, (_, writer) in zip(processes, ways, strict=True):
            process.start()
            writer.close()
        return _collect([reader for reader, _ in ways], time.monotonic() + limit_seconds)
    finally:
        for process in processes:
            process.join(5.0)
            process.kill()
            process.join()


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _collect(readers: Sequence[Connection], deadline: float) -> list[Any]:
    found: dict[int, Any] = {}
    numbers = {id(reader): rank for rank, reader in enumerate(readers)}
    left = list(readers)
    while left:
        ready = wait(left, max(0.0, deadline - time.monotonic()))
        if not ready:
            raise InputError(f"{len(left)} ranks did not end in time")
        for reader in ready:
            assert isinstance(reader, Connection)
            rank = numbers[id(reader)]
            try:
                is_good, value = reader.recv()
            except EOFError:
                is_good, value = False, "ended without a word"
            if not is_good:
                raise InputError(f"rank {rank}: {value}")
            found[rank] = value
            left.remove(reader)
    return [found[rank] for rank in range(len(readers))]


def _serve(
    testbed: Testbed | None,
    rank: int,
    num_ranks: int,
    port: int,
    work: Callable[[int], Any],
    writer: Connection,
    hastens: bool,
) -> None:
    try:
        if testbed is not None:
            _enter(testbed.hosts[rank].namespace)
        if hastens:
            hasten_wakeups()
        torch.set_num_threads(1)
        interface = "lo" if testbed is None else testbed.hosts[rank].interface
        address = "127.0.0.1" if testbed is None else testbed.hosts[0].address
        os.environ |= {
            "GLOO_SOCKET_IFNAME": interface,
            "TORCH_CPP_LOG_LEVEL": "ERROR",
            INTERFACES: ",".join(each.name for each in testbed.hosts[rank].interfaces)
            if testbed
            else "",
            "RANK": str(rank),
            "WORLD_SIZE": str(num_ranks),
        }
        dist.init_process_group(
            "gloo",
            init_method=f"tcp://{address}:{port}",
            rank=rank,
            world_size=num_ranks,
            timeout=timedelta(seconds=JOIN_SECONDS),
        )
        value = work(rank)
        dist.barrier()
        writer.send((True, value))
        dist.destroy_process_group()
    except BaseException:  # whatever it is, the parent hears of it
        with suppress(OSError):
            writer.send((False, traceback.format_exc()))


def _enter(namespace: str) -> None:
    """Move this process into a network namespace (os.setns came with Python 3.12)."""
    with open(NAMESPACE_FOLDER / namespace, "rb") as file:
        if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")


def emulate_jobs(jobs: Sequence[Job]) -> Callable[[int], list[tuple[list[Span], list[Times]]]]:
    """Work that emulates one program after the other; rank k plays device k."""

    def work(rank: int) -> list[tuple[list[Span], list[Times]]]:
        return [_emulate(job, rank) for job in jobs]

    return work


def _emulate(job: Job, rank: int) -> tuple[list[Span], list[Times]]:
    program = job.lowered.program
    part, ranks = bind_part(Lookup(lowered=job.lowered), rank), range(program.num_devices)
    wiring = None
    if job.cluster is not None:
        wiring = find_wiring(job.cluster, program, ranks, job.cluster.hosts, rank)
    exchange = open_exchange(
        torch.device("cpu"), ranks, program.groups, *communication(program), wiring
    )
    walk = ProgramWalk(program, part, exchange, Emulation(program, part, exchange))
    clock = CommonClock()
    spans, timed = [], []
    for step in range(job.steps + job.timed):
        times = Times() if step >= job.steps else None
        began = clock.start_together()
        walk.run({}, times)
        spans.append((began, clock.now()))
        if times is not None:
            timed.append(times)
    walk.close()
    dist.barrier()
    close_exchange(exchange)
    return spans, timed


def merge_job(job: Job, number: int, results: Sequence[Any]) -> Run:
    """The run that ranks measured together; its instructions are of the middle timed step."""
    program = job.lowered.program
    spans = np.array([each[number][0] for each in results])
    seconds = spans[:, :, 1].max(axis=0) - spans[:, :, 0].min(axis=0)
    start, finish = np.full((2, program.num_instructions), np.nan)
    middle = 0
    if job.timed:
        middle = job.steps + int(np.argsort(seconds[job.steps :])[job.timed // 2])
        origin = float(spans[:, middle, 0].min())
        for each in results:
            times = each[number][1][middle - job.steps]
            for instruction, moment in times.start.items():
                start[instruction] = moment - origin
            for instruction, moment in times.finish.items():
                finish[instruction] = moment - origin
        finish = np.fmax(finish, start)
    return Run(
        device_names=program.device_names,
        losses=(),
        step_seconds=tuple(seconds.tolist()),
        start=start,
        finish=finish,
        is_emulated=True,
        software={"torch": str(torch.__version__)},
        measured_step=middle,
    )
