"""Writes how training goes into files that TensorBoard shows."""

import importlib
from pathlib import Path
from typing import Any

from meshwright.errors import InputError
from meshwright.execute.row import Row


class Board:
    """The curves of a run in a folder, on its first rank."""

    def __init__(self, folder: Path, first_step: int) -> None:
        """What the folder has of steps after the first is not shown any more."""
        self.folder = folder
        self._writer: Any = None
        self.seek(first_step)

    def add(self, row: Row) -> None:
        """Write down a step."""
        for name in ("loss", "learning_rate", "samples_per_second"):
            self._writer.add_scalar(name, getattr(row, name), row.step)

    def seek(self, step: int) -> None:
        """Go on after a step."""
        self.close()
        try:
            writers = importlib.import_module("tensorboardX")
        except ImportError:
            raise InputError(
                "tensorboard: needs the package tensorboardX, which is not installed; "
                "pip install meshwright[tensorboard]"
            ) from None
        try:
            self._writer = writers.SummaryWriter(
                str(self.folder),
                purge_step=step + 1,
                filename_suffix=f".{step + 1}",  # or it would be another's of the same second
            )
        except OSError as error:
            raise InputError(f"tensorboard {self.folder}: cannot be written ({error})") from None

    def close(self) -> None:
        """Write what is left, and close the files."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
