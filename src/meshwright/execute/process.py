"""One child process that cannot outlive its parent, and the guard over what it starts itself.

Each child leads a process group of its own: a terminal's Ctrl-C does not reach it, and what it
starts can be ended with it. Knows nothing of ranks' work. Linux only.
"""

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import InputError, os_errors

_PR_SET_PDEATHSIG = 1  # linux/prctl.h

_GUARD = """
import os, shutil, signal, sys, time
os.mkdir(sys.argv[1], 0o700)
try:
    os.write(1, b"\\n")
except OSError:
    pass  # the parent has been killed by now
groups = set()
for line in iter(sys.stdin.readline, ""):
    (groups.add if line[0] == "+" else groups.discard)(int(line[1:]))
for group in groups:
    try:
        os.killpg(group, signal.SIGKILL)
    except OSError:
        pass
for _ in range(100):  # what was killed may still write for a moment
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    if not os.path.exists(sys.argv[1]):
        break
    time.sleep(0.05)
"""


class Guard:
    """A process that makes a folder, and once its pipe closes kills the process groups that it
    remembers and removes the folder.

    A child dies with its parent by itself (see `start_rank`), but not its own children, such as a
    data loader's: this ends them too, when the parent is killed and can do nothing any more. The
    folder is the guard's from the beginning, so that there is no moment at which a killed parent
    leaves it behind.
    """

    def __init__(self) -> None:
        name = f"meshwright-run-{secrets.token_hex(8)}"
        self.folder = Path(tempfile.gettempdir()) / name
        """A folder that no other user can read, for as long as the guard is there."""
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _GUARD, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        assert self._process.stdout is not None
        with self._process.stdout as said:
            if not said.readline():
                self.__exit__()
                raise InputError(f"{self.folder}: cannot be made")

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        self._process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)  # someone killed the guard

    def remember_self(self) -> None:
        """Kill the group that the calling process leads when the parent dies.

        A child says so itself, after fork and before exec: the parent may be killed at any moment,
        also before it could, and by then the child may have started others.
        """
        before = signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        self._write(f"+{os.getpid()}\n")
        signal.signal(signal.SIGPIPE, before)

    def forget(self, group: int) -> None:
        """The group has ended; its number may soon be another's."""
        self._write(f"-{group}\n")

    def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # someone killed the guard: do without
            os.write(self._process.stdin.fileno(), line.encode())


@dataclass(slots=True)
class Rank:
    """One child and its process group, whose number is the child's."""

    process: "subprocess.Popen[bytes]"

    @property
    def process_id(self) -> int:
        """Also the number of its group and session."""
        return self.process.pid

    def peek(self) -> int | None:
        """How it has ended (a signal as a negative number), None while it runs.

        It is not reaped: while it is a zombie its number cannot become another process's, and
        signals to its group reach nobody else.
        """
        if self.process.returncode is not None:
            return self.process.returncode
        found = os.waitid(os.P_PID, self.process_id, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        if found is None:
            return None
        return found.si_status if found.si_code == os.CLD_EXITED else -found.si_status

    def send(self, number: signal.Signals, *, reaches_group: bool = True) -> None:
        """Send a signal to the whole group, or to the child alone; only before it is reaped."""
        assert self.process.returncode is None
        kill = os.killpg if reaches_group else os.kill
        with contextlib.suppress(ProcessLookupError, PermissionError):
            kill(self.process_id, number)


def die_with_parent() -> None:
    """Have this process killed when its parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, ctypes.c_ulong(signal.SIGKILL))


def start_rank(argv: Sequence[str], environment: Mapping[str, str], guard: Guard) -> Rank:
    """Start a process that gets SIGKILL when its parent dies, also across `exec` in a prefix."""
    prctl = ctypes.CDLL(None).prctl  # looked up here: little may be done between fork and exec
    kill = ctypes.c_ulong(signal.SIGKILL)
    parent = os.getpid()

    def bind_to_parent() -> None:  # after fork, before exec
        prctl(_PR_SET_PDEATHSIG, kill)
        if os.getppid() != parent:  # it died before the call above
            os._exit(1)
        guard.remember_self()

    with os_errors(f"{argv[0]}: cannot be started"):
        process = subprocess.Popen(
            list(argv),
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            preexec_fn=bind_to_parent,
        )
    return Rank(process)
