"""Writes how training goes into files that TensorBoard shows."""

import importlib
from pathlib import Path
from typing import Any

from meshwright.errors import InputError
from meshwright.execute.entry import Entry


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
