"""Keeps checkpoints of a run: every so many steps, at its end, and when it is asked to stop.

A launcher of ours asks by SIGUSR1; others, such as torchrun or a scheduler, by SIGTERM. Any rank
may be asked; all hear of it with the loss of the step (`meshwright.execute.pulse`) and stop after
the same one.
"""

import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from meshwright.errors import InputError
from meshwright.execute.environment import read_place, run_folder
from meshwright.execute.loader import Loader
from meshwright.execute.resume import save_state
from meshwright.execute.trainer import Trainer
from meshwright.signals import handled_signals


@dataclass(frozen=True, slots=True)
class Keeper:
    """The checkpoints of a run in a folder; all ranks make the same calls."""

    trainer: Trainer
    folder: Path
    every: int
    loaders: Sequence[Loader]
    """They may grow; how far each has come is kept."""

    def __post_init__(self) -> None:
        if self.every < 1:
            raise InputError(
                f"every: there must be a step at least between checkpoints, got {self.every}"
            )

    def add(self) -> None:
        """Keep a checkpoint after a step if it is time to."""
        if self.trainer.num_steps % self.every == 0:
            self.save()

    def save(self) -> None:
        """Keep a checkpoint now, unless there is one of this step."""
        trainer = self.trainer
        trainer.gather_losses()  # one that is not finite is refused in any case
        if trainer.saved_step != trainer.num_steps:
            save_state(self.folder, trainer, [each.place for each in self.loaders])


@contextmanager
def stopped_by_signals(trainer: Trainer) -> Iterator[None]:
    """Within this, the run stops after a step instead of at once when this rank is asked to."""
    number = signal.SIGTERM if run_folder() is None else signal.SIGUSR1

    def note(_number: int, _frame: object) -> None:
        trainer.stops = True

    with handled_signals(note, number):
        yield


def stop_restarts() -> None:
    """Have torchrun end as well after this rank stopped as asked, where it would start it again.

    Another host's may be the one that was asked: to this one, a rank that ends before the last step
    has failed. All ranks have kept their checkpoint by now.
    """
    place = read_place()
    if place.is_agents_store and place.max_restarts:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # comes back from torchrun
        if place.local_rank == 0:
            os.kill(os.getppid(), signal.SIGTERM)
