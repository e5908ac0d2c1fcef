"""What goes on with the steps of a run besides training: data, schedule, log and checkpoints."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwright.execute.groups import advance, make_scheduler
from meshwright.execute.keep import Keeper
from meshwright.execute.loader import Loader, Place
from meshwright.execute.log import Log
from meshwright.execute.pulse import Pulse
from meshwright.execute.trainer import Trainer


@dataclass(slots=True)
class Course:
    """How far a run has come in all of it; every rank makes the same calls."""

    trainer: Trainer
    loaders: list[Loader] = field(default_factory=list)
    places: list[Place] = field(default_factory=list)
    """Where the loaders of the run that is resumed had come to."""
    scheduler: Any = None
    log: Log | None = None
    """On the first rank, where one is kept."""
    keeper: Keeper | None = None

    def add(self, pulse: Pulse) -> bool:
        """Go on after a step; whether the run was asked to stop."""
        for loader in self.loaders:
            loader.take()
        if self.log is not None:
            self.log.add(pulse, self.trainer.optimizer.param_groups[0]["lr"])
        if self.scheduler is not None:
            advance(self.scheduler, self.trainer.optimizer)
        stops = self.keeper is not None and self.keeper.add(pulse)
        if stops:
            self.finish()
        return stops

    def add_loader(self, loader: Loader) -> None:
        """Take in a loader, which goes on where the one in its place had come to."""
        self.loaders.append(loader)
        if len(self.loaders) <= len(self.places):
            loader.seek(self.places[len(self.loaders) - 1])

    def resume(self, places: Sequence[Place], steps: int) -> None:
        """Go on so many steps later, with loaders at these places."""
        self.places = list(places)
        for loader, place in zip(self.loaders, places, strict=False):
            loader.seek(place)
        make_scheduler(self.scheduler, self.trainer.optimizer, steps)

    def finish(self) -> None:
        """Write down what is left."""
        if self.log is not None:
            self.log.finish()
        if self.keeper is not None:
            self.keeper.save()
