"""Real compute on two ranks: predicted from op times measured in some steps, against other steps.

Steps that are timed op by op and steps that are not take turns. What the former say of each op
(`meshwright.report.calibrate`) predicts the latter, of the same plan and of the model's others.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812

from execution_cases import (
    GPIPE,
    ONE_F_ONE_B,
    Maker,
    data_parallel,
    make_cluster,
    pipeline,
)
from execution_ranks import Job, Span, merge_job, run_on_hosts
from language_model import Language
from meshwright.capture.capture import capture
from meshwright.capture.deferred import record
from meshwright.capture.workload import Workload
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.execute.group import CommonClock
from meshwright.execute.lowered import lower_frozen
from meshwright.execute.region.compiler import make_compiler
from meshwright.execute.trainer import Trainer
from meshwright.execute.walk import Times
from meshwright.graph.graph import Graph, Phase
from meshwright.network.testbed_apply import built
from meshwright.plan.plan import Plan
from meshwright.program.program import Program
from meshwright.report.calibrate import measured_graph
from meshwright.report.compare import compare
from meshwright.simulate.measured import Run, measured_timeline
from meshwright.simulate.simulate import run_program, simulate

RANKS = 2
MEGABITS = 1000
LIMIT_SECONDS = 240.0
BATCH, SEQUENCE, WIDTH, WORDS = 32, 128, 256, 512


class Pictures(nn.Module):
    """Convolutions one after the other, without batch norm."""

    def __init__(self, width: int = 64, layers: int = 8) -> None:
        super().__init__()
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """The loss of classifying."""
        x = F.relu(self.enter(x))
        for layer in self.layers:
            x = x + F.relu(layer(x))
        return F.cross_entropy(self.head(x.mean((2, 3))), label)


def make_language() -> Workload:
    """A transformer of eight layers on 32 x 128 words."""
    model = Language(width=WIDTH, layers=8, words=WORDS)
    return Workload(name="language", model=model, args=(torch.randint(WORDS, (BATCH, SEQUENCE)),))


def make_pictures() -> Workload:
    """Nine convolutions on 32 pictures of 32 x 32."""
    labels = torch.randint(10, (BATCH,))
    return Workload(name="pictures", model=Pictures(), args=(torch.randn(BATCH, 3, 32, 32), labels))


MODELS: dict[str, Callable[[], Workload]] = {"language": make_language, "pictures": make_pictures}
PLANS: dict[str, Maker] = {
    "1f1b 2 x 8": pipeline(ONE_F_ONE_B, 2, 8),
    "gpipe 2 x 8": pipeline(GPIPE, 2, 8),
    "1f1b 2 x 4": pipeline(ONE_F_ONE_B, 2, 4),
    "data": data_parallel,
}


def measure_real(steps: int, only: str = "", *, compiles: bool = False) -> Iterator[dict[str, Any]]:
    """One record a model and plan; the first step warms up."""
    torch.set_num_threads(1)  # before anything starts threads, which a fork would lose
    for name, build in MODELS.items():
        if only not in name:
            continue
        workload = build()
        graph = replace(capture(workload.model, workload.args), name=name)
        cluster = make_cluster(RANKS, MEGABITS, DEVICE_TYPES["cpu"])
        first = None
        for plan_name, make in PLANS.items():
            plan = make(graph, cluster)
            assert plan is not None
            run, job = run_plan(graph, cluster, plan, build, steps, compiles)
            happened = measured_timeline(job.lowered.program, run)
            own = measured_graph(graph, cluster, plan, happened)
            first = first or own
            record: dict[str, Any] = {
                "model": name,
                "ranks": RANKS,
                "megabits": MEGABITS,
                "plan": f"real {plan_name}",
                "compiled": compiles,
                "predicted_seconds": simulate(own, cluster, plan).step_seconds,
                "predicted_by_first_plan_seconds": simulate(first, cluster, plan).step_seconds,
            }
            yield record | describe_run(run, job, cluster, steps, record["predicted_seconds"])


def describe_run(
    run: Run, job: Job, cluster: Cluster, steps: int, predicted: float
) -> dict[str, Any]:
    """Where a run's time went."""
    measured = run.step_seconds[1:steps]
    frozen = run_program(job.lowered.program, cluster)
    spent = compare(frozen, measured_timeline(job.lowered.program, run), cluster).measured
    total = RANKS * run.step_seconds[run.measured_step]
    return {
        "measured_seconds": median(measured),
        "error": predicted / median(measured) - 1,
        "fastest_seconds": min(measured),
        "slowest_seconds": max(measured),
        "compute_share": spent.compute_seconds / total,
        "overhead_share": spent.overhead_seconds / total,
        "microbatch_seconds": _microbatch_seconds(frozen.program, run),
    }


def _come_first() -> None:
    """Let what else runs on this machine count little: Linux shares cores out between sessions,
    by the niceness of each."""
    os.setsid()
    with suppress(OSError):
        Path("/proc/self/autogroup").write_text("-20")


def _microbatch_seconds(program: Program, run: Run) -> float:
    """What forward or backward of one microbatch takes on a device, in the middle."""
    rows, seconds = program.instructions, run.finish - run.start
    found: Counter[tuple[int, int, int]] = Counter()
    for number in np.flatnonzero(rows["op"] >= 0).tolist():
        row = rows[number]
        phase = int(program.graph.phase[row["op"]])
        if phase != Phase.UPDATE:
            found[int(row["device"]), int(row["microbatch"]), phase] += seconds[number]
    return float(median(found.values()))


def run_plan(
    graph: Graph,
    cluster: Cluster,
    plan: Plan,
    build: Callable[[], Workload],
    steps: int,
    compiles: bool,
) -> tuple[Run, Job]:
    """Train for so many steps, and for as many that are timed instruction by instruction."""
    job = Job(lowered=lower_frozen(graph, cluster, plan), steps=steps, timed=steps)

    def work(rank: int) -> list[tuple[list[Span], list[Times]]]:
        os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
        _come_first()
        deferred = record(build, 0)
        device = torch.device("cpu")
        trainer = Trainer(
            job.lowered,
            deferred.workload,
            rank=rank,
            device=device,
            real=deferred.real,
            compiler=make_compiler(device, lambda _: None) if compiles else None,
        )
        args = tuple(deferred.real(each) for each in deferred.workload.args)
        clock = CommonClock()
        spans: list[list[Span]] = [[], []]
        timed = []
        for step in range(2 * steps):
            times = Times() if step % 2 else None
            began = clock.start_together()
            trainer.step(args, times=times)
            spans[step % 2].append((began, clock.now()))
            if times is not None:
                timed.append(times)
        dist.barrier()
        trainer.close()
        return [(spans[0] + spans[1], timed)]

    with built(cluster, "real") as testbed:
        results = run_on_hosts(testbed, RANKS, work, LIMIT_SECONDS, hastens=False)
    return merge_job(job, 0, results), job
