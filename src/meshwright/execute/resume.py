"""What of a training run is kept in a checkpoint, and how a run goes on from one.

Knows nothing of files; those are `meshwright.execute.checkpoint`'s. All ranks make the same calls.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from meshwright.execute.checkpoint import (
    Checkpoint,
    find_checkpoint,
    load_checkpoint,
    save_checkpoint,
)
from meshwright.execute.group import waiting
from meshwright.execute.message import gather
from meshwright.execute.trainer import Trainer
from meshwright.execute.walk import Progress
from meshwright.execute.weights import persistent_names

_LOSSES = "losses of the run"
"""The name in a checkpoint of the loss of every step; no parameter's has spaces."""


def look_for_checkpoint(
    folder: Path | None, watch: Progress | None, say: Callable[[str], None]
) -> Checkpoint | None:
    """The latest intact checkpoint of a folder, the same on all ranks."""
    if folder is None:
        return None
    with waiting(watch, "looking for a checkpoint"):
        return find_checkpoint(folder, say, watch)


def resume(trainer: Trainer, found: Checkpoint | None) -> list[float]:
    """Go on where a checkpoint left off; the losses until then."""
    if found is None:
        return []
    load_checkpoint(found, trainer.state, trainer.walk.progress, trainer.holdings)
    trainer.spread_copies()
    trainer.unchecked = trainer.find_unchecked()
    trainer.num_steps = trainer.saved_step = found.step
    return read_losses(found)


def read_losses(found: Checkpoint) -> list[float]:
    """The loss of every step until a checkpoint."""
    losses = torch.zeros(found.step, dtype=torch.float64)
    load_checkpoint(found, {_LOSSES: losses})
    return [float(each) for each in losses.tolist()]


def save_state(folder: Path, trainer: Trainer, losses: Sequence[float]) -> None:
    """Write a checkpoint of the steps so far and their losses; all ranks call it."""
    state = {**trainer.state, _LOSSES: torch.tensor(losses, dtype=torch.float64)}
    names = persistent_names(trainer.workload.model)
    read = {name for each in gather(list(trainer.state), list[str]) for name in each}
    if trainer.rank == 0:  # nobody holds what no op reads
        state |= {name: trainer.given(name) for name in names if name not in read}
    save_checkpoint(
        folder,
        trainer.num_steps,
        state,
        holdings=trainer.holdings,
        unchecked=trainer.unchecked,
        weights=list(names),
        progress=trainer.walk.progress,
    )
    trainer.saved_step = trainer.num_steps
