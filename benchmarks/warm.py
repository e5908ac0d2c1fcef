"""`meshwright` commands in processes forked from one that has imported everything.

To import torch and transformers takes longer than to train a small model, in every rank once more.
Ranks are started as torchrun starts them, with its variables, and run the same command.
"""

import multiprocessing
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from unittest.mock import patch

HERE = Path(__file__).resolve().parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """How a command has ended."""

    codes: tuple[int | None, ...]
    """The exit code of each rank; a signal as a negative number, None: it ran too long."""
    out: str
    """Standard output of all ranks."""
    said: tuple[str, ...]
    """Lines of standard error of all ranks."""
    seconds: float

    @property
    def is_done(self) -> bool:
        """Whether every rank ended well."""
        return not any(self.codes)


@cache
def _processes(preload: tuple[str, ...]) -> ForkServerContext:
    """Where processes come from that have imported these modules."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(preload))
    # Python 3.11 does not hand sys.path on to the process that imports.
    path = os.pathsep.join(dict.fromkeys([str(HERE), *filter(None, sys.path)]))
    with patch.dict(os.environ, {"PYTHONPATH": path, "MESHWRIGHT_ANSWERS": "no"}):
        forkserver.ensure_running()
    return context


def run_command(
    words: Sequence[str],
    folder: Path,
    *,
    hosts: Sequence[str] = (),
    preload: tuple[str, ...] = ("warm_modules",),
    limit_seconds: float = 400.0,
) -> Done:
    """Run a command, once for each rank on these hosts; without hosts it is no rank."""
    began = time.monotonic()
    if hosts:
        every = [_rank_variables(rank, hosts) for rank in range(len(hosts))]
        port = str(_free_port())
        every = [{**each, "MASTER_PORT": port} for each in every]
    else:
        every = [{}]
    outputs = [folder / f"{number}-out" for number in range(len(every))]
    errors = [folder / f"{number}-said" for number in range(len(every))]
    started = []
    for variables, out, said in zip(every, outputs, errors, strict=True):
        args = (list(words), variables, out, said)
        process = _processes(preload).Process(target=_run, args=args)
        process.start()
        started.append(process)
    for process in started:
        process.join(max(0.0, began + limit_seconds - time.monotonic()))
        if process.exitcode is None:
            process.kill()
    lines = [line for path in errors if path.exists() for line in path.read_text().splitlines()]
    return Done(
        codes=tuple(process.exitcode for process in started),
        out="".join(path.read_text() for path in outputs if path.exists()),
        said=tuple(lines),
        seconds=time.monotonic() - began,
    )


def _rank_variables(rank: int, hosts: Sequence[str]) -> dict[str, str]:
    """What torchrun and the launcher tell a rank, but for the port."""
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(len(hosts)),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(len(hosts)),
        "MASTER_ADDR": "127.0.0.1",
        "MESHWRIGHT_HOST": hosts[rank],
        "MESHWRIGHT_INTERFACES": "",
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def _run(words: list[str], variables: Mapping[str, str], out: Path, said: Path) -> None:
    os.environ |= {"OMP_NUM_THREADS": "1", "MESHWRIGHT_ANSWERS": "no", **variables}
    for number, path in ((1, out), (2, said)):
        path.unlink(missing_ok=True)
        os.dup2(os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o600), number)
    import torch

    from meshwright.cli import main

    torch.set_num_threads(1)
    sys.argv[1:] = words
    code = main(words)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)
