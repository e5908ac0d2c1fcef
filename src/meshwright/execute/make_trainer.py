"""Makes the trainer of a rank as settings ask for it, and refuses steps that cannot be run so."""

from collections.abc import Callable

import torch

from meshwright.capture.trace import Trace
from meshwright.capture.workload import Workload
from meshwright.execute.apart import check_apart
from meshwright.execute.fault import show_line
from meshwright.execute.lowered import Lowered
from meshwright.execute.plain import check_repeatable
from meshwright.execute.progress import note
from meshwright.execute.region.recipe import Compiler
from meshwright.execute.seat import Seat
from meshwright.execute.settings import Settings
from meshwright.execute.steps import PlannedSteps
from meshwright.execute.trained import Real
from meshwright.execute.trainer import Trainer


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

    compiles = settings.compiles  # whether regions of ops are compiled
    if compiles is None:
        compiles = seat.device.type == "cuda" and not settings.is_checked
    trainer = Trainer(
        seat,
        workload,
        settings,
        real=real,
        trace=trace,
        compiler=_make_compiler(seat.device, show) if compiles else None,
        show=show,
    )
    check_steps(seat.lowered, trainer.planned, settings)
    return trainer


def _make_compiler(device: torch.device, show: Callable[[str], None]) -> Compiler:
    """Inductor for a device; `show` is told what is compiled, and what cannot be."""
    # Its import takes seconds, which only those pay who compile.
    from meshwright.execute.region.inductor import Inductor

    return Inductor(device, show)


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
