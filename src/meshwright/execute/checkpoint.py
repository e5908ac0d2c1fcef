"""Checkpoints: written whole or not at all, read by any number of ranks under any plan.

A checkpoint is a folder `step-00000010` in the format of torch.distributed.checkpoint, which knows
tensors by their global names; all ranks see the folder. Knows nothing of plans: each rank says
which names it has, or needs.
"""

import os
import pickle
import re
import shutil
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import (
    FileSystemReader,
    FileSystemWriter,
    _StorageInfo,
)
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from meshwright.errors import InputError, quoted, some
from meshwright.execute.walk import Progress, Unwatched

T = TypeVar("T")

_NAME = re.compile(r"step-(\d{8,})")
_PARTIAL = ".partial"
"""The end of the name of what is being written or removed."""
_METADATA = ".metadata"
"""The file that torch.distributed.checkpoint writes last."""
_METADATA_CLASSES = {
    ("torch.distributed.checkpoint.metadata", name)
    for name in (
        "BytesStorageMetadata", "ChunkStorageMetadata", "Metadata", "MetadataIndex", "StorageMeta",
        "TensorProperties", "TensorStorageMetadata", "_MEM_FORMAT_ENCODING",
    )
} | {
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch.serialization", "_get_layout"),
    ("torch", "Size"),
    ("pathlib", "PosixPath"),
}  # fmt: skip


def save_checkpoint(
    folder: Path,
    step: int,
    state: Mapping[str, torch.Tensor],
    *,
    group: dist.ProcessGroup | None = None,
    keep: int = 2,
    progress: Progress | None = None,
) -> Path:
    """Write what all ranks of `group` hold after `step`; the checkpoint's folder.

    Every rank calls it with the tensors it has; of those that several have, one is written. What is
    there is whole at any moment: the new one appears by a rename once all of it is on the disk.
    Then the older ones go, except for the last `keep` including this one. `progress` says that this
    rank waits for the others, and is told when it does not but writes.
    """
    assert keep >= 1
    progress = progress or Unwatched()
    path = folder / f"step-{step:08d}"
    partial = _on_first_rank(lambda: _make_partial(path), path, group)
    try:
        with _without_warnings():
            save(
                dict(state),
                storage_writer=_Writer(partial, progress),
                planner=_Planner(progress),
                process_group=group,
                no_dist=not dist.is_initialized(),
            )
    except CheckpointException as error:  # the same one on all ranks, after all have stopped
        shutil.rmtree(partial, ignore_errors=True)
        raise _describe_failure(path, "written", error) from error
    _on_first_rank(lambda: _publish(partial, path, keep), path, group)
    return path


class _Writer(FileSystemWriter):
    """torch's; a rank that writes for minutes waits for nobody, and is not hung."""

    def __init__(self, path: Path, progress: Progress) -> None:
        super().__init__(path)
        self._progress = progress

    def write_data(self, *args: Any) -> Any:
        """Called between two collectives, and done when it returns."""
        waits_for, self._progress.waits_for = self._progress.waits_for, -1
        try:
            return super().write_data(*args)
        finally:
            self._progress.waits_for = waits_for


class _Planner(DefaultSavePlanner):
    """torch's; every tensor that is written is progress."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(flatten_state_dict=False)
        self._progress = progress

    def resolve_data(self, write_item: Any) -> Any:
        """Called for each tensor when its turn comes."""
        self._progress.count += 1
        return super().resolve_data(write_item)


def latest_checkpoint(folder: Path) -> tuple[int, Path] | None:
    """The last step of which there is a whole checkpoint, and its folder."""
    for step, path in reversed(_find_checkpoints(folder)):
        if _find_fault(path) is None:
            return step, path
    return None


def load_checkpoint(path: Path, state: Mapping[str, torch.Tensor]) -> None:
    """Fill the given tensors in place; ranks read on their own, each what it needs.

    The names, shapes and types must be those of the checkpoint, which may hold more.
    """
    fault = _find_fault(path)
    if fault is not None:
        raise InputError(f"checkpoint {path}: {fault}")
    _check_state(path, state, _read_metadata(path))
    try:
        with _without_warnings():
            load(
                dict(state),
                storage_reader=FileSystemReader(path),
                planner=DefaultLoadPlanner(flatten_state_dict=False),
                no_dist=True,
            )
    except CheckpointException as error:
        raise _describe_failure(path, "read", error) from error


@contextmanager
def _without_warnings() -> Iterator[None]:
    """That there is no process group is no surprise to us."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "torch.distributed is disabled, unavailable or uninitialized", UserWarning
        )
        yield


def _on_first_rank(action: Callable[[], T], path: Path, group: dist.ProcessGroup | None) -> T:
    """Do it on the group's first rank; all ranks go on when it is done, or fail alike."""
    outcome: list[T | OSError | None] = [None]
    if not dist.is_initialized() or dist.get_rank(group) == 0:
        try:
            outcome[0] = action()
        except OSError as error:
            outcome[0] = error
    if dist.is_initialized():
        dist.broadcast_object_list(outcome, group=group, group_src=0)
    if isinstance(outcome[0], OSError):
        raise InputError(f"checkpoint {path}: cannot be written ({_describe_os(outcome[0])})")
    return outcome[0]  # type: ignore[return-value]


def _describe_failure(path: Path, verb: str, error: CheckpointException) -> Exception:
    """torch's exception is no Exception and holds one for each rank that failed."""
    rank, (first, _) = min(error.failures.items(), key=lambda item: item[0])
    if isinstance(first, OSError):
        reason = f"rank {rank}: {_describe_os(first)}"
        return InputError(f"checkpoint {path}: cannot be {verb} ({reason})")
    return RuntimeError(
        f"checkpoint {path}: cannot be {verb} (rank {rank}: {type(first).__name__}: {first})"
    )


def _describe_os(error: OSError) -> str:
    reason = error.strerror or str(error)
    return f"{reason}: {error.filename}" if error.filename else reason


def _make_partial(path: Path) -> Path:
    """A new folder to write to, after those of saves that were broken off are removed.

    Its name is new each time: a process of a broken-off attempt may still be about to write.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for each in path.parent.glob(f"step-*{_PARTIAL}"):
        shutil.rmtree(each, ignore_errors=True)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{_PARTIAL}")
    partial.mkdir()
    return partial


def _publish(partial: Path, path: Path, keep: int) -> None:
    """Give a written checkpoint its name, then remove those that are too old."""
    # torch syncs its files, but this one before Python has handed all of it to the system.
    _sync(partial / _METADATA)
    _sync(partial)
    if path.exists():  # the same step again: training went back to an older checkpoint, which
        _remove(path)  # is what is left if the process is killed right here
    partial.rename(path)
    _sync(path.parent)
    this = int(path.name.removeprefix("step-"))
    old = [each for step, each in _find_checkpoints(path.parent) if step <= this]
    for each in old[:-keep]:
        _remove(each)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _remove(path: Path) -> None:
    """Rename first: at no moment may half a checkpoint look whole."""
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{_PARTIAL}")
    path.rename(partial)
    shutil.rmtree(partial, ignore_errors=True)


def _find_checkpoints(folder: Path) -> list[tuple[int, Path]]:
    """Steps and folders that are named like checkpoints, in the order of steps."""
    if not folder.is_dir():
        return []
    matches = ((_NAME.fullmatch(path.name), path) for path in folder.iterdir() if path.is_dir())
    return sorted((int(match[1]), path) for match, path in matches if match)


def _find_fault(path: Path) -> str | None:
    """Why a folder is not a whole checkpoint, if it is not: files may be lost in copying."""
    if not (path / _METADATA).is_file():
        return f"no checkpoint, or not a whole one: it has no file {_METADATA}"
    try:
        metadata = _read_metadata(path)
    except InputError as error:
        return str(error)
    for info in metadata.storage_data.values():
        file = path / info.relative_path
        size = file.stat().st_size if file.is_file() else -1
        if size < info.offset + info.length:
            return (
                f"{quoted(info.relative_path)} must have at least {info.offset + info.length} "
                f"bytes, got {'no file' if size < 0 else size}"
            )
    return None


class _MetadataUnpickler(pickle.Unpickler):
    """Makes the classes of checkpoint metadata and nothing else: a pickle can call anything."""

    def find_class(self, module: str, name: str) -> object:
        if (module, name) in _METADATA_CLASSES or (
            module == "torch" and isinstance(getattr(torch, name, None), torch.dtype)
        ):
            return super().find_class(module, name)
        raise pickle.UnpicklingError(f"{module}.{name} does not belong in a checkpoint")


def _read_metadata(path: Path) -> Metadata:
    """What a checkpoint holds; torch reads the same file again, without these checks."""
    try:
        with (path / _METADATA).open("rb") as stream:
            metadata = _MetadataUnpickler(stream).load()
    except OSError as error:
        raise InputError(f"{_METADATA} cannot be read ({error.strerror or error})") from None
    except Exception as error:  # whatever a damaged pickle leads to
        raise InputError(f"{_METADATA} is damaged ({type(error).__name__}: {error})") from None
    if not isinstance(metadata, Metadata) or not isinstance(metadata.storage_data, dict):
        raise InputError(f"{_METADATA} is damaged (it holds no metadata)")
    for info in metadata.storage_data.values():
        if not isinstance(info, _StorageInfo) or "/" in info.relative_path:
            raise InputError(f"{_METADATA} is damaged (files must lie in the checkpoint's folder)")
    return metadata


def _check_state(path: Path, state: Mapping[str, torch.Tensor], metadata: Metadata) -> None:
    """The checkpoint has every tensor that is asked for, as it is asked for."""
    known = metadata.state_dict_metadata
    missing = [quoted(name) for name in state if name not in known]
    if missing:
        raise InputError(
            f"checkpoint {path}: must have every tensor of the model, lacks {some(missing)}"
        )
    for name, tensor in state.items():
        saved = known[name]
        if not isinstance(saved, TensorStorageMetadata):
            raise InputError(f"checkpoint {path}: {quoted(name)} must be a tensor")
        if saved.size != tensor.shape:
            raise InputError(
                f"checkpoint {path}: {quoted(name)} must have the model's shape "
                f"{list(tensor.shape)}, got {list(saved.size)}"
            )
        if saved.properties.dtype != tensor.dtype:
            raise InputError(
                f"checkpoint {path}: {quoted(name)} must have the model's type "
                f"{tensor.dtype}, got {saved.properties.dtype}"
            )
