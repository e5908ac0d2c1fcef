"""One rank of a run from start to end: join, build, train or emulate, measure, keep checkpoints."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import torch

from meshwright.capture.call import describe_call
from meshwright.capture.deferred.deferred import DeferredWorkload, record
from meshwright.capture.device import device_software
from meshwright.capture.inputs import Inputs
from meshwright.capture.workload import Workload
from meshwright.cluster.cluster import Cluster
from meshwright.errors import NonFiniteError
from meshwright.execute.bind import bind_part
from meshwright.execute.checkpoint import Checkpoint
from meshwright.execute.course import (
    Course,
    make_course,
    make_loaders,
    repeat_batches,
    replay,
)
from meshwright.execute.emulate import Emulation
from meshwright.execute.environment import read_place, run_folder
from meshwright.execute.exchange import close_exchange, open_exchange
from meshwright.execute.fault import TERMINATED, end_process, reported_errors
from meshwright.execute.finite import find_flaws, refuse_flaws
from meshwright.execute.group import shown_once, waiting
from meshwright.execute.keep import stop_restarts, stopped_by_signals
from meshwright.execute.lookup import Lookup
from meshwright.execute.lowered import communication
from meshwright.execute.make_trainer import make_trainer
from meshwright.execute.message import gather
from meshwright.execute.plain import RepeatedDraws, train_plainly
from meshwright.execute.progress import note
from meshwright.execute.recorder import Recorder
from meshwright.execute.resume import look_for_checkpoint, read_losses, read_places, resume
from meshwright.execute.roll import StepNote
from meshwright.execute.seat import Seat, lower_for, seated
from meshwright.execute.settings import Settings
from meshwright.execute.steps import PlannedSteps
from meshwright.execute.trainer import Trainer
from meshwright.execute.walk import ProgramWalk
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.simulate.measured import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOutcome:
    """What a rank knows at the end; the first rank's is the one to keep."""

    rank: int
    run: Run
    first_step: int
    """Greater than zero where a checkpoint was resumed; `run` has the steps from there on."""
    losses: tuple[float, ...] = ()
    """The losses of all steps, also of those before the checkpoint."""
    plain_losses: tuple[float, ...] = ()
    """The losses of plain training in one process, where that was asked for."""
    was_stopped: bool = False
    """Whether the run was asked to stop before its last step."""


def run_rank(
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    build: Callable[[], Workload] | None,
    settings: Settings,
    say: Callable[[str], None],
) -> RankOutcome:
    """Run this process's rank of a plan; without `build` compute is emulated.

    An error ends the process, after it was reported.
    """
    place = read_place()
    rank = place.rank
    if place.check_until:
        settings = replace(
            settings, checks_ops=True, check_until=place.check_until, is_checked=False
        )
    with _reported(rank):
        lowered = lower_for(graph, cluster, plan, settings)
        emulates, reporting = build is None, partial(_reported, rank)
        with seated(lowered, cluster, settings, is_emulated=emulates, reporting=reporting) as seat:
            return _emulate(seat, settings) if build is None else _train(seat, build, settings, say)
    raise AssertionError("an error ends the process")


@contextmanager
def _reported(rank: int, device: str = "") -> Iterator[None]:
    """Within this, an error of a rank is told once and ends the process."""
    with reported_errors(rank, device, run_folder()), shown_once():
        yield


def _emulate(seat: Seat, settings: Settings) -> RankOutcome:
    lowered, program = seat.lowered, seat.lowered.program
    part = bind_part(Lookup(lowered=lowered), seat.rank_of.index(seat.rank))
    with waiting(seat.watch, "making process groups"):
        exchange = open_exchange(
            seat.device, seat.rank_of, program.groups, *communication(program), seat.wiring
        )
    walk = ProgramWalk(program, part, exchange, Emulation(program, part, exchange), seat.watch)
    recorder = Recorder(
        lowered, settings.steps, seat.watch, seat.device, is_measured=settings.is_measured
    )
    for _ in range(settings.steps):
        recorder.step(lambda times: walk.run({}, times))
    run = recorder.finish(is_emulated=True, losses=(), software={"torch": str(torch.__version__)})
    walk.close()
    close_exchange(exchange)
    return RankOutcome(rank=seat.rank, run=run, first_step=0)


def _train(
    seat: Seat, build: Callable[[], Workload], settings: Settings, say: Callable[[str], None]
) -> RankOutcome:
    rank, watch = seat.rank, seat.watch
    found = look_for_checkpoint(settings.checkpoint, watch, say)
    if found is not None and found.step >= settings.steps:
        return _nothing_to_do(seat, found)
    note(watch, "making the dataset")
    # Before the model: tensors of a module that is imported while the model is recorded have no
    # values, and the dataset may be made of them.
    dataset = None if settings.data is None else settings.data()
    validated = None if settings.validation is None else settings.validation()
    deferred = _build_model(seat, build, settings.seed, say)
    note(watch, "tracing the step")
    trainer = make_trainer(seat, deferred.workload, deferred.real, settings)
    note(watch, "reading the checkpoint")
    resume(trainer, found)
    first = trainer.num_steps
    if first and rank == 0:
        say(f"resuming after step {first}")
    course = make_course(trainer, settings, dataset, validated, say)
    course.resume(read_places(found), first)
    batches = repeat_batches(course.loaders, deferred)
    if settings.check_until:
        replay(course, batches, settings.check_until)
    run, was_stopped = _run_steps(course, batches, settings, say)
    trainer.close()
    plain: list[float] = []
    if settings.is_checked and rank == 0 and not was_stopped:
        note(watch, "training in one process")
        plain = _train_plainly(trainer, deferred, dataset, settings)
    return RankOutcome(
        rank=rank,
        run=run,
        first_step=first,
        losses=tuple(trainer.gather_losses()),
        plain_losses=tuple(plain),
        was_stopped=was_stopped,
    )


def _build_model(
    seat: Seat, build: Callable[[], Workload], seed: int, say: Callable[[str], None]
) -> DeferredWorkload:
    """Record how the model is built, on all ranks together."""
    note(seat.watch, "building the model")
    deferred = record(build, seed)
    with waiting(seat.watch, "all ranks to build the model"):  # a factory may hang
        gather(seat.rank, int)
    if deferred.remark and seat.rank == 0:
        say(deferred.remark)
    return deferred


def _run_steps(
    course: Course, batches: Iterator[Inputs], settings: Settings, say: Callable[[str], None]
) -> tuple[Run, bool]:
    """Train until the last step, and measure it; whether it was asked to stop before, where the
    process ends if nothing is measured."""
    trainer, first = course.trainer, course.trainer.num_steps
    watch = trainer.walk.progress
    recorder = Recorder(
        trainer.lowered,
        settings.steps - first,
        watch,
        trainer.device,
        is_measured=settings.is_measured,
    )
    with _dated(trainer):
        was_stopped = _take_steps(course, recorder, batches, settings)
        if was_stopped and trainer.rank == 0:
            kept = "out" if course.keeper is None else ""
            say(f"stopped after step {trainer.num_steps}, with{kept} a checkpoint to go on from")
        if was_stopped and not settings.is_measured:
            stop_restarts()
            end_process(TERMINATED)
        losses = trainer.gather_losses()
        with waiting(watch, "the end"):
            refuse_flaws(trainer.num_steps, find_flaws(trainer.state, trainer.unchecked))
    with waiting(watch, "the end"):
        calls = _calls(trainer)
    run = recorder.finish(
        is_emulated=False,
        losses=losses[first:],
        software=trainer.software,
        calls=calls,
    )
    return run, was_stopped


def _train_plainly(
    trainer: Trainer, deferred: DeferredWorkload, dataset: Any, settings: Settings
) -> list[float]:
    """The losses of the same training in this process alone."""
    loaders = make_loaders(trainer, settings, dataset, is_whole=True)
    planned = trainer.planned
    return train_plainly(
        deferred,
        repeat_batches(loaders, deferred),
        settings,
        trainer.device,
        RepeatedDraws(planned.draws(planned.any().samples), settings.seed),
        trainer.trained.start.value,
    )


@contextmanager
def _dated(trainer: Trainer) -> Iterator[None]:
    """Errors of numbers tell since which checkpoint, so that whoever starts ranks can go back."""
    try:
        yield
    except NonFiniteError as error:
        error.since = trainer.saved_step
        raise


def _take_steps(
    course: Course, recorder: Recorder, batches: Iterator[Inputs], settings: Settings
) -> bool:
    """Train until the last step; whether it was asked to stop before, and after one more step did
    where that had to be measured."""
    trainer, last, was_asked = course.trainer, settings.steps, False
    folder = run_folder() if trainer.rank == 0 else None
    reached = None if folder is None else StepNote(folder, trainer.num_steps)
    with stopped_by_signals(trainer) if course.heeds_signals else nullcontext():
        while trainer.num_steps < last:
            note(trainer.walk.progress, "loading a batch")
            args, kwargs = next(batches)
            pulse = recorder.step(partial(trainer.step, args, kwargs))
            if reached is not None:
                reached.add(trainer.num_steps)
            if course.add(pulse) and not was_asked:
                was_asked = trainer.num_steps < last
                last = min(last, trainer.num_steps + recorder.measure_next())
        course.finish()
    return was_asked


def _nothing_to_do(seat: Seat, found: Checkpoint) -> RankOutcome:
    """The outcome where the checkpoint is that of the last step already."""
    missing = np.full(seat.lowered.num_planned, np.nan)
    run = Run(
        device_names=seat.lowered.program.device_names,
        step_seconds=(),
        start=missing,
        finish=missing,
        software=device_software(seat.device),
    )
    return RankOutcome(
        rank=seat.rank, run=run, first_step=found.step, losses=tuple(read_losses(found))
    )


def _calls(trainer: Trainer) -> dict[str, str]:
    """The kernel call that each op of this rank is, as captures have it where it is a whole op."""
    steps, graph = trainer.steps, trainer.lowered.program.graph
    found: dict[str, str] = {}
    known: dict[int, list[str]] = {}
    for each in trainer.part.lines:
        if each.samples not in known:
            known[each.samples] = (
                steps.calls(each.samples)
                if isinstance(steps, PlannedSteps)
                else [describe_call(kernel.node) for kernel in steps[each.samples].ledger.kernels]
            )
        found[graph.op_names[each.op]] = known[each.samples][each.op]
    merged: dict[str, str] = {}
    for part in gather(found, dict[str, str]):
        merged |= part
    return merged
