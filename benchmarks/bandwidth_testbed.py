"""Holds predictions for hosts with several network interfaces against measurements on real networks
of this machine: messages over one way and over several, and steps of plans with allocated bandwidth
against uniform ones.

Needs root, for network namespaces (`meshwright testbed`). Compute is emulated, communication is
gloo's. Uniform and allocated runs take turns, each in a testbed of its own.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from statistics import median
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported

from bandwidth_cases import STEPS, Message, Step, messages
from execution_ranks import Job, emulate_jobs, merge_job, run_on_hosts
from meshwright.cluster.cluster import Cluster
from meshwright.errors import InputError
from meshwright.execute.lowered import lower_frozen
from meshwright.execute.walk import Times
from meshwright.graph.graph import Graph
from meshwright.network.script import Kind as Network
from meshwright.network.testbed.apply import built
from meshwright.plan.plan import Plan
from meshwright.program.program import Kind, Program
from meshwright.search.portfolio import find_plan
from meshwright.simulate.simulate import run_program, simulate
from meshwright.units import MIB

UNIFORM, ALLOCATED = "bwuniform", "bwallocated"
"""Names of the testbeds."""
REPEATS = 11
"""Of a message; the median is kept."""
MEGABITS = (100, 400)
"""Of links that messages are sent over."""
LIMIT_SECONDS = 120.0
"""For one turn, and for all messages of a kind."""


def measure_messages(cases: Sequence[Message], kind: Network) -> Iterator[dict[str, Any]]:
    """One record a message; all of them in one testbed."""
    first = cases[0]
    jobs = [
        Job(
            lowered=lower_frozen(case.graph, case.cluster, case.plan),
            steps=1, timed=REPEATS, cluster=case.cluster,
        )
        for case in cases
    ]  # fmt: skip
    with built(first.cluster, UNIFORM, first.plan, kind) as testbed:
        ranks = first.cluster.num_devices
        results = run_on_hosts(testbed, ranks, emulate_jobs(jobs), LIMIT_SECONDS)
    for number, (case, job) in enumerate(zip(cases, jobs, strict=True)):
        program = job.lowered.program
        timeline = run_program(program, case.cluster)
        predicted = message_seconds(program, [dict(enumerate(timeline.start))],
                                    [dict(enumerate(timeline.finish))])  # fmt: skip
        measured = [_measured(program, [each[number][1][k] for each in results])
                    for k in range(REPEATS)]  # fmt: skip
        yield {
            "kind": case.kind,
            "ways": case.ways,
            "megabits": case.megabits,
            "mebibytes": case.num_bytes / MIB,
            "predicted_seconds": predicted,
            "measured_seconds": median(measured),
            "error": predicted / median(measured) - 1,
            "fastest_seconds": min(measured),
            "slowest_seconds": max(measured),
        }


def _measured(program: Program, times: Sequence[Times]) -> float:
    return message_seconds(program, [each.start for each in times], [each.finish for each in times])


def message_seconds(
    program: Program, starts: Sequence[dict[int, float]], finishes: Sequence[dict[int, float]]
) -> float:
    """From when the message could begin, the last of its members being there, to its end."""
    rows = program.instructions
    kinds = (Kind.SEND, Kind.ALL_REDUCE)
    begins = [k for k in range(len(rows)) if rows["kind"][k] in kinds]
    (task,) = {int(rows["task"][k]) for k in begins}
    ends = [k for k in range(len(rows)) if rows["task"][k] == task]
    began = max(each[k] for each in starts for k in begins if k in each)
    return float(max(each[k] for each in finishes for k in ends if k in each) - began)


def measure_step(
    case: Step, rounds: int, steps: int, budget: float, kind: Network
) -> dict[str, Any]:
    """A model's step by the best plan with uniform bandwidth, and by the best with allocations."""
    graph, cluster = case.prepare()
    plans = [
        find_plan(graph, cluster, case.method, budget_seconds=budget, allocate=allocates).plan
        for allocates in (False, True)
    ]
    found = [plan for plan in plans if plan is not None]
    if len(found) < len(plans):
        raise InputError(f"{case.model}: no plan of {case.method} fits")
    predicted = [simulate(graph, cluster, plan).step_seconds for plan in found]
    measured = measure_plans(graph, cluster, found, rounds, steps, kind)
    uniform, allocated = (median(each) for each in measured)
    gains = [1 - predicted[1] / predicted[0], 1 - allocated / uniform]
    return {
        "model": case.model,
        "batch": case.batch,
        "method": case.method,
        "megabits": case.megabits,
        "allocations": len(found[1].allocations),
        "predicted_uniform": predicted[0],
        "measured_uniform": uniform,
        "predicted_allocated": predicted[1],
        "measured_allocated": allocated,
        "predicted_gain": gains[0],
        "measured_gain": gains[1],
        "error_points": 100 * (gains[1] - gains[0]),
        "uniform_range": [min(measured[0]), max(measured[0])],
        "allocated_range": [min(measured[1]), max(measured[1])],
        "load": os.getloadavg()[0],
    }


def measure_plans(
    graph: Graph, cluster: Cluster, plans: Sequence[Plan], rounds: int, steps: int, kind: Network
) -> list[list[float]]:
    """Seconds of steps by each of two plans, which take turns; a turn's first step warms up."""
    jobs = [
        Job(lowered=lower_frozen(graph, cluster, plan), steps=steps + 1, timed=0, cluster=cluster)
        for plan in plans
    ]
    seconds: list[list[float]] = [[] for _ in plans]
    with (
        built(cluster, UNIFORM, plans[0], kind) as one,
        built(cluster, ALLOCATED, plans[1], kind) as other,
    ):
        for _ in range(rounds):
            for place, testbed in enumerate((one, other)):
                work = emulate_jobs([jobs[place]])
                results = run_on_hosts(testbed, cluster.num_devices, work, LIMIT_SECONDS)
                seconds[place] += merge_job(jobs[place], 0, results).step_seconds[1:]
    return seconds


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    if "model" in record:
        return (
            f"{record['model']:>12} {record['method']:9} uniform {record['predicted_uniform']:.4f} "
            f"s, measured {record['measured_uniform']:.4f} s; allocated "
            f"{record['predicted_allocated']:.4f} s, measured {record['measured_allocated']:.4f} "
            f"s; gain {record['predicted_gain']:.2%}, measured {record['measured_gain']:.2%}: "
            f"{record['error_points']:+.2f} points"
        )
    return (
        f"{record['kind']:>10}, {record['ways']:14} {record['megabits']:4} Mbit/s "
        f"{record['mebibytes']:3.0f} MiB: predicted {record['predicted_seconds']:.4f} s measured "
        f"{record['measured_seconds']:.4f} s ({record['fastest_seconds']:.4f} to "
        f"{record['slowest_seconds']:.4f}): {record['error']:+.2%}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a case."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--network", choices=("tc", "ovs"), default="tc", help="default: tc")
    parser.add_argument(
        "--only", choices=("messages", "steps"), help="measure only these (default: both)"
    )
    parser.add_argument("--model", default="", help="models whose names hold this")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each plan (default: 3)")
    parser.add_argument("--steps", type=int, default=5, help="steps a turn (default: 5)")
    parser.add_argument("--budget", type=float, default=10.0, help="seconds a search (default: 10)")
    options = parser.parse_args(arguments)
    show = json.dumps if options.json else as_text
    try:
        for record in measure(options):
            print(show(record), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


def measure(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """All that was asked for."""
    if options.only != "steps":
        for cases in messages(MEGABITS):
            yield from measure_messages(cases, options.network)
    if options.only != "messages":
        for case in STEPS:
            if options.model in case.model:
                yield measure_step(
                    case, options.rounds, options.steps, options.budget, options.network
                )


if __name__ == "__main__":
    sys.exit(main())
