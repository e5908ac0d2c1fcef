"""How far ranks are, for whoever started them: files in the launcher's folder, beside any network.

The first rank writes down each step that it has taken, so that a launcher whose ranks were killed
knows how far they had come. A rank that is asked whether it is there answers from a thread of its
own, whatever its main thread waits for: one that was stopped, or whose interpreter hangs, does not.
"""

import os
import struct
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from meshwright.execute.thread import start_thread

ROLL_SECONDS = 5.0
"""A rank that has not answered after so long is not there."""
_LOOK_SECONDS = 0.25
_POLL_SECONDS = 0.02
_CALL, _HERE, _REACHED = "roll", "here-", "reached"
_FORM = struct.Struct("<qqd")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reached:
    """How far the ranks of an attempt have come."""

    began_after: int
    """The step of the checkpoint that they went on from; 0: they began at the beginning."""
    step: int
    """The last step that was taken."""
    first_time: float
    """When the first of their steps had been taken, by the wall clock of the first rank."""


class StepNote:
    """The first rank's note of the steps that it has taken."""

    def __init__(self, folder: Path, began_after: int) -> None:
        self._path, self._began_after, self._first_time = folder / _REACHED, began_after, 0.0
        self._handle = -1

    def add(self, step: int) -> None:
        """Note a step that has been taken; a folder that has gone has nobody who reads it."""
        self._first_time = self._first_time or time.time()
        with suppress(OSError):
            if self._handle < 0:
                self._handle = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o600)
            os.pwrite(self._handle, _FORM.pack(self._began_after, step, self._first_time), 0)


def read_reached(folder: Path) -> Reached | None:
    """How far the ranks of an attempt have come; None: they have taken no step yet."""
    try:
        data = (folder / _REACHED).read_bytes()
    except OSError:
        return None
    if len(data) != _FORM.size:  # it is being made
        return None
    began_after, step, first_time = _FORM.unpack(data)
    return Reached(began_after=began_after, step=step, first_time=first_time)


def answer_roll(folder: Path, rank: int) -> threading.Event:
    """Answer from now on, in a thread, when the launcher asks who is there; set what is returned
    to end it."""
    ended = threading.Event()

    def answer() -> None:
        while not ended.wait(_LOOK_SECONDS):
            if (folder / _CALL).exists():
                with suppress(OSError):
                    (folder / f"{_HERE}{rank}").touch()
                return

    start_thread(answer, "roll", end=ended.set)
    return ended


def call_roll(folder: Path, ranks: Collection[int], seconds: float = ROLL_SECONDS) -> set[int]:
    """Ask ranks that run whether they are there; those that do not answer within so long."""
    silent = set(ranks)
    (folder / _CALL).touch()
    until = time.monotonic() + seconds
    while silent and time.monotonic() < until:
        time.sleep(_POLL_SECONDS)
        silent = {each for each in silent if not (folder / f"{_HERE}{each}").exists()}
    return silent
