"""What of a training run is kept in a checkpoint, and how a run goes on from one.

Knows nothing of files; those are `meshwright.execute.checkpoint`'s. All ranks make the same calls.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from meshwright.errors import InputError
from meshwright.execute.checkpoint import (
    Checkpoint,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from meshwright.execute.group import waiting
from meshwright.execute.loader import DataPlace
from meshwright.execute.message import gather
from meshwright.execute.progress import Progress
from meshwright.execute.trainer import Trainer
from meshwright.execute.weights import persistent_names

_LOSSES, _PLACES, _SCALE = "losses of the run", "places in the data", "loss scale"
"""The names in a checkpoint of the loss of every step, and of how far each loader had come; no
parameter's has spaces."""

_MAX_LOADERS = 1000


def look_for_checkpoint(
    folder: Path | None, watch: Progress | None, say: Callable[[str], None]
) -> Checkpoint | None:
    """The latest intact checkpoint of a folder, the same on all ranks."""
    if folder is None:
        return None
    with waiting(watch, "looking for a checkpoint"):
        return find_checkpoint(folder, say, watch)


def resume(trainer: Trainer, found: Checkpoint | None) -> None:
    """Go on where a checkpoint left off, if there is one."""
    if found is None:
        return
    load_checkpoint(found, trainer.state, trainer.walk.progress, trainer.trained.holdings)
    if trainer.scale is not None and _SCALE in found.manifest.tensors:
        load_checkpoint(found, {_SCALE: trainer.scale.state})
    trainer.trained.spread_copies()
    trainer.unchecked = trainer.trained.find_unchecked()
    trainer.continue_from(found.step, read_losses(found))


def read_losses(found: Checkpoint) -> list[float]:
    """The loss of every step until a checkpoint."""
    losses = torch.zeros(found.step, dtype=torch.float64)
    load_checkpoint(found, {_LOSSES: losses})
    return [float(each) for each in losses.tolist()]


def read_places(found: Checkpoint | None) -> list[DataPlace]:
    """How far each loader had come in its data at a checkpoint."""
    if found is None or _PLACES not in found.manifest.tensors:
        return []
    shape = found.manifest.tensors[_PLACES].shape
    if len(shape) != 2 or not 1 <= shape[0] <= _MAX_LOADERS or shape[1] != len(DataPlace._fields):
        raise InputError(
            f"checkpoint {found.path}: {_PLACES} must have shape [1 to {_MAX_LOADERS}, "
            f"{len(DataPlace._fields)}], have {shape}"
        )
    places = torch.zeros(shape, dtype=torch.int64)
    load_checkpoint(found, {_PLACES: places})
    if int(places.min()) < 0:
        raise InputError(f"checkpoint {found.path}: {_PLACES} must not be negative")
    return [DataPlace(*each) for each in places.tolist()]


def save_state(folder: Path, trainer: Trainer, places: Sequence[DataPlace] = ()) -> None:
    """Write a checkpoint of the steps so far, their losses, and how far each loader has come in its
    data; all ranks call it."""
    losses, progress = trainer.gather_losses(), trainer.walk.progress
    state = {**trainer.state, _LOSSES: torch.tensor(losses, dtype=torch.float64)}
    if places:
        state[_PLACES] = torch.tensor(places, dtype=torch.int64)
    if trainer.scale is not None:
        state[_SCALE] = trainer.scale.state
    names = persistent_names(trainer.workload.model)
    with waiting(progress, f"writing the checkpoint of step {trainer.num_steps}"):
        read = {name for each in gather(list(trainer.state), list[str]) for name in each}
        if trainer.rank == 0:  # nobody holds what no op reads
            state |= {name: trainer.trained.start.value(name) for name in names if name not in read}
        save_checkpoint(
            folder,
            trainer.num_steps,
            state,
            holdings=trainer.trained.holdings,
            unchecked=trainer.unchecked,
            weights=list(names),
            progress=progress,
        )
    trainer.saved_step = trainer.num_steps
