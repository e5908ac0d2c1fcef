"""Checkpoints: written whole or not at all, read by any number of ranks under any plan.

A checkpoint is a folder `step-00000010` with one file of tensors for each rank that writes any, and
a manifest that is written last (`meshwright.execute.manifest`); all ranks see the folder. Nothing
in it is ever executed or unpickled. Knows nothing of plans: each rank says which tensors, or pieces
of tensors, it has or needs. All ranks make the same calls, and succeed or fail alike.
"""

import os
import shutil
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import torch

from meshwright.errors import InputError, errors_in
from meshwright.execute.finite import find_flaws, refuse_flaws
from meshwright.execute.holding import (
    Written,
    check_state,
    choose_parts,
    describe_os,
    fill_parts,
    join_parts,
    name_parts,
    write_parts,
)
from meshwright.execute.kept import list_checkpoints
from meshwright.execute.manifest import (
    FILE_NAME,
    Manifest,
    VersionError,
    decode_manifest,
    encode_manifest,
    find_file_fault,
    read_manifest,
)
from meshwright.execute.message import gather, own_place, share
from meshwright.execute.piece import TensorHolding
from meshwright.execute.progress import NOBODY, Progress

_PARTIAL = ".partial"
"""The end of the name of what is being written or removed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose files were found to be intact."""

    path: Path
    manifest: Manifest

    @property
    def step(self) -> int:
        """How many steps had been taken when it was written."""
        return self.manifest.step


def save_checkpoint(
    folder: Path,
    step: int,
    state: Mapping[str, torch.Tensor],
    *,
    holdings: Mapping[str, TensorHolding] = MappingProxyType({}),
    unchecked: Collection[str] = (),
    weights: Sequence[str] = (),
    keep: int = 2,
    progress: Progress | None = None,
) -> Path:
    """Write what all ranks hold after `step`, and return the checkpoint's folder.

    Every rank calls it with the tensors it has; of those that several have, one is written. Where
    it has a piece of a tensor, `holdings` says which. What is there is whole at any moment: the new
    one appears by a rename once all of it is on the disk. Then the older ones go, except for the
    last `keep` including this one. A checkpoint with a number that is not finite is refused, unless
    its tensor is one of `unchecked`. `weights` names the tensors that are the model's own.
    `progress` is told what this rank does.
    """
    assert keep >= 1
    progress = progress or Progress()
    path = folder / f"step-{step:08d}"
    with _working(progress) as tick:
        flaws = find_flaws(state, unchecked, tick)
    refuse_flaws(step, flaws, ", so that no checkpoint is written")
    parts = name_parts(state, holdings)
    sizes = {key: each.num_bytes for key, each in parts.items()}
    rank, _ = own_place()
    chosen = choose_parts(gather(sizes, dict[str, int]), rank)
    own = {key: parts[key] for key in chosen}
    partial = path.with_name(_on_first_rank(lambda: _make_partial(path), path))
    with _working(progress) as tick:
        written = write_parts(partial, rank, own, tick)
    written_by = gather(written, Written)
    faults = [f"rank {rank}: {each.fault}" for rank, each in enumerate(written_by) if each.fault]
    if faults:
        _on_first_rank(lambda: _discard(partial), path)
        raise InputError(f"checkpoint {path}: cannot be written ({faults[0]})")
    try:
        manifest = join_parts(step, written_by, weights)
    except InputError as error:  # on all ranks
        _on_first_rank(lambda: _discard(partial), path)
        raise InputError(f"checkpoint {path}: cannot be written ({error})") from None
    _on_first_rank(lambda: _publish(partial, path, manifest, keep), path)
    return path


def find_checkpoint(
    folder: Path, say: Callable[[str], None], progress: Progress | None = None
) -> Checkpoint | None:
    """The latest checkpoint of a folder that is intact, the same on all ranks; None: it has none.

    A damaged one is named by `say` on the first rank, and the one before it is looked at. The
    ranks divide the reading of files among themselves.
    """
    progress = progress or Progress()
    names = share([path.name for _, path in reversed(list_checkpoints(folder))], list[str])
    for name in names:
        found, fault = _examine(folder / name, progress)
        if found is not None:
            return found
        if own_place()[0] == 0:
            say(f"checkpoint {folder / name}: {fault}; looking for an older one")
    if names:
        raise InputError(
            f"checkpoints {folder}: one must be intact to go on from, all {len(names)} are "
            f"damaged; move them away to train from the beginning"
        )
    return None


def load_checkpoint(
    checkpoint: Checkpoint,
    state: Mapping[str, torch.Tensor],
    progress: Progress | None = None,
    holdings: Mapping[str, TensorHolding] = MappingProxyType({}),
) -> None:
    """Fill the given tensors in place; this rank reads on its own, and only what it needs.

    The names, shapes and types must be those of the checkpoint, which may hold more. `holdings`
    says which piece of a tensor is wanted where it is not all of it; it may be any, whichever
    pieces were written.
    """
    path = checkpoint.path
    with _working(progress or Progress()) as tick, errors_in(f"checkpoint {path}"):
        check_state(state, checkpoint.manifest.tensors, holdings)
        fill_parts(path, checkpoint.manifest.tensors, state, holdings, tick)


@contextmanager
def _working(progress: Progress) -> Iterator[Callable[[], None]]:
    """While this holds, this rank waits for nobody; what it yields tells that it goes on."""
    waits_for, progress.waits_for = progress.waits_for, NOBODY

    def tick() -> None:
        progress.count += 1

    try:
        yield tick
    finally:
        progress.waits_for = waits_for


def _on_first_rank(action: Callable[[], str], path: Path) -> str:
    """What the first rank's action returns, on all ranks, which go on when it is done or fail
    alike."""
    outcome, fault = "", ""
    if own_place()[0] == 0:
        try:
            outcome = action()
        except OSError as error:
            fault = describe_os(error)
    outcome, fault = share((outcome, fault), tuple[str, str])
    if fault:
        raise InputError(f"checkpoint {path}: cannot be written ({fault})")
    return outcome


def _make_partial(path: Path) -> str:
    """The name of a new folder to write to, after those of saves that were broken off are removed.

    It is new each time: a process of a broken-off attempt may still be about to write.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    for each in path.parent.glob(f"step-*{_PARTIAL}"):
        shutil.rmtree(each, ignore_errors=True)
    partial = path.with_name(f"{path.name}.{uuid.uuid4().hex}{_PARTIAL}")
    partial.mkdir()
    return partial.name


def _discard(partial: Path) -> str:
    shutil.rmtree(partial, ignore_errors=True)
    return ""


def _publish(partial: Path, path: Path, manifest: Manifest, keep: int) -> str:
    """Write the manifest, give the checkpoint its name, then remove those that are too old."""
    with (partial / FILE_NAME).open("xb") as stream:
        stream.write(encode_manifest(manifest))
        stream.flush()
        os.fsync(stream.fileno())
    _sync(partial)
    if path.exists():  # the same step again: training went back to an older checkpoint, which
        _remove(path)  # is what is left if the process is killed right here
    partial.rename(path)
    _sync(path.parent)
    old = [each for step, each in list_checkpoints(path.parent) if step <= manifest.step]
    for each in old[:-keep]:
        _remove(each)
    return path.name


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
    if partial.is_symlink():
        partial.unlink()
    shutil.rmtree(partial, ignore_errors=True)


def _examine(path: Path, progress: Progress) -> tuple[Checkpoint | None, str]:
    """A checkpoint if it is intact, else its fault; the same on all ranks."""
    text, fault, refusal = b"", "", ""
    if own_place()[0] == 0:
        try:
            text = read_manifest(path)
        except VersionError as error:
            refusal = str(error)
        except InputError as error:
            fault = str(error)
    text, fault, refusal = share((text, fault, refusal), tuple[bytes, str, str])
    if refusal:
        raise VersionError(refusal)
    if fault:
        return None, fault
    try:
        manifest = decode_manifest(text, path)  # all ranks have the same text
    except VersionError:
        raise
    except InputError as error:
        return None, str(error)
    if path.name != f"step-{manifest.step:08d}":
        return None, f"{FILE_NAME}: must be of the folder's step, is of step {manifest.step}"
    faults = [each for each in gather(_check_files(path, manifest, progress), str) if each]
    return (None, faults[0]) if faults else (Checkpoint(path=path, manifest=manifest), "")


def _check_files(path: Path, manifest: Manifest, progress: Progress) -> str:
    """The first fault of this rank's share of the files."""
    rank, num_ranks = own_place()
    with _working(progress) as tick:
        for name in sorted(manifest.files)[rank::num_ranks]:
            fault = find_file_fault(path / name, manifest.files[name], tick)
            if fault:
                return fault
    return ""
