"""Tells how training goes while it goes: a line now and then, and for every step a row of a CSV
file, points of TensorBoard's curves, and a call of whoever asked for one.

A loss is looked at when the next step has been taken, so that nobody waits for it.
"""

import csv
import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from meshwright.errors import InputError
from meshwright.execute.pulse import Pulse
from meshwright.units import format_number

COLUMNS = (
    "step", "loss", "learning_rate", "seconds", "samples_per_second", "validation_loss",
)  # fmt: skip
_SAY_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Entry:
    """What is known of a step once it was taken."""

    step: int
    """The number of the step, counted from one."""
    loss: float
    learning_rate: float
    """The learning rate of the optimiser's first group."""
    seconds: float
    samples_per_second: float
    validation_loss: float | None = None
    """Of the validation data after the step, where it was looked at."""


Callback = Callable[[Entry], None]
"""Is told of every step, on the first rank, when the next one was taken."""


class Log:
    """The log of a run, on its first rank."""

    def __init__(
        self,
        path: Path | None,
        batch: int,
        first_step: int,
        steps: int | None,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
        *,
        tensorboard: Path | None = None,
        callbacks: Sequence[Callback] = (),
    ) -> None:
        """A file that is there is gone on with after `first_step`; what it has of later steps, as
        of a run that was killed, goes. `steps`: how many there will be, if that is known.
        `tensorboard`: a folder for its files. `callbacks` are told of every step."""
        self.path, self.batch, self.steps, self.say, self.clock = path, batch, steps, say, clock
        self.curves = None if tensorboard is None else Curves(tensorboard)
        self.callbacks = callbacks
        self._before: tuple[Pulse, float, float] | None = None
        self._validation_loss: float | None = None
        """The loss of the validation data after the step before."""
        self._file: TextIO | None = None
        self._last = self._said = clock()
        if path is not None:
            _cut(path, first_step)

    def add(self, pulse: Pulse, learning_rate: float) -> None:
        """Take in a step that has just been taken, at a rate; write down the one before it."""
        now = self.clock()
        self._write()
        self._before = pulse, learning_rate, now - self._last
        self._last = now

    def add_validation(self, step: int, loss: float) -> None:
        """Take in the loss of the validation data after the last step; the time that it took is no
        step's."""
        self._validation_loss = loss
        self._last = self.clock()
        self.say(f"step {step}: validation loss {loss:.4f}")

    def seek(self, step: int) -> None:
        """Go on after a step, also after an earlier one: what was written of later ones goes."""
        self._before = self._validation_loss = None
        self._last = self.clock()
        self.close()
        if self.path is not None:
            _cut(self.path, step)

    def finish(self) -> None:
        """Write down the last step, and close the file."""
        self._write()
        self.close()

    def close(self) -> None:
        """Close the file as it is, without the last step."""
        if self._file is not None:
            self._file.close()
            self._file = None
        if self.curves is not None:
            self.curves.close()

    def _write(self) -> None:
        """Write down the step before, unless it is."""
        if self._before is None:
            return
        (pulse, rate, seconds), self._before = self._before, None
        validation, self._validation_loss = self._validation_loss, None
        speed = self.batch / max(seconds, 1e-9)
        entry = Entry(pulse.step, pulse.loss, rate, seconds, speed, validation)
        if self.curves is not None:
            self.curves.add(entry)
        for callback in self.callbacks:
            callback(entry)
        if self.path is not None:
            if self._file is None:  # whole lines are written, so that others can read them
                self._file = self.path.open("a", buffering=1, newline="", encoding="utf-8")
            row = (pulse.step, repr(pulse.loss), repr(rate), f"{seconds:.6f}", f"{speed:.2f}")
            last = "" if validation is None else repr(validation)
            csv.writer(self._file, lineterminator="\n").writerow((*row, last))
        if self.clock() - self._said >= _SAY_SECONDS:
            self._said = self.clock()
            of = f" of {self.steps}" if self.steps else ""
            self.say(
                f"step {pulse.step}{of}: loss {pulse.loss:.4f}, {format_number(speed)} samples/s"
            )


def _cut(path: Path, first_step: int) -> None:
    """Leave the rows of the steps until one in a file, with a row of titles."""
    rows: list[list[str]] = []
    try:
        if path.exists():
            with path.open(newline="", encoding="utf-8") as file:
                titles, *rows = list(csv.reader(file)) or [list(COLUMNS)]
            if tuple(titles) != COLUMNS or any(not row[0].isdigit() for row in rows):
                raise InputError(f"log {path}: is there, and is none of a training run")
        kept = [row for row in rows if int(row[0]) <= first_step]
        with path.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file, lineterminator="\n").writerows([COLUMNS, *kept])
    except (OSError, UnicodeDecodeError, csv.Error, IndexError) as error:
        raise InputError(f"log {path}: cannot be written ({error})") from None


class Curves:
    """The curves of a run in a folder, on its first rank."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file: Any = None
        try:
            self._package: Any = importlib.import_module("tensorboardX")
        except ImportError:
            raise InputError(
                "tensorboard: needs the package tensorboardX, which is not installed; "
                "pip install meshwright[tensorboard]"
            ) from None
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"tensorboard {folder}: cannot be written ({error})") from None

    def add(self, entry: Entry) -> None:
        """Write down a step; what is there of it and of later ones when a file is opened is not
        shown any more."""
        if self._file is None:
            self._file = self._package.SummaryWriter(
                str(self.folder),
                purge_step=entry.step,
                filename_suffix=f".{entry.step}",  # or it would be another's of the same second
            )
        for name in ("loss", "learning_rate", "samples_per_second"):
            self._file.add_scalar(name, getattr(entry, name), entry.step)
        if entry.validation_loss is not None:
            self._file.add_scalar("validation_loss", entry.validation_loss, entry.step)

    def close(self) -> None:
        """Write what is left, and close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
