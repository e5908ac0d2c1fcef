"""Makes the trainer of a rank as settings ask for it, and refuses steps that cannot be run so."""

import torch

from meshwright.capture.trace import Trace
from meshwright.capture.workload import Workload
from meshwright.execute.apart import check_apart
from meshwright.execute.fault import show_line
from meshwright.execute.lowered import Lowered
from meshwright.execute.plain import check_repeatable
from meshwright.execute.progress import note
from meshwright.execute.region.compiler import make_compiler
from meshwright.execute.seat import Seat
from meshwright.execute.settings import Settings
from meshwright.execute.state import Real
from meshwright.execute.steps import PlannedSteps
from meshwright.execute.trainer import Trainer
from meshwright.execute.weights import open_weights


def make_trainer(
    seat: Seat,
    workload: Workload,
    real: Real | None,
    settings: Settings,
    trace: Trace | None = None,
) -> Trainer:
    """This rank's part of a plan, ready to train; refused where samples cannot be apart.

    The first rank shows what is compiled. `trace`: of the step, where there is one already."""

    def show(line: str) -> None:
        note(seat.watch, line)
        if seat.rank == 0:
            show_line(line)

    trainer = Trainer(
        seat.lowered,
        workload,
        rank=seat.rank,
        device=seat.device,
        optimizer=settings.optimizer,
        autocast=settings.autocast,
        learning_rate=settings.learning_rate,
        clip_norm=settings.clip_norm,
        loss_scale=settings.loss_scale,
        is_mean=settings.is_mean,
        seed=settings.seed,
        real=real,
        rank_of=seat.rank_of,
        wiring=seat.wiring,
        progress=seat.watch,
        checks_ops=settings.checks_ops,
        compiler=make_compiler(seat.device, show) if _compiles(seat.device, settings) else None,
        show=show,
        weights=None if settings.weights is None else open_weights(settings.weights),
        trace=trace,
    )
    check_steps(seat.lowered, trainer.planned, settings)
    return trainer


def _compiles(device: torch.device, settings: Settings) -> bool:
    """Whether regions of ops are compiled."""
    if settings.compiles is None:
        return device.type == "cuda" and not settings.is_checked
    return settings.compiles


def check_steps(lowered: Lowered, planned: PlannedSteps, settings: Settings) -> None:
    """Refuse steps whose samples cannot be apart, or that one process cannot repeat."""
    if not settings.allows_local_statistics and lowered.divides_batch:
        check_apart(
            lowered.graph,
            planned,
            takes_batch=lowered.plan.batch_statistics
            and (settings.allows_microbatch_statistics or lowered.program.microbatches == 1),
        )
    if settings.is_checked:
        check_repeatable(lowered.graph, planned.any())
