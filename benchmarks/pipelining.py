"""Our pipelines against torch.distributed.pipelining on the same stages over the same network.

Four stages in a row, each a host of a testbed with emulated compute: both sides sleep for the same
time in forward and backward and move the same activations and gradients over gloo. Needs root, for
network namespaces (`meshwright testbed`).
"""

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported

import torch
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe, ScheduleInterleaved1F1B
from torch.distributed.pipelining import Schedule1F1B as ScheduleOneFOneB

from execution_cases import GPIPE, INTERLEAVED, ONE_F_ONE_B, make_cluster
from execution_ranks import Job, emulate_jobs, merge_job, run_on_hosts
from meshwright.cluster.cluster import Cluster, DeviceType
from meshwright.errors import InputError
from meshwright.execute.group import CommonClock
from meshwright.execute.lowered import lower_frozen
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase
from meshwright.network.testbed.apply import built
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind
from meshwright.simulate.simulate import simulate
from meshwright.units import GIB, MIB

TESTBED = "pipelining"
STAGES = 4
MICROBATCHES = 8
ACTIVATION_BYTES = MIB
FORWARD_SECONDS = 0.012
BACKWARD_SECONDS = 2 * FORWARD_SECONDS
MEGABITS = (200, 500, 1000)
STEPS = 12
WARMUP = 3
LIMIT_SECONDS = 240.0

Span = tuple[float, float]


class Sleep(torch.autograd.Function):
    """Takes its time both ways, and passes on a tensor of the same size."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:  # noqa: ARG004 - torch's signature
        """Sleep for a stage's forward."""
        time.sleep(FORWARD_SECONDS)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """Sleep for a stage's backward."""
        time.sleep(BACKWARD_SECONDS)
        return gradients[0]


class Loss(torch.autograd.Function):
    """A loss whose gradient costs nothing to make."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        """Zero."""
        ctx.gradient = torch.zeros_like(x)
        return x.new_zeros(())

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        """The gradient that lies ready."""
        gradient: torch.Tensor = ctx.gradient
        return gradient


class Stage(torch.nn.Module):
    """A stage that sleeps; its parameter makes the first stage's output need a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Sleep."""
        x = x if x.requires_grad else x + self.weight
        y: torch.Tensor = Sleep.apply(x)  # type: ignore[no-untyped-call]
        return y


def _loss(output: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
    loss: torch.Tensor = Loss.apply(output)  # type: ignore[no-untyped-call]
    return loss


def _interleaved(stage: PipelineStage, microbatches: int, **more: Any) -> Any:
    return ScheduleInterleaved1F1B([stage], microbatches, **more)


KINDS = (ONE_F_ONE_B, INTERLEAVED, GPIPE)
"""Interleaved with one stage a device is 1F1B with twice the microbatches on their way, which hides
more of a slow network, for more memory."""
SCHEDULES: dict[str, Callable[..., Any]] = {
    "1f1b": ScheduleOneFOneB,
    "interleaved-1f1b": _interleaved,
    "gpipe": ScheduleGPipe,
}


def run_torch(name: str) -> Callable[[int], list[Span]]:
    """Work that runs torch's schedule step after step."""

    def work(rank: int) -> list[Span]:
        shape = (1, int(ACTIVATION_BYTES) // 4)
        # Without examples torch finds shapes by itself, in the first step.
        stage = PipelineStage(Stage(), rank, STAGES, torch.device("cpu"))
        schedule = SCHEDULES[name](stage, MICROBATCHES, loss_fn=_loss)
        batch = torch.zeros(MICROBATCHES, shape[1])
        clock = CommonClock()
        spans = []
        for _ in range(WARMUP + STEPS):
            began = clock.start_together()
            if rank == 0:
                schedule.step(batch)
            elif rank == STAGES - 1:
                schedule.step(target=batch)
            else:
                schedule.step()
            spans.append((began, clock.now()))
        return spans

    return work


def make_stages() -> tuple[Graph, DeviceType]:
    """The same four stages as a graph: an op each way."""
    builder = GraphBuilder("stages", batch=MICROBATCHES)
    whole = MICROBATCHES * ACTIVATION_BYTES
    forwards = [
        builder.add_op(f"forward{k}", seconds={"any": MICROBATCHES * FORWARD_SECONDS})
        for k in range(STAGES)
    ]
    for source, target in pairwise(forwards):
        builder.add_tensor(source, whole, [target])
    last = forwards[-1]
    for k in reversed(range(STAGES)):
        backward = builder.add_op(
            f"backward{k}",
            phase=Phase.BACKWARD,
            partner=forwards[k],
            seconds={"any": MICROBATCHES * BACKWARD_SECONDS},
        )
        builder.add_tensor(last, whole, [backward])
        last = backward
    device = DeviceType(
        name="emulated",
        flops_per_second={"fp32": 1e12},
        memory_bytes=256 * GIB,
        memory_bytes_per_second=1e12,
        is_asynchronous=False,
    )
    return builder.finish(), device


def make_plan(cluster: Cluster, kind: ScheduleKind) -> Plan:
    """A stage a device."""
    return Plan(
        parts=tuple(
            Part(ops=(f"forward{k}", f"backward{k}"), devices=(device.name,))
            for k, device in enumerate(cluster.devices)
        ),
        schedule=Schedule(kind=kind, microbatches=MICROBATCHES),
    )


def measure(megabits: int) -> Iterator[dict[str, Any]]:
    """Ours and torch's on one network."""
    graph, device_type = make_stages()
    cluster = make_cluster(STAGES, megabits, device_type)
    with built(cluster, TESTBED) as testbed:
        for kind in KINDS:
            plan = make_plan(cluster, kind)
            job = Job(lowered=lower_frozen(graph, cluster, plan), steps=WARMUP + STEPS, timed=0)
            results = run_on_hosts(testbed, STAGES, emulate_jobs([job]), LIMIT_SECONDS)
            seconds = merge_job(job, 0, results).step_seconds[WARMUP:]
            predicted = simulate(graph, cluster, plan).step_seconds
            yield make_record(megabits, "meshwright", str(kind), seconds) | {
                "predicted_seconds": predicted
            }
        for name in SCHEDULES:
            spans = run_on_hosts(testbed, STAGES, run_torch(name), LIMIT_SECONDS)
            steps = list(zip(*spans, strict=True))[WARMUP:]
            seconds = tuple(
                max(end for _, end in step) - min(begin for begin, _ in step) for step in steps
            )
            yield make_record(megabits, "torch", name, seconds)


def make_record(
    megabits: int, side: str, schedule: str, seconds: Sequence[float]
) -> dict[str, Any]:
    """One side's steps."""
    return {
        "megabits": megabits,
        "side": side,
        "schedule": schedule,
        "step_seconds": median(seconds),
        "fastest_seconds": min(seconds),
        "slowest_seconds": max(seconds),
    }


def summarise(megabits: int, records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What share of torch's time each of our schedules saves against the same one, and our best
    against its best."""
    theirs = {r["schedule"]: float(r["step_seconds"]) for r in records if r["side"] == "torch"}
    ours = {r["schedule"]: float(r["step_seconds"]) for r in records if r["side"] != "torch"}
    saved = {name: 1 - ours[name] / theirs[name] for name in ours}
    best = 1 - min(ours.values()) / min(theirs.values())
    return {"megabits": megabits, "saved": saved | {"best of each": best}}


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    if "side" not in record:
        saved = ", ".join(f"{name} {share:.1%}" for name, share in record["saved"].items())
        return f"{record['megabits']:5} Mbit/s: ours takes less than torch's by {saved}"
    predicted = record.get("predicted_seconds")
    return (
        f"{record['megabits']:5} Mbit/s {record['side']:>10} {record['schedule']:18} "
        f"{record['step_seconds'] * 1e3:8.1f} ms ({record['fastest_seconds'] * 1e3:.1f} to "
        f"{record['slowest_seconds'] * 1e3:.1f})"
        + (f", predicted {predicted * 1e3:.1f}" if predicted else "")
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a schedule and one a network."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument(
        "--megabits", type=int, nargs="+", default=MEGABITS, help="Mbit/s of the hosts' links"
    )
    options = parser.parse_args(arguments)
    show = json.dumps if options.json else as_text
    try:
        for megabits in options.megabits:
            records = []
            for record in measure(megabits):
                records.append(record)
                print(show(record), flush=True)
            print(show(summarise(megabits, records)), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
