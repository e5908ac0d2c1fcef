"""Processes that stay and train by whatever plan they are handed: starting ranks takes seconds."""

import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from forked import processes

RANKS = 4
"""How many ranks most tests train with."""


class Ranks:
    """Processes for up to so many ranks; `call` runs one function on the first few of them.

    They are started when a call needs them, and anew after a call that failed, so that tests share
    them and none sees what another has broken.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self.pipes: list[Connection] = []
        self.processes: list[BaseProcess] = []

    def call(
        self, count: int, function: Callable[..., Any], *args: Any, timeout: float = 120
    ) -> list[Any]:
        """What the function returns on `count` ranks of one process group, which it is given first.

        An error on any of them is raised, and then the others, which may wait for it for ever, end.
        """
        assert count <= self.most
        try:
            return self._call(count, function, args, timeout)
        except BaseException:
            self.close()
            raise

    def _call(
        self, count: int, function: Callable[..., Any], args: tuple[Any, ...], timeout: float
    ) -> list[Any]:
        self._start(count)
        pipes = self.pipes[:count]
        port = free_port()
        for pipe in pipes:
            pipe.send((count, port, function, args))
        answers: dict[int, Any] = {}
        until = time.monotonic() + timeout
        while len(answers) < count:
            waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in answers]
            ready = wait(waiting, max(0.0, until - time.monotonic()))
            if not ready:
                raise AssertionError(f"no answer from ranks {set(range(count)) - set(answers)}")
            for pipe in waiting:
                if pipe not in ready:
                    continue
                is_error, answer = pipe.recv()
                if is_error:
                    raise AssertionError(answer)
                answers[pipes.index(pipe)] = answer
        return [answers[rank] for rank in range(count)]

    def _start(self, count: int) -> None:
        context = processes()
        for rank in range(len(self.pipes), count):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank), daemon=True)
            process.start()
            theirs.close()  # so that a rank that is killed is seen to have ended
            self.pipes.append(mine)
            self.processes.append(process)

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        for process in self.processes:
            process.kill()
            process.join()
        self.pipes, self.processes = [], []


def free_port() -> int:
    """A port that nobody uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def refuse_pickles() -> None:
    """From here on, what torch.distributed would pickle or unpickle is an error."""
    from torch.distributed import distributed_c10d

    def refuse(*_args: object) -> None:
        raise AssertionError("torch.distributed pickles")

    distributed_c10d._pickler = distributed_c10d._unpickler = refuse  # type: ignore[assignment]


def _serve(pipe: Connection, rank: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    refuse_pickles()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    while True:
        try:
            count, port, function, args = pipe.recv()
        except EOFError:
            return
        try:
            address = f"tcp://127.0.0.1:{port}"
            dist.init_process_group("gloo", address, rank=rank, world_size=count)
            answer = function(rank, *args)
            dist.destroy_process_group()
            pipe.send((False, answer))
        except BaseException:
            pipe.send((True, f"rank {rank}: {traceback.format_exc()}"))
