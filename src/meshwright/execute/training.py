"""Training by a plan from a script of one's own, one process a device, under torchrun.

The script gives every rank the same model, batches and calls; each takes its share.
"""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from meshwright.capture.capture import capture_traced
from meshwright.capture.workload import Workload
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.execute.collect import collect
from meshwright.execute.course import Course, open_log, open_validation
from meshwright.execute.fault import TERMINATED, show_line
from meshwright.execute.group import waiting
from meshwright.execute.groups import make_schedule, open_optimizer
from meshwright.execute.keep import Keeper, stop_restarts, stopped_by_signals
from meshwright.execute.loader import Collate, Loader
from meshwright.execute.lowered import Lowered
from meshwright.execute.make_trainer import make_trainer
from meshwright.execute.progress import Progress
from meshwright.execute.pulse import Loss, Pulse
from meshwright.execute.recorder import Recorder
from meshwright.execute.resume import look_for_checkpoint, read_places, resume, save_state
from meshwright.execute.seat import lower_for, seated
from meshwright.execute.settings import Settings
from meshwright.execute.trainer import Trainer
from meshwright.execute.unmerge import unmerge
from meshwright.execute.weights import persistent_names
from meshwright.graph.fuse import may_be_fused
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.simulate.measured import measured_timeline
from meshwright.simulate.timeline import Timeline


@dataclass(slots=True)
class Training:
    """This process's part in a run; every rank makes the same calls."""

    rank: int
    lowered: Lowered
    trainer: Trainer
    course: Course
    watch: Progress | None

    @property
    def num_steps(self) -> int:
        """Steps so far, with those before the checkpoint."""
        return self.trainer.num_steps

    def step(self, *args: Any, **kwargs: Any) -> Loss:
        """Train on one batch, which is given whole or, as by a loader, with this rank's rows.

        Returns its loss, a number that is waited for when it is used.
        """
        pulse = self.trainer.step(args, kwargs)
        self._add(pulse)
        return Loss(pulse)

    def _add(self, pulse: Pulse) -> None:
        """Do what goes on with a step; the process ends here where a rank was asked to stop."""
        if self.course.add(pulse):
            self.course.finish()
            if self.rank == 0:
                show_line(f"stopped after step {self.num_steps}, with a checkpoint to go on from")
            sys.exit(TERMINATED)

    def evaluate(self, *args: Any, **kwargs: Any) -> Loss:
        """The loss of one batch, given as to `step`, with the model in `eval` mode.

        Nothing is dropped, batch norm takes its running statistics, and nothing is trained.
        """
        return Loss(self.trainer.evaluate(args, kwargs))

    def validate(
        self, dataset: Any, *, collate: Collate | None = None, num_workers: int = 0
    ) -> float:
        """The mean loss of a dataset, of which this rank loads its own rows only, in `eval` mode;
        samples that make no whole batch are left out. All ranks call it alike."""
        return open_validation(
            self.trainer, dataset, collate=collate, num_workers=num_workers
        ).loss()

    def loader(
        self,
        dataset: Any,
        *,
        shuffle: bool = False,
        sampler: Iterable[int] | None = None,
        seed: int = 0,
        collate: Collate | None = None,
        num_workers: int = 0,
        drop_last: bool = False,
    ) -> Loader:
        """Batches of a dataset for `step`, of which this rank loads its own rows only.

        `dataset` has `__getitem__` and `__len__`, as torch's and the Hub's have, or can only be
        iterated; `shuffle` orders the samples of every epoch by `seed`, a `sampler` as it likes.
        Iterating gives an epoch, or what is left of it after `resume`; `epoch` is its number. The
        samples that an epoch leaves over begin the first batch of the next, unless `drop_last`.
        `save` keeps how far training has come. All ranks call it alike, with equal datasets.
        """
        found = Loader(
            dataset,
            self.lowered.rows.batch,
            self.trainer.rows,
            shuffles=shuffle,
            sampler=sampler,
            seed=seed,
            collate=collate,
            num_workers=num_workers,
            drops_last=drop_last,
        )
        self.course.add_loader(found)
        return found

    def losses(self) -> list[float]:
        """The loss of every step so far."""
        return self.trainer.gather_losses()

    def measure(self, *args: Any, **kwargs: Any) -> Timeline:
        """Train on one batch as `step` does, and time every instruction of every rank."""
        recorder = Recorder(self.lowered, 1, self.watch, self.trainer.device)
        pulse = recorder.step(lambda times: self.trainer.step(args, kwargs, times=times))
        run = recorder.finish(is_emulated=False, losses=(), software=self.trainer.software)
        self._add(pulse)
        return measured_timeline(self.lowered.program, run)

    def save(self, folder: str | Path) -> None:
        """Write a checkpoint, which loads under any plan of the same model."""
        save_state(Path(folder), self.trainer, [each.place for each in self.course.loaders])

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The model's `state_dict` as trained so far, on the first rank, on the CPU; on others it
        is empty. All ranks call it; no other rank holds more than a part of a tensor at a time.

        For models that one rank cannot hold, `save` and `meshwright export`.
        """
        trainer = self.trainer
        names = persistent_names(trainer.workload.model)
        own = {name: each for name, each in trainer.state.items() if name in names}
        with waiting(self.watch, "collecting weights on the first rank"):
            found = collect(own, trainer.trained.holdings)
        if self.rank != 0:
            return {}
        found |= {name: trainer.trained.start.value(name) for name in names if name not in found}
        first = {alias: name for name, aliases in names.items() for alias in aliases}
        keys = trainer.workload.model.state_dict(keep_vars=True)
        return {key: found[first[key]] for key in keys if key in first}

    @contextmanager
    def kept(self, settings: Settings) -> Iterator[None]:
        """Within this, checkpoints and a log are kept, where settings ask for them; training goes
        on from the latest checkpoint."""
        course, folder = self.course, settings.checkpoint
        if folder is not None:
            self.resume(folder)
            course.keeper = Keeper(self.trainer, folder, settings.every, course.loaders)
            course.heeds_signals = True
        is_told = settings.log is not None or settings.tensorboard is not None or settings.callbacks
        if is_told and self.rank == 0:
            course.log = open_log(self.trainer, settings, None, show_line)
        try:
            with stopped_by_signals(self.trainer) if folder is not None else nullcontext():
                yield
        finally:
            if course.log is not None:
                course.log.close()

    def resume(self, folder: str | Path) -> int:
        """Go on from the latest checkpoint of a folder, if there is one; the steps so far.

        Loaders, made before or afterwards, go on where they had come to, in the order in which
        they are made.
        """
        found = look_for_checkpoint(Path(folder), self.watch, show_line)
        if found is not None:
            self.course.resume(read_places(found), found.step)  # first: it may be refused
            resume(self.trainer, found)
        return self.num_steps


@contextmanager
def open_planned(
    graph: Graph | None, cluster: Cluster, plan: Plan, workload: Workload, settings: Settings
) -> Iterator[Training]:
    """While this holds, this process is a rank of a run of the plan; the model's weights must be
    real.

    The plan was made for `graph`, None: the workload's own step. A graph of merged ops, as compiled
    steps are planned, is taken apart into the step's ops first.
    """
    trace, is_captured = None, graph is None
    if graph is None:
        optimizer = open_optimizer(settings.optimizer, workload.model, settings.learning_rate)
        graph, trace = capture_traced(workload, optimizer, settings.autocast)
    plan = plan.in_ops(graph)
    if not is_captured and may_be_fused(graph):
        graph, plan, settings, trace = unmerge(graph, cluster, plan, workload, settings)
    _check_values(workload.model, settings)
    with seated(lower_for(graph, cluster, plan, settings), cluster, settings) as seat:
        trainer = make_trainer(seat, workload, None, settings, trace)
        course = Course(trainer)
        course.schedule = make_schedule(settings.scheduler, trainer.optimizer)
        training = Training(seat.rank, seat.lowered, trainer, course, seat.watch)
        try:
            with training.kept(settings):
                yield training
                course.finish()
        except SystemExit as end:  # as when it was asked to stop
            trainer.close()
            if end.code == TERMINATED:
                stop_restarts()
            raise
        trainer.gather_losses()  # nobody leaves while others still need it
        trainer.close()


def _check_values(model: torch.nn.Module, settings: Settings) -> None:
    """Refuse parameters and buffers without values that files of weights do not have."""
    for name, parameter in model.named_parameters():
        if parameter.is_meta and settings.weights is None:
            raise InputError(
                f"model {type(model).__name__}: {name} must have values, is on the meta device; "
                f"build the model on the CPU, name a folder of weights, or let `meshwright run` "
                f"build it"
            )
    saved = persistent_names(model)
    for name, each in model.named_buffers():
        if each.is_meta and name not in saved:
            raise InputError(
                f"model {type(model).__name__}: buffer {name} must have values, is on the meta "
                f"device, and no file of weights has it"
            )
