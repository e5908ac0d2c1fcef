"""Processes that are forked from one which has imported everything: importing takes seconds.

All tests of a worker share that one process; what it imports is in `forked_warm`.
"""

import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from unittest.mock import patch


@cache
def processes() -> ForkServerContext:
    """Where to get such processes from."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["forked_warm"])
    # Python 3.11 does not hand sys.path on to the process that imports.
    with patch.dict(os.environ, {"PYTHONPATH": os.pathsep.join(sys.path)}):
        forkserver.ensure_running()
    return context


@dataclass(frozen=True, slots=True)
class Forked:
    """One `meshwright` command; its process is a rank that is alone, so that it starts no other."""

    process: BaseProcess
    folder: Path

    def finish(self, seconds: float = 100.0) -> tuple[int | None, str, list[str]]:
        """Exit code (a signal as a negative number), standard output, and what was said."""
        self.process.join(seconds)
        assert self.process.exitcode is not None, self._read("said")
        return self.process.exitcode, self._read("out"), self._read("said").splitlines()

    def _read(self, name: str) -> str:
        path = self.folder / f"{self.process.name}-{name}"
        return path.read_text() if path.exists() else ""


def start_forked(
    words: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
) -> Forked:
    """Start a command in a folder, whose modules it can import."""
    alone = {"RANK": "0", "WORLD_SIZE": "1", "OMP_NUM_THREADS": "1", **(variables or {})}
    process = processes().Process(target=run, args=(list(words), folder, alone), daemon=True)
    process.start()
    return Forked(process, folder)


def run(words: list[str], folder: Path, variables: dict[str, str]) -> None:
    """What such a process does: run a command and end, with files for what it prints and says."""
    os.chdir(folder)
    os.environ |= variables
    sys.path[:0] = [str(folder)]
    name = multiprocessing.current_process().name
    for number, end in ((1, "out"), (2, "said")):
        os.dup2(os.open(f"{name}-{end}", os.O_CREAT | os.O_WRONLY | os.O_APPEND), number)
    import torch

    from meshwright.cli import main

    torch.set_num_threads(1)
    os._exit(main(words))
