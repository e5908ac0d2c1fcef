"""Holds times of ops at several numbers of samples against one: real compute on two ranks.

Some plans tell what ops take, others are predicted: with times of one number of samples, scaled to
others, and with those of several, as `meshwright.report.measured_ops` writes both. `--profile` adds
kernels timed by themselves, as `meshwright profile` does, at one number of samples and at several.
All predictions of a plan stand in one record beside the step that was measured.

Needs root, for a network of known rates, and both cores of the machine to itself.
"""

import argparse
import json
import os
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from statistics import fmean, median
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812

from execution import spearman
from execution_cases import GPIPE, ONE_F_ONE_B, Maker, data_parallel, make_cluster, pipeline
from execution_real import BATCH, CPU, MEGABITS, MODELS, RANKS, SIZES, Size, capture_apart, run_plan
from meshwright.capture.capture import capture
from meshwright.capture.profile import time_calls
from meshwright.capture.sized import find_halves, sized_calls
from meshwright.capture.workload import Workload
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.devices import DEVICE_TYPES
from meshwright.errors import InputError
from meshwright.execute.draw import drawn_alone
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan, Schedule
from meshwright.profile.profile import Measured
from meshwright.report.measured_ops import graph_of_steps
from meshwright.simulate.measured import measured_timeline
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline

STEPS = 4
"""As many are timed op by op; the first warms up."""
Step = tuple[Plan, Timeline]


def shared(first: int, microbatches: int = 1) -> Maker:
    """Data parallelism whose first replica has so many of the samples, in so many parts."""

    def make(graph: Graph, cluster: Cluster) -> Plan:
        plan = data_parallel(graph, cluster)
        shares = (first / BATCH, 1 - first / BATCH)
        return replace(
            plan,
            parts=tuple(replace(part, shares=shares) for part in plan.parts),
            schedule=Schedule(kind=GPIPE, microbatches=microbatches),
        )

    return make


KNOWN: dict[str, Maker] = {
    "1f1b 2 x 8": pipeline(ONE_F_ONE_B, 2, 8),
    "1f1b 2 x 1": pipeline(ONE_F_ONE_B, 2, 1),
    "1f1b 2 x 32": pipeline(ONE_F_ONE_B, 2, 32),
}
"""Their ops ran on 4, 32 and 1 samples; the first by itself is the one number."""
ASKED: dict[str, Maker] = {
    "1f1b 2 x 2": pipeline(ONE_F_ONE_B, 2, 2),
    "1f1b 2 x 4": pipeline(ONE_F_ONE_B, 2, 4),
    "1f1b 2 x 16": pipeline(ONE_F_ONE_B, 2, 16),
    "gpipe 2 x 4": pipeline(GPIPE, 2, 4),
    "gpipe 2 x 16": pipeline(GPIPE, 2, 16),
    "data 16 + 16": shared(16),
    "data 20 + 12": shared(20),
    "data 24 + 8": shared(24),
    "data 28 + 4": shared(28),
    "data 12 + 20, 2 parts": shared(12, 2),
    "data 24 + 8, 4 parts": shared(24, 4),
    "data 30 + 2": shared(30),
}


class Wide(nn.Module):
    """Linear layers, of whose time a part does not depend on the samples: weights are read."""

    def __init__(self, width: int = 1536, layers: int = 4) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        """The loss of classifying."""
        for layer in self.layers:
            x = x + F.relu(layer(x))
        return F.cross_entropy(self.head(x).flatten(0, 1), label.flatten())


def make_wide(size: Size) -> Workload:
    """Four layers on 32 samples of a few rows."""
    rows = size.pixels // 8
    args = torch.randn(BATCH, rows, 6 * size.width), torch.randint(10, (BATCH, rows))
    return Workload(name="wide", model=Wide(6 * size.width), args=args)


def measure(
    models: Mapping[str, Callable[[Size], Workload]], size: Size, steps: int, *, profiles: bool
) -> Iterator[dict[str, Any]]:
    """One record an asked plan of each model."""
    for name, make in models.items():
        build = partial(make, size)
        graph = capture_apart(build)
        cluster = make_cluster(RANKS, MEGABITS["cpu"], DEVICE_TYPES["cpu"])
        known = [measure_plan(graph, cluster, make, build, steps)[1] for make in KNOWN.values()]
        graphs = {
            "one": graph_of_steps(graph, cluster, known[:1]),
            "several": graph_of_steps(graph, cluster, known),
        }
        if profiles:
            graphs |= profiled_graphs(build())
        for plan_name, asked in ASKED.items():
            seconds, (plan, _) = measure_plan(graph, cluster, asked, build, steps)
            yield make_record(name, plan_name, cluster, plan, graphs, seconds)


def measure_plan(
    graph: Graph, cluster: Cluster, make: Maker, build: Callable[[], Workload], steps: int
) -> tuple[Sequence[float], Step]:
    """The seconds of steps that were not timed op by op, and a step that was."""
    plan = make(graph, cluster)
    assert plan is not None
    run, job = run_plan(graph, cluster, plan, build, steps, False, CPU)
    return run.step_seconds[1:steps], (plan, measured_timeline(job.lowered.program, run))


def make_record(
    model: str,
    plan_name: str,
    cluster: Cluster,
    plan: Plan,
    graphs: Mapping[str, Graph],
    measured: Sequence[float],
) -> dict[str, Any]:
    """A plan's measured step, and what is predicted by each graph."""
    predicted = {by: simulate(graph, cluster, plan).step_seconds for by, graph in graphs.items()}
    return {
        "model": model,
        "plan": plan_name,
        "measured_seconds": median(measured),
        "fastest_seconds": min(measured),
        "slowest_seconds": max(measured),
        "predicted_seconds": predicted,
        "error": {by: each / median(measured) - 1 for by, each in predicted.items()},
    }


def profiled_graphs(workload: Workload) -> dict[str, Graph]:
    """The step with the times of kernels by themselves, at its own samples and at halves, too."""
    sized = sized_calls(workload, "adamw").counts
    every: Counter[str] = sum(sized.values(), Counter())
    times = {
        call: each.seconds
        for call, each in time_calls(every, CPU, drawn_alone)
        if not isinstance(each, str)
    }
    measured: Measured = {"cpu": times}
    how: dict[str, Any] = {"measured": measured}
    return {
        "profile one": capture(workload.model, workload.args, **how),
        "profile several": capture(
            workload.model, workload.args, **how, batches=find_halves(workload.num_samples)
        ),
    }


def summarise(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all cases say of each way to know the times of ops."""
    measured = [record["measured_seconds"] for record in records]
    return {
        "cases": len(records),
        **{
            by: {
                "mean_absolute_error": fmean(abs(record["error"][by]) for record in records),
                "max_absolute_error": max(abs(record["error"][by]) for record in records),
                "spearman": spearman(
                    [record["predicted_seconds"][by] for record in records], measured
                ),
            }
            for by in records[0]["error"]
        },
        "load": os.getloadavg()[0],
    }


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    if "model" not in record:
        lines = [f"{record['cases']} cases"]
        for by, each in record.items():
            if isinstance(each, dict):
                lines.append(f"{by:>16}: " + ", ".join(f"{k} {v:.4g}" for k, v in each.items()))
        return "\n".join(lines)
    errors = ", ".join(f"{by} {each:+.1%}" for by, each in record["error"].items())
    return (
        f"{record['model']:>10} {record['plan']:22} {record['measured_seconds']:7.4f} s "
        f"({record['fastest_seconds']:.4f} to {record['slowest_seconds']:.4f}): {errors}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a case and one for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"a plan (default: {STEPS})")
    parser.add_argument("--only", default="", help="models whose names hold this")
    parser.add_argument("--profile", action="store_true", help="also time kernels by themselves")
    options = parser.parse_args(arguments)
    show = json.dumps if options.json else as_text
    torch.set_num_threads(1)  # before anything starts threads, which a fork would lose
    models = {
        name: make for name, make in (MODELS | {"wide": make_wide}).items() if options.only in name
    }
    records = []
    try:
        for record in measure(models, SIZES["cpu"], options.steps, profiles=options.profile):
            records.append(record)
            print(show(record), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if records:
        print(show(summarise(records)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
