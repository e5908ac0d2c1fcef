"""Makes the trainer of a rank as settings ask for it, and refuses steps that cannot be run so."""

from dataclasses import replace

import torch

from meshwright.capture.trace import Trace
from meshwright.capture.workload import Workload
from meshwright.cluster.cluster import Cluster
from meshwright.execute.apart import check_apart
from meshwright.execute.fault import show_line
from meshwright.execute.lowered import Lowered
from meshwright.execute.plain import check_repeatable
from meshwright.execute.progress import Progress, note
from meshwright.execute.region.compiler import make_compiler
from meshwright.execute.settings import Settings
from meshwright.execute.state import Real
from meshwright.execute.steps import Steps
from meshwright.execute.trainer import Trainer
from meshwright.execute.way import Wiring
from meshwright.execute.weights import open_weights
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan
from meshwright.program.expand.synchronise import with_batch_statistics


def choose_statistics(graph: Graph, plan: Plan, settings: Settings) -> Plan:
    """The plan with the statistics of batch norm that settings ask for."""
    if settings.allows_local_statistics:
        return replace(plan, batch_statistics=False)
    return with_batch_statistics(graph, plan)


def names_by_rank(cluster: Cluster, rank_of: tuple[int, ...]) -> list[str]:
    """The name of the device that each rank runs."""
    named = {rank: cluster.devices[k].name for k, rank in enumerate(rank_of) if rank >= 0}
    return [named[rank] for rank in sorted(named)]


def make_trainer(
    lowered: Lowered,
    rank_of: tuple[int, ...],
    rank: int,
    wiring: Wiring | None,
    device: torch.device,
    workload: Workload,
    real: Real | None,
    settings: Settings,
    watch: Progress | None,
    trace: Trace | None = None,
) -> Trainer:
    """This rank's part of a plan, ready to train; refused where samples cannot be apart.

    The first rank shows what is compiled. `trace`: of the step, where there is one already."""

    def show(line: str) -> None:
        note(watch, line)
        if rank == 0:
            show_line(line)

    trainer = Trainer(
        lowered,
        workload,
        rank=rank,
        device=device,
        optimizer=settings.optimizer,
        autocast=settings.autocast,
        learning_rate=settings.learning_rate,
        clip_norm=settings.clip_norm,
        loss_scale=settings.loss_scale,
        is_mean=settings.is_mean,
        seed=settings.seed,
        real=real,
        rank_of=rank_of,
        wiring=wiring,
        progress=watch,
        checks_ops=settings.checks_ops,
        compiler=make_compiler(device, show) if _compiles(device, settings) else None,
        show=show,
        weights=None if settings.weights is None else open_weights(settings.weights),
        trace=trace,
    )
    check_steps(lowered, trainer.planned, settings)
    return trainer


def _compiles(device: torch.device, settings: Settings) -> bool:
    """Whether regions of ops are compiled."""
    if settings.compiles is None:
        return device.type == "cuda" and not settings.is_checked
    return settings.compiles


def check_steps(lowered: Lowered, planned: Steps, settings: Settings) -> None:
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
