"""A `meshwright run` that starts its ranks, in a process that has imported everything; so have its
ranks, which fork from it in place of being started."""

import multiprocessing
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

from forked import Forked, processes
from forked import run as run_forked

from meshwright.files import write_bytes


@dataclass(slots=True)
class ForkedProcess:
    """As much of a Popen as launchers use."""

    pid: int
    returncode: int | None = None

    def wait(self) -> int:
        """Until it has ended."""
        _, status = os.waitpid(self.pid, 0)
        self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


def start_launcher(
    words: Sequence[str], folder: Path, variables: Mapping[str, str] | None = None
) -> Forked:
    """Start a command that starts ranks, in a folder whose modules it can import."""
    process = processes().Process(
        target=_launch, args=(list(words), folder, dict(variables or {})), daemon=False
    )
    process.start()
    return Forked(process, folder)


def _launch(words: list[str], folder: Path, variables: dict[str, str]) -> None:
    sys.argv = ["meshwright", *words]
    for name in ("RANK", "WORLD_SIZE"):
        os.environ.pop(name, None)
    with patch("meshwright.execute.launch.start_rank", _start_rank):
        run_forked(words, folder, {"OMP_NUM_THREADS": "1", **variables})


def _start_rank(argv: Sequence[str], environment: Mapping[str, str], guard: Any) -> Any:
    """A rank of its own process group, which dies with the launcher; a file beside its plan, named
    after its host, has its number."""
    from meshwright.cli import main
    from meshwright.execute.process import Rank, die_with_parent

    before, words = argv[: argv.index("meshwright")], argv[argv.index("meshwright") + 1 :]
    given = dict(word.split("=", 1) for word in before if "=" in word)
    pid = os.fork()
    if pid:
        if "MESHWRIGHT_RUN_DIR" in environment:
            write_bytes(f"rank-on-{given['MESHWRIGHT_HOST']}", str(pid).encode())
        return Rank(ForkedProcess(pid))  # type: ignore[arg-type]
    die_with_parent()
    os.setsid()
    guard.remember_self()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    os.environ.clear()
    os.environ |= dict(environment)
    os.environ |= given
    multiprocessing.current_process().name = f"rank-{os.environ['RANK']}"
    os._exit(main(list(words)))
