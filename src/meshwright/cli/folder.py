"""Writes several files into a folder: all of them or none.

They are written beside their place first and then moved there, which takes next to no time and is
not interrupted. What else the folder holds stays.
"""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from meshwright.cli.interrupt import held_interrupt
from meshwright.errors import InputError

Writer = Callable[[Path], None]


def check_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written to, before long work and not after it."""
    if "\0" in str(folder):  # which `Path.exists` calls missing, as any other
        raise InputError(f"{str(folder)!r}: must be the name of a folder, which has no NUL")
    try:
        if folder.exists() and not folder.is_dir():
            raise InputError(f"{folder}: must be a folder, but is a file")
        nearest = _nearest_existing(folder)
        if not nearest.is_dir():
            raise InputError(f"{folder}: cannot be made, {nearest} is not a folder")
        if not os.access(nearest, os.W_OK | os.X_OK):
            raise InputError(f"{folder}: cannot be written (no permission for {nearest})")
    except (OSError, ValueError) as error:
        raise _cannot(folder, error) from None


def write_folder(folder: Path, writers: Mapping[str, Writer]) -> None:
    """Write each file by its writer, into a folder that may exist or not."""
    check_folder(folder)
    nearest = _nearest_existing(folder)
    try:
        with _scratch_folder(nearest) as scratch:
            # Missing folders above are made inside the scratch folder too, and move with it.
            missing = folder.absolute().relative_to(nearest).parts
            place = scratch.joinpath(*missing)
            place.mkdir(parents=True, exist_ok=True)
            for name, write in writers.items():
                write(place / name)
            with held_interrupt():
                if missing:
                    os.replace(scratch / missing[0], nearest / missing[0])
                else:
                    _move_files(place, folder, list(writers))
    except (OSError, ValueError) as error:
        raise _cannot(folder, error) from None


def _move_files(source: Path, folder: Path, names: list[str]) -> None:
    for name in names:
        if (folder / name).is_dir():
            raise InputError(f"{folder / name}: cannot be written, is a folder")
    for name in names:
        os.replace(source / name, folder / name)


def _nearest_existing(folder: Path) -> Path:
    """The folder itself or the nearest above it that exists."""
    path = folder.absolute()
    while not path.exists():
        path = path.parent
    return path


def _cannot(folder: Path, error: Exception) -> InputError:
    reason = error.strerror if isinstance(error, OSError) else None
    return InputError(f"{folder}: cannot be written ({reason or error})")


@contextmanager
def _scratch_folder(parent: Path) -> Iterator[Path]:
    scratch = Path(tempfile.mkdtemp(prefix=".meshwright-", dir=parent))
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
