"""What goes on with the steps of a run besides training: data, schedule, log and checkpoints."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import repeat
from typing import Any, NoReturn

import torch

from meshwright.capture.deferred.deferred import DeferredWorkload
from meshwright.capture.inputs import Inputs, as_inputs
from meshwright.capture.torch_private import pytree
from meshwright.errors import InputError, RankError
from meshwright.execute.environment import CHECK_OPS
from meshwright.execute.groups import RateSchedule, make_schedule
from meshwright.execute.keep import Keeper
from meshwright.execute.loader import Collate, DataPlace, Loader, endless
from meshwright.execute.log import Log
from meshwright.execute.pulse import Pulse
from meshwright.execute.settings import Settings
from meshwright.execute.trainer import Trainer


@dataclass(slots=True)
class Course:
    """How far a run has come in all of it; every rank makes the same calls."""

    trainer: Trainer
    loaders: list[Loader] = field(default_factory=list)
    places: list[DataPlace] = field(default_factory=list)
    """Where the loaders of the run that is resumed had come to."""
    schedule: RateSchedule | None = None
    log: Log | None = None
    """The log of the run, on the first rank, where one is kept."""
    keeper: Keeper | None = None
    heeds_signals: bool = False
    """Whether the run may be asked to stop."""
    before: Pulse | None = None
    """What ranks told each other of the step before the last."""
    validation: "Validation | None" = None

    def add(self, pulse: Pulse) -> bool:
        """Go on after a step; whether the run was asked to stop.

        That is decided by what ranks told each other of the step before, which is there by now.
        """
        for loader in self.loaders:
            loader.take()
        if self.log is not None:
            self.log.add(pulse, self.trainer.optimizer.param_groups[0]["lr"])
        if self.validation is not None and self.validation.is_due(pulse.step):
            loss = self.validation.loss()
            if self.log is not None:
                self.log.add_validation(pulse.step, loss)
        if self.schedule is not None:
            self.schedule.advance()
        if self.keeper is not None:
            self.keeper.add()
        before, self.before = self.before, pulse
        return self.heeds_signals and before is not None and before.stops

    def add_loader(self, loader: Loader) -> None:
        """Take in a loader, which goes on where the one in its place had come to."""
        self.loaders.append(loader)
        if len(self.loaders) <= len(self.places):
            loader.seek(self.places[len(self.loaders) - 1])

    def resume(self, places: Sequence[DataPlace], step: int) -> None:
        """Go on after a step, also after an earlier one, with loaders at these places."""
        if self.schedule is not None:
            self.schedule.seek(step)
        if self.log is not None:
            self.log.seek(step)
        self.places = list(places)
        for loader, place in zip(self.loaders, places, strict=False):
            loader.seek(place)

    def finish(self) -> None:
        """Write down what is left."""
        if self.log is not None:
            self.log.finish()
        if self.keeper is not None:
            self.keeper.save()


@dataclass(frozen=True, slots=True)
class Validation:
    """Data that losses are taken of now and then, in `eval` mode."""

    trainer: Trainer
    loader: Loader
    every: int = 0
    """After how many steps each losses are taken; 0: after the last alone."""
    last: int = 0

    def is_due(self, step: int) -> bool:
        """Whether it is time after a step."""
        return step == self.last or (self.every > 0 and step % self.every == 0)

    def loss(self) -> float:
        """The mean over all whole batches."""
        self.loader.seek(DataPlace())
        pulses = [self.trainer.evaluate(*as_inputs(batch)) for batch in self.loader]
        return sum(pulse.loss for pulse in pulses) / len(pulses)


def open_validation(
    trainer: Trainer, dataset: Any, *, collate: Collate | None = None, num_workers: int = 0
) -> Validation:
    """Of a dataset, in its own order; samples that make no whole batch are left out."""
    loader = Loader(
        dataset, trainer.lowered.rows.batch, trainer.rows, collate=collate,
        num_workers=num_workers, drops_last=True,
    )  # fmt: skip
    return Validation(trainer, loader)


def make_course(
    trainer: Trainer,
    settings: Settings,
    dataset: Any,
    validated: Any,
    say: Callable[[str], None],
) -> Course:
    """What goes on with the steps of a trainer, as settings ask for it; `dataset`, `validated`: to
    train on and to validate with, if there are any."""
    course = Course(trainer, make_loaders(trainer, settings, dataset))
    if validated is not None:
        course.validation = replace(
            open_validation(trainer, validated, num_workers=settings.num_workers),
            every=settings.validate_every,
            last=settings.steps,
        )
    course.schedule = make_schedule(settings.scheduler, trainer.optimizer)
    if trainer.rank == 0:
        course.log = open_log(trainer, settings, settings.steps, say)
    if settings.checkpoint is not None:
        course.keeper = Keeper(trainer, settings.checkpoint, settings.every, course.loaders)
    course.heeds_signals = course.keeper is not None or settings.is_measured
    return course


def open_log(
    trainer: Trainer, settings: Settings, steps: int | None, say: Callable[[str], None]
) -> Log:
    """The log that settings ask for, on the first rank; `steps`: how many there will be, None: that
    is not known."""
    return Log(
        settings.log,
        batch=trainer.lowered.rows.batch,
        first_step=trainer.num_steps,
        steps=steps,
        say=say,
        tensorboard=settings.tensorboard,
        callbacks=settings.callbacks,
    )


def make_loaders(
    trainer: Trainer, settings: Settings, dataset: Any, *, is_whole: bool = False
) -> list[Loader]:
    """What gives the data of a dataset, if there is one: the rows of the trainer's rank, or, where
    `is_whole`, whole batches for a rank that is alone with them."""
    if dataset is None:
        return []
    batch = trainer.lowered.rows.batch
    loader = Loader(
        dataset,
        batch,
        range(batch) if is_whole else trainer.rows,
        shuffles=settings.shuffles,
        seed=settings.seed,
        num_workers=settings.num_workers,
        is_alone=is_whole,
    )
    return [loader]


def repeat_batches(loaders: Sequence[Loader], deferred: DeferredWorkload) -> Iterator[Inputs]:
    """The batches of the first loader, epoch after epoch, or the workload's own again and again."""
    return endless(loaders[0]) if loaders else repeat(_real_inputs(deferred))


def _real_inputs(deferred: DeferredWorkload) -> Inputs:
    """The workload's own batch, with values."""
    workload = deferred.workload
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, deferred.real, (tuple(workload.args), dict(workload.kwargs))
    )
    return args, kwargs


def replay(course: Course, batches: Iterator[Inputs], until: int) -> NoReturn:
    """Train again until a step that was spoilt, to name the op; it ends by an error in any case."""
    trainer, course.keeper, course.log, course.validation = course.trainer, None, None, None
    if trainer.num_steps >= until:
        raise InputError(
            f"{CHECK_OPS}: must be above the step of the newest checkpoint, which is "
            f"{trainer.num_steps}, got {until}"
        )
    while trainer.num_steps < until:
        course.add(trainer.step(*next(batches)))
    raise RankError(
        "checking every op",
        f"all numbers until step {until} were finite this time, so that no op can be named; "
        f"training gives other numbers each time on these devices",
    )
