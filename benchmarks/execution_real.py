"""Real compute on two ranks: predicted from op times measured in some steps, against other steps.

Steps that are timed op by op and steps that are not take turns. What the former say of each op
(`meshwright.report.calibrate`) predicts the latter, of the same plan and of the model's others.
On CPU each rank has a core and the network is one of known rates. On CUDA both ranks share one
GPU, so an op takes longer while the other rank computes: what it takes on average counts. What the
way through the host takes is not known beforehand and comes from the same timed steps.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
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
from meshwright.capture.deferred.deferred import record
from meshwright.capture.workload import Workload
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.execute.group import CommonClock
from meshwright.execute.lowered import lower_frozen
from meshwright.execute.settings import Settings
from meshwright.execute.trainer import Trainer
from meshwright.execute.walk import Times
from meshwright.graph.graph import Graph, Phase
from meshwright.network.testbed.apply import built
from meshwright.plan.plan import Plan
from meshwright.program.program import Kind, Program
from meshwright.report.calibrate import calibrated_cluster
from meshwright.report.compare import compare
from meshwright.report.measured_ops import measured_graph
from meshwright.simulate.measured import Run, measured_timeline
from meshwright.simulate.simulate import run_program, simulate
from meshwright.simulate.tasks import COLLECTIVES
from meshwright.simulate.timeline import Timeline
from rank_seat import take_seat

RANKS = 2
MEGABITS = {"cpu": 1000, "cuda": 16000}
"""Of the network; two ranks on one H200 add up 2 GB/s by way of the host (2026-11-18), which is
what the order of a program is decided with before anything was measured."""
LIMIT_SECONDS = 240.0
TRANSFERS = sorted({*COLLECTIVES, Kind.RECEIVE})
"""What is communicated; a transfer is counted where it arrives."""
CPU, CUDA = torch.device("cpu"), torch.device("cuda")
BATCH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How large the models are, so that a step takes some tenths of a second."""

    tokens: int
    width: int
    words: int
    channels: int
    pixels: int


SIZES = {
    "cpu": Size(tokens=128, width=256, words=512, channels=64, pixels=32),
    "cuda": Size(tokens=512, width=1024, words=8192, channels=256, pixels=64),
}


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


def make_language(size: Size) -> Workload:
    """A transformer of eight layers on 32 texts."""
    model = Language(width=size.width, layers=8, words=size.words)
    ids = torch.randint(size.words, (BATCH, size.tokens))
    return Workload(name="language", model=model, args=(ids,))


def make_pictures(size: Size) -> Workload:
    """Nine convolutions on 32 pictures."""
    args = torch.randn(BATCH, 3, size.pixels, size.pixels), torch.randint(10, (BATCH,))
    return Workload(name="pictures", model=Pictures(size.channels), args=args)


MODELS: dict[str, Callable[[Size], Workload]] = {
    "language": make_language,
    "pictures": make_pictures,
}
PLANS: dict[str, Maker] = {
    "1f1b 2 x 8": pipeline(ONE_F_ONE_B, 2, 8),
    "gpipe 2 x 8": pipeline(GPIPE, 2, 8),
    "1f1b 2 x 4": pipeline(ONE_F_ONE_B, 2, 4),
    "data": data_parallel,
}


def sharded(graph: Graph, cluster: Cluster) -> Plan:
    """As data parallelism, but weights are gathered for each use and gradients scattered."""
    plan = data_parallel(graph, cluster)
    return replace(plan, parts=tuple(replace(part, zero=3) for part in plan.parts))


def measure_real(
    steps: int, only: str = "", *, compiles: bool = False, device: torch.device = CPU
) -> Iterator[dict[str, Any]]:
    """One record a model and plan; the first step warms up."""
    torch.set_num_threads(1)  # before anything starts threads, which a fork would lose
    is_gpu = device.type == "cuda"
    for name, make_workload in MODELS.items():
        if only not in name:
            continue
        build = partial(make_workload, SIZES[device.type])
        graph = capture_apart(build)
        megabits = MEGABITS[device.type]
        cluster = make_cluster(RANKS, megabits, DEVICE_TYPES["h200" if is_gpu else "cpu"])
        first = None
        for plan_name, make in (PLANS | {"zero 3": sharded} if is_gpu else PLANS).items():
            plan = make(graph, cluster)
            assert plan is not None
            run, job = run_plan(graph, cluster, plan, build, steps, compiles, device)
            happened = measured_timeline(job.lowered.program, run)
            own = calibrate(graph, cluster, plan, happened, is_shared=is_gpu)
            first = first or own
            record: dict[str, Any] = {
                "model": name,
                "ranks": RANKS,
                "megabits": megabits,
                "plan": f"real {plan_name}",
                "compiled": compiles,
                "device": device.type,
                "predicted_seconds": simulate(*own, plan).step_seconds,
                "predicted_by_first_plan_seconds": simulate(*first, plan).step_seconds,
                "hidden_share": hidden_share(happened),
            }
            yield record | describe_run(run, job, cluster, steps, record["predicted_seconds"])


def calibrate(
    graph: Graph, cluster: Cluster, plan: Plan, happened: Timeline, *, is_shared: bool
) -> tuple[Graph, Cluster]:
    """The graph with the measured times of its ops, and the network with measured rates where
    ranks share a GPU."""
    if not is_shared:
        return measured_graph(graph, cluster, plan, happened), cluster
    level = with_mean_times(happened)
    return measured_graph(graph, cluster, plan, level), calibrated_cluster(cluster, happened)


def with_mean_times(timeline: Timeline) -> Timeline:
    """Each op of a measured step with the mean of the times that it took: the median of a pipeline
    whose ranks slow each other down in the midst of a step was 12% off, the mean 4%."""
    rows, seconds = timeline.program.instructions, timeline.finish - timeline.start
    computes = np.flatnonzero((rows["kind"] == Kind.COMPUTE) & (seconds > 0))
    _, op = np.unique(rows["op"][computes], return_inverse=True)
    finish = timeline.finish.copy()
    means = np.bincount(op, seconds[computes]) / np.bincount(op)
    finish[computes] = timeline.start[computes] + means[op]
    return replace(timeline, finish=finish)


def capture_apart(build: Callable[[], Workload]) -> Graph:
    """Capture in another process: autograd, where it is built for CUDA, does not survive the fork
    that ranks are."""
    with TemporaryDirectory() as folder:
        path = Path(folder) / "graph.json"
        process = get_context("spawn").Process(target=_save_graph, args=(build, path))
        process.start()
        process.join()
        return Graph.load(path)


def _save_graph(build: Callable[[], Workload], path: Path) -> None:
    workload = build()
    replace(capture(workload.model, workload.args), name=workload.name).save(path)


def hidden_share(timeline: Timeline) -> float:
    """The share of communication's time during which its device computed."""
    rows = timeline.program.instructions
    hidden = total = 0.0
    for device in range(timeline.program.num_devices):
        own = rows["device"] == device
        computes = np.flatnonzero(own & (rows["kind"] == Kind.COMPUTE))
        computes = computes[np.argsort(timeline.start[computes])]
        moments = np.ravel((timeline.start[computes], timeline.finish[computes]), order="F")
        # How long the device has computed until each moment: a device runs one op at a time.
        moments = np.maximum.accumulate(moments)
        busy = np.cumsum(np.diff(moments, prepend=moments[:1]) * (np.arange(len(moments)) % 2))
        for number in np.flatnonzero(own & np.isin(rows["kind"], TRANSFERS)).tolist():
            start, finish = timeline.start[number], timeline.finish[number]
            total += finish - start
            hidden += float(np.diff(np.interp((start, finish), moments, busy))[0])
    return float(hidden / total) if total else 0.0


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
        "timed_seconds": run.step_seconds[run.measured_step],
        "compute_share": spent.compute_seconds / total,
        "overhead_share": spent.overhead_seconds / total,
        "microbatch_seconds": _microbatch_seconds(frozen.program, run),
    }


def _open_compiler(device: torch.device) -> Any:
    """TorchInductor, which takes seconds to import and warns of what it uses itself."""
    from meshwright.execute.region.inductor import Inductor

    return Inductor(device, lambda _: None)


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
    device: torch.device,
) -> tuple[Run, Job]:
    """Train for so many steps, and for as many that are timed instruction by instruction."""
    job = Job(lowered=lower_frozen(graph, cluster, plan), steps=steps, timed=steps)

    def work(rank: int) -> list[tuple[list[Span], list[Times]]]:
        if device.type == "cpu":
            os.sched_setaffinity(0, {rank % (os.cpu_count() or 1)})
            _come_first()
        deferred = record(build, 0)
        trainer = Trainer(
            take_seat(job.lowered, rank, str(device)),
            deferred.workload,
            Settings(),
            real=deferred.real,
            compiler=_open_compiler(device) if compiles else None,
        )
        args = tuple(deferred.real(each).to(device) for each in deferred.workload.args)
        clock = CommonClock()
        spans: list[list[Span]] = [[], []]
        timed = []
        for step in range(2 * steps):
            times = Times() if step % 2 else None
            began = clock.start_together()
            trainer.step(args, times=times)
            if device.type == "cuda":
                torch.cuda.synchronize()
            spans[step % 2].append((began, clock.now()))
            if times is not None:
                timed.append(times)
        dist.barrier()
        trainer.close()
        return [(spans[0] + spans[1], timed)]

    with nullcontext() if device.type == "cuda" else built(cluster, "real") as testbed:
        results = run_on_hosts(testbed, RANKS, work, LIMIT_SECONDS, hastens=False)
    return merge_job(job, 0, results), job
