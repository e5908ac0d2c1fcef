"""Processes that work for a search: how they are started, and how both ends talk.

A worker is a module of ours run as a program: it reads pickles from its standard input, writes
pickles to its standard output, and ends when its input does. Both ends run the same code. Knows
nothing about the work.
"""

import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from io import BytesIO
from types import MappingProxyType
from typing import IO, Any

from meshwright.interpreter import module_command

VERSION = __file__
"""What a worker says when it is ready: one of another installation might come to other results."""

_NICE = 10
"""Where other programs use the cores, the search itself comes first."""


def start_worker(module: str) -> subprocess.Popen[bytes]:
    """Run a module as a worker. The program that searches is not imported again."""
    return subprocess.Popen(
        module_command(module),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )


def usable_cores() -> int:
    """How many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def serve(work: Callable[[IO[bytes], IO[bytes]], None]) -> None:
    """Be a worker: work on input and output; what is printed by mistake goes nowhere."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the search, which then ends us
    if hasattr(os, "nice"):
        os.nice(_NICE)
    target = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    try:
        work(sys.stdin.buffer, target)
    finally:
        # An error would be the search's as well, which is where it is shown.
        os._exit(1)


def send(target: IO[bytes], message: object) -> None:
    """Write a message that `pickle.load` reads."""
    _Pickler(target, pickle.HIGHEST_PROTOCOL).dump(message)
    target.flush()


def pack(message: object) -> bytes:
    """What `send` would write."""
    target = BytesIO()
    send(target, message)
    return target.getvalue()


class _Pickler(pickle.Pickler):
    """Clusters hold read-only views of dicts, which pickles know nothing of."""

    def reducer_override(self, value: Any) -> Any:
        if isinstance(value, MappingProxyType):
            return _read_only, (dict(value),)
        return NotImplemented


def _read_only(values: Mapping[Any, Any]) -> Mapping[Any, Any]:
    return MappingProxyType(values)
