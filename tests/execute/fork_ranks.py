"""Ranks as forks of this process, which find here what it has prepared: plans and traced models."""

import multiprocessing
import os
import pickle
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from ranks import free_port, refuse_pickles


def fork_ranks(
    count: int, function: Callable[..., Any], *args: Any, timeout: float = 120
) -> list[Any]:
    """What the function returns on `count` ranks of one process group; it is given the rank first.

    An error on any of them is raised, and the others end.
    """
    context = multiprocessing.get_context("fork")
    port, until = free_port(), time.monotonic() + timeout
    pipes, ranks = [], []
    for rank in range(count):
        mine, theirs = context.Pipe(duplex=False)
        process = context.Process(
            target=_run, args=(theirs, rank, count, port, function, args), daemon=True
        )
        process.start()
        theirs.close()
        pipes.append(mine)
        ranks.append(process)
    answers: dict[int, Any] = {}
    try:
        while len(answers) < count:
            waiting = [pipe for rank, pipe in enumerate(pipes) if rank not in answers]
            ready = wait(waiting, max(0.0, until - time.monotonic()))
            if not ready:
                raise AssertionError(f"no answer from ranks {set(range(count)) - set(answers)}")
            for pipe in ready:
                assert isinstance(pipe, Connection)
                is_error, answer = pickle.loads(pipe.recv_bytes())
                if is_error:
                    raise AssertionError(answer)
                answers[pipes.index(pipe)] = answer
    finally:
        for pipe, process in zip(pipes, ranks, strict=True):
            pipe.close()
            process.kill()
            process.join()
    return [answers[rank] for rank in range(count)]


def _run(
    pipe: Connection, rank: int, count: int, port: int, function: Callable[..., Any], args: Any
) -> None:
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    refuse_pickles()
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    try:
        dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=count)
        answer = function(rank, *args)
        dist.destroy_process_group()
        pipe.send_bytes(pickle.dumps((False, answer)))  # copied, as this process ends
    except BaseException:
        pipe.send_bytes(pickle.dumps((True, f"rank {rank}: {traceback.format_exc()}")))
