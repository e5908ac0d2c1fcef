"""Piper's instances (Tarnawski, Narayanan, Phanishayee, NeurIPS 2021) under the authors' formula.

The best plan of pipeline stages, replicas, tensor parallelism and recomputation. `objective` is the
slowest stage's seconds a sample (a microbatch), worked out again from the plan by the formula
alone, null where no plan fits; `bound` is what no plan can be below. In a stage, `d` are its
replicas and `t` the devices of each. `seconds` are of search, without compilation; on a busy
machine `cpu_seconds` are the fairer. What the options leave open is the file's.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from time import perf_counter, process_time
from typing import Any

from meshwright.compiled import announced_compilation
from meshwright.errors import InputError
from meshwright.files import read_bytes
from meshwright.plan.answer import Stop
from solver.piper.enough import explain_misfit
from solver.piper.problem import (
    Edge,
    Node,
    Problem,
    Resources,
    Stage,
    Way,
    find_fault,
    microbatches_in_flight,
    plan_seconds,
    stage_bytes,
    stage_seconds,
)
from solver.piper.read import read_problem
from solver.piper.solve import solve

GIB = 2**30
DEFAULT_BUDGET_SECONDS = 600.0


def measure(path: str, options: argparse.Namespace) -> dict[str, Any]:
    """One file's record."""
    problem = read_problem(
        read_bytes(path),
        path,
        num_devices=options.devices,
        memory_bytes=None if options.memory_gib is None else options.memory_gib * GIB,
        num_microbatches=options.samples,
        bytes_per_second=None if options.bandwidth_gib is None else options.bandwidth_gib * GIB,
    )
    began, began_cpu = perf_counter(), process_time()
    found = solve(problem, budget_seconds=options.budget)
    seconds, cpu_seconds = perf_counter() - began, process_time() - began_cpu
    resources, plan = problem.resources, found.plan
    if plan:
        fault = find_fault(problem, plan)
        assert not fault, fault
    record = {
        "file": path,
        "devices": resources.num_devices,
        "memory_gib": resources.memory_bytes / GIB,
        "samples": resources.num_microbatches,
        "bandwidth_gib": resources.bytes_per_second / GIB,
        "objective": plan_seconds(problem, plan) if plan else None,
        "bound": found.bound_seconds if found.bound_seconds < math.inf else None,
        "stop": found.stop.value,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "upsets": _finite(found.statistics["upsets"]),
        "limits": int(found.statistics["limits"]),
        "stages": _describe(problem, plan),
    }
    if found.stop is Stop.INFEASIBLE:
        record["reason"] = explain_misfit(problem)
    return record


def _finite(value: float) -> int | None:
    return int(value) if value < math.inf else None


def _describe(problem: Problem, plan: Sequence[Stage]) -> list[dict[str, Any]]:
    flights = microbatches_in_flight(plan)
    return [
        {
            "nodes": [problem.nodes[node].name for node in stage.nodes],
            "d": stage.num_replicas,
            "t": stage.width,
            "ways": [way.name for way in stage.ways],
            "seconds": stage_seconds(problem, stage),
            "in_flight": in_flight,
            "bytes": stage_bytes(stage, in_flight),
        }
        for stage, in_flight in zip(plan, flights, strict=True)
    ]


def compile_kernels() -> None:
    """Solve a small problem, so that no file's seconds hold compilation."""
    way = Way(
        name="plain",
        seconds=1.0,
        parameter_bytes=1.0,
        flight_bytes=1.0,
        fixed_bytes=0.0,
        sync_bytes={0: 0.0},
    )
    problem = Problem(
        nodes=(Node(name="0", ways={1: (way,)}), Node(name="1", ways={1: (way,)})),
        edges=(Edge(source=0, target=1, num_bytes=1.0),),
        resources=Resources(
            num_devices=2, memory_bytes=4.0, num_microbatches=2, bytes_per_second=1.0
        ),
    )
    with announced_compilation():
        solve(problem)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="the authors' JSON")
    parser.add_argument("--devices", type=int, help="how many there are")
    parser.add_argument("--memory-gib", type=float, help="of each device")
    parser.add_argument("--samples", type=int, help="microbatches of a batch")
    parser.add_argument("--bandwidth-gib", type=float, help="a second, from each device")
    parser.add_argument(
        "--budget", type=float, default=DEFAULT_BUDGET_SECONDS, help="seconds a file, about"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    try:
        _check(options)
        compile_kernels()
        for path in options.files:
            record = measure(path, options)
            print(json.dumps(record) if options.json else as_text(record), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    return 0


def _check(options: argparse.Namespace) -> None:
    for name in ("devices", "memory_gib", "samples", "bandwidth_gib", "budget"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            option = name.replace("_", "-")
            raise InputError(f"--{option} must be positive and finite, got {value}")


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    head = f"{record['file']}, {record['devices']} x {record['memory_gib']:g} GiB: "
    if record["objective"] is None:
        return head + f"{record['stop']}, {record.get('reason', 'no plan was found in time')}"
    stages = ", ".join(
        f"{len(stage['nodes'])} nodes x{stage['d']}/{stage['t']}" for stage in record["stages"]
    )
    return head + (
        f"{record['objective']:.9g} s a sample, at least {record['bound']:.9g} ({record['stop']}), "
        f"{record['seconds']:.3f} s; stages (replicas/width): {stages}"
    )


if __name__ == "__main__":
    sys.exit(main())
