"""One rank of a run from start to end: join, build, train or emulate, measure, keep checkpoints."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from meshwright.capture.call import describe_call
from meshwright.capture.deferred import Deferred, record
from meshwright.capture.device import device_software
from meshwright.capture.workload import Workload
from meshwright.cluster.cluster import Cluster
from meshwright.execute.apart import check_apart
from meshwright.execute.bind import bind_part
from meshwright.execute.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint
from meshwright.execute.emulate import Emulation
from meshwright.execute.exchange import close_exchange, open_exchange
from meshwright.execute.fault import reported_errors, run_folder
from meshwright.execute.group import (
    CommonClock,
    gather,
    host_names,
    joined_group,
    own_rank,
    pick_backend,
    pick_device,
    watched,
)
from meshwright.execute.lookup import Lookup
from meshwright.execute.ranks import assign_ranks
from meshwright.execute.trainer import Lowered, Trainer, communication, lower_frozen
from meshwright.execute.walk import Progress, Times, Walk
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.simulate.measured import Run

TIMED_STEPS = 3
"""The last so many steps are timed instruction by instruction; the middle one is kept."""

Data = Callable[[int], tuple[Any, ...]]
"""From the number of a step to the model's arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How to run a plan; see the options of `meshwright run`."""

    steps: int = 10
    device: str | None = None
    backend: str | None = None
    optimizer: str = "adamw"
    autocast: str | None = None
    learning_rate: float = 1e-3
    is_mean: bool = True
    allows_local_statistics: bool = False
    seed: int = 0
    checkpoint: Path | None = None
    every: int = 100
    stall_seconds: float = 120.0
    is_measured: bool = True
    """Whether steps start together and are timed, which costs a barrier a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a rank knows at the end; the first rank's is the one to keep."""

    rank: int
    run: Run
    first_step: int
    """Greater than zero where a checkpoint was resumed."""
    remark: str = ""


def run_rank(
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    build: Callable[[], Workload] | None,
    settings: Settings,
    say: Callable[[str], None],
) -> Outcome:
    """Run this process's rank of a plan; without `build` compute is emulated.

    An error ends the process, after it was reported.
    """
    rank, _ = own_rank()
    with reported_errors(rank, "", run_folder()):
        lowered = lower_frozen(graph, cluster, plan)
        device = pick_device("cpu" if build is None else settings.device)
        with joined_group(pick_backend(device, settings.backend)):
            rank_of = assign_ranks(cluster, lowered.devices, host_names())
            names = _names_by_rank(cluster, rank_of)
            with (
                reported_errors(rank, names[rank], run_folder()),
                watched(names, settings.stall_seconds) as watch,
            ):
                if build is None:
                    return _emulate(lowered, rank_of, rank, settings, watch)
                return _train(graph, lowered, rank_of, rank, device, build, settings, watch, say)
    raise AssertionError("an error ends the process")


def _names_by_rank(cluster: Cluster, rank_of: tuple[int, ...]) -> list[str]:
    named = {rank: cluster.devices[k].name for k, rank in enumerate(rank_of) if rank >= 0}
    return [named[rank] for rank in sorted(named)]


def _emulate(
    lowered: Lowered,
    rank_of: tuple[int, ...],
    rank: int,
    settings: Settings,
    watch: Progress | None,
) -> Outcome:
    program = lowered.program
    lookup = Lookup(
        program=program, rows=lowered.rows, split=lowered.split, steps=None, start=lowered.start
    )
    part = bind_part(lookup, rank_of.index(rank))
    exchange = open_exchange(torch.device("cpu"), rank_of, program.groups, *communication(program))
    walk = Walk(program, part, exchange, Emulation(program, part, exchange), watch)
    recorder = _Recorder(lowered, settings)
    for _ in range(settings.steps):
        recorder.step(lambda times: walk.run({}, times))
    run = recorder.finish(is_emulated=True, losses=(), software={"torch": str(torch.__version__)})
    walk.close()
    close_exchange(exchange)
    return Outcome(rank=rank, run=run, first_step=0)


def _train(
    graph: Graph,
    lowered: Lowered,
    rank_of: tuple[int, ...],
    rank: int,
    device: torch.device,
    build: Callable[[], Workload],
    settings: Settings,
    watch: Progress | None,
    say: Callable[[str], None],
) -> Outcome:
    deferred = record(build, settings.seed)
    if deferred.remark and rank == 0:
        say(deferred.remark)
    trainer = Trainer(
        lowered,
        deferred.workload,
        graph,
        rank=rank,
        device=device,
        optimizer=settings.optimizer,
        autocast=settings.autocast,
        learning_rate=settings.learning_rate,
        is_mean=settings.is_mean,
        seed=settings.seed,
        real=deferred.real,
        rank_of=rank_of,
        progress=watch,
    )
    if not settings.allows_local_statistics and lowered.divides_batch:
        check_apart(graph, trainer.steps.any())
    first = resume(trainer, settings.checkpoint)
    if first and rank == 0:
        say(f"resuming after step {first}")
    args, kwargs = _real_inputs(deferred)
    recorder = _Recorder(lowered, settings)
    for step in range(first, settings.steps):
        recorder.step(lambda times: trainer.step(args, kwargs, times=times))
        if settings.checkpoint and ((step + 1) % settings.every == 0 or step + 1 == settings.steps):
            save_checkpoint(settings.checkpoint, step + 1, trainer.state, group=control_group())
    run = recorder.finish(
        is_emulated=False,
        losses=trainer.gather_losses(),
        software=device_software(device),
        calls=_calls(graph, trainer),
    )
    trainer.close()
    return Outcome(rank=rank, run=run, first_step=first, remark=deferred.remark)


def control_group() -> Any:
    """The process group that checkpoints are agreed on in."""
    return dist.group.WORLD if dist.is_initialized() else None


def resume(trainer: Trainer, folder: Path | None) -> int:
    """Load the latest checkpoint of a folder; the number of steps that it is after."""
    found = latest_checkpoint(folder) if folder else None
    found = gather(found)[0]  # of the first rank, should they look at different moments
    if found is None:
        return 0
    step, path = found
    load_checkpoint(path, trainer.state)
    trainer.num_steps = step
    return int(step)


def _real_inputs(deferred: Deferred) -> tuple[tuple[Any, ...], dict[str, Any]]:
    from torch.utils import _pytree as pytree

    workload = deferred.workload
    args, kwargs = pytree.tree_map_only(
        torch.Tensor, deferred.real, (tuple(workload.args), dict(workload.kwargs))
    )
    return args, kwargs


def _calls(graph: Graph, trainer: Trainer) -> dict[str, str]:
    """The kernel call that each op of this rank is."""
    found: dict[str, str] = {}
    for each in trainer.lines:
        kernel = trainer.steps[each.samples].ledger.kernels[each.op]
        found[graph.op_names[each.op]] = describe_call(kernel.node)
    merged: dict[str, str] = {}
    for part in gather(found):
        merged |= part
    return merged


class _Recorder:
    """Times steps, and the last of them instruction by instruction."""

    def __init__(self, lowered: Lowered, settings: Settings) -> None:
        self.lowered, self.settings = lowered, settings
        self.clock = CommonClock()
        self.spans: list[tuple[float, float]] = []
        self.times: dict[int, Times] = {}

    def step(self, run: Callable[[Times | None], None]) -> None:
        """Run a step, with times to fill where it is one of the last."""
        number = len(self.spans)
        times = None
        if self.settings.is_measured:
            began = self.clock.start_together()
            if number >= self.settings.steps - TIMED_STEPS:
                times = self.times[number] = Times()
        else:
            began = self.clock.now()
        run(times)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.spans.append((began, self.clock.now()))

    def finish(
        self,
        *,
        is_emulated: bool,
        losses: Any,
        software: dict[str, str],
        calls: dict[str, str] | None = None,
    ) -> Run:
        """The run; all ranks call it."""
        spans = np.array(gather(self.spans)).reshape(-1, len(self.spans), 2)
        seconds = spans[:, :, 1].max(axis=0) - spans[:, :, 0].min(axis=0)
        program = self.lowered.program
        start, finish = np.full((2, program.num_instructions), np.nan)
        middle = 0
        if self.times:
            timed = sorted(self.times)
            middle = timed[int(np.argsort(seconds[timed])[len(timed) // 2])]
            origin = float(spans[:, middle, 0].min()) + self.clock.offset
            for offset, own in gather((self.clock.offset, self.times[middle])):
                shift = origin - self.clock.offset + offset
                for instruction, moment in own.start.items():
                    start[instruction] = moment - shift
                for instruction, moment in own.finish.items():
                    finish[instruction] = moment - shift
            finish = np.fmax(finish, start)
        return Run(
            device_names=program.device_names,
            losses=tuple(losses),
            step_seconds=tuple(seconds.tolist()),
            start=start,
            finish=finish,
            is_emulated=is_emulated,
            software=software,
            measured_step=middle,
            calls=calls or {},
        )


def is_first() -> bool:
    """Whether this process is the rank that speaks for all."""
    return os.environ.get("RANK", "0") == "0"
