"""Processes that stay and train by whatever plan they are handed: starting ranks takes seconds."""

import multiprocessing
import os
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

Call = tuple[Callable[..., Any], tuple[Any, ...]]


class Ranks:
    """Ranks on gloo; `call` runs one function on the first so many of them."""

    def __init__(self, count: int) -> None:
        context = multiprocessing.get_context("spawn")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.pipes: list[Connection] = []
        self.processes = []
        for rank in range(count):
            mine, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, rank, count, port), daemon=True)
            process.start()
            self.pipes.append(mine)
            self.processes.append(process)

    def call(self, function: Callable[..., Any], *args: Any, timeout: float = 120) -> list[Any]:
        """What the function returns on every rank, which it is given first; an error is raised."""
        for pipe in self.pipes:
            pipe.send((function, args))
        answers: dict[int, Any] = {}
        until = time.monotonic() + timeout
        while len(answers) < len(self.pipes):
            waiting = [pipe for rank, pipe in enumerate(self.pipes) if rank not in answers]
            ready = wait(waiting, max(0.0, until - time.monotonic()))
            assert ready, (
                f"no answer from ranks {sorted(set(range(len(self.pipes))) - set(answers))}"
            )
            for pipe in ready:
                assert isinstance(pipe, Connection)
                is_error, answer = pipe.recv()
                if is_error:  # the others may wait for it for ever
                    self.close()
                    raise AssertionError(answer)
                answers[self.pipes.index(pipe)] = answer
        return [answers[rank] for rank in range(len(self.pipes))]

    def close(self) -> None:
        """End the processes."""
        for pipe in self.pipes:
            pipe.close()
        self.pipes = []
        for process in self.processes:
            process.kill()
            process.join()


def _serve(pipe: Connection, rank: int, count: int, port: int) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    dist.init_process_group("gloo", rank=rank, world_size=count)
    while True:
        try:
            function, args = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send((False, function(rank, *args)))
        except BaseException:
            pipe.send((True, f"rank {rank}: {traceback.format_exc()}"))
