"""The published instances of Tarnawski et al. (NeurIPS 2020), with their objectives.

Throughput, without an option: the largest load of a device, over all assignments of nodes to
devices. `--contiguous`: over splits into stages of a pipeline. `--latency`: the time of one sample
where accelerators have little memory. What is found, and a proven bound; one line a file, times in
the files' unit, milliseconds. `seconds` are of search, without compilation.

In `split`, devices 0, 1, ... are accelerators, -1, -2, ... are CPUs (under `--latency` all CPUs are
-1). Under `--contiguous`, `stage` is a device's place in the pipeline; under `--latency`, a device
runs its pieces in the order of their numbers. Ctrl-C ends a search of throughput with a record of
the best split so far, `interrupted`, and exit code 130.
"""

import argparse
import json
import math
import os
import sys
from collections.abc import Sequence
from time import perf_counter
from typing import Any

import numpy as np

from meshwright.array import Ints
from meshwright.compiled import announced_compilation
from meshwright.errors import InputError
from meshwright.files import read_bytes
from meshwright.plan.answer import Stop
from meshwright.search.method.pipeline.stage.problem import DeviceKind, make_problem
from meshwright.search.method.pipeline.stage.split import StageSplit, solve_split
from solver.free.contiguous import price_bounds
from solver.free.solve import FreeSplit, solve_free
from solver.latency.evaluate import split_milliseconds
from solver.latency.minimise import greedy_split, minimise_latency
from solver.latency.problem import read_problem
from solver.throughput import ACCELERATOR, Throughput, read_throughput

DEFAULT_BUDGET_SECONDS = 60.0


def measure_latency(path: str, budget_seconds: float, seed: int) -> dict[str, Any]:
    """One file's record."""
    problem = read_problem(read_bytes(path), path)
    with announced_compilation():
        found = minimise_latency(problem, budget_seconds=budget_seconds, seed=seed)
    places = zip(problem.ids, found.split.device.tolist(), found.split.piece.tolist(), strict=True)
    return {
        "file": path,
        "objective": found.latency_ms,
        "bound": found.bound_ms,
        "gap": found.gap,
        "stop": found.stop.value,
        "greedy": split_milliseconds(problem, greedy_split(problem)),
        "seconds": found.seconds,
        "split": [{"id": node, "device": device, "piece": piece} for node, device, piece in places],
    }


def measure_contiguous(path: str, budget_seconds: float, seed: int) -> dict[str, Any]:
    """One file's record: the best pipeline."""
    read = read_throughput(read_bytes(path), path, contiguous=True)
    started = perf_counter()
    found = solve_split(read.problem, budget_seconds=budget_seconds, seed=seed, bounds=price_bounds)
    seconds = perf_counter() - started
    record = _record(path, found, seconds)
    downsets = found.statistics.get("downsets", math.inf)
    record["downsets"] = downsets if math.isfinite(downsets) else None
    if found.stop is Stop.INFEASIBLE:
        return record | _refusal(read, found)
    device_of_stage = _device_names(found.kind_of_stage)
    stages = found.stage_of_node[read.node_of_op].tolist()
    record["split"] = [
        {"id": each, "device": device_of_stage[stage], "stage": stage}
        for each, stage in zip(read.ids, stages, strict=True)
    ]
    return record


def measure_free(path: str, budget_seconds: float, seed: int) -> dict[str, Any]:
    """One file's record: the best assignment, begun at the best pipeline."""
    data = read_bytes(path)
    stages = read_throughput(data, path, contiguous=True)
    read = read_throughput(data, path, contiguous=False)
    started = perf_counter()
    pipeline = solve_split(
        stages.problem, budget_seconds=budget_seconds / 2, seed=seed, bounds=price_bounds
    )
    if pipeline.is_interrupted:
        budget_seconds = 0.0
    left = max(0.0, budget_seconds - (perf_counter() - started))
    start = None if pipeline.stop is Stop.INFEASIBLE else _as_free(stages, read, pipeline)
    found = solve_free(
        read.problem,
        start,
        kind_of_device=None if start is None else pipeline.kind_of_stage,
        seed=seed,
        budget_seconds=left,
    )
    seconds = perf_counter() - started
    record = _record(path, found, seconds)
    if pipeline.is_interrupted:
        record["interrupted"] = True
    record["contiguous"] = pipeline.seconds * 1e3 if start is not None else None
    if found.stop is Stop.INFEASIBLE:
        return record | _refusal(read, found)
    names = _device_names(found.kind_of_device)
    devices = found.device_of_node[read.node_of_op].tolist()
    record["split"] = [
        {"id": each, "device": names[device]}
        for each, device in zip(read.ids, devices, strict=True)
    ]
    return record


def _record(path: str, found: StageSplit | FreeSplit, seconds: float) -> dict[str, Any]:
    """What records of throughput share; no number where there is none, or no finite one."""
    objective, bound, stop = found.seconds, found.bound_seconds, found.stop
    is_split = stop is not Stop.INFEASIBLE
    gap = None
    if is_split and (bound > 0 or stop is Stop.PROVED):
        gap = objective / bound - 1 if bound > 0 else 0.0
    return {
        "file": path,
        "objective": objective * 1e3 if is_split else None,
        "bound": bound * 1e3 if math.isfinite(bound) else None,
        "gap": gap,
        "stop": stop.value,
        "seconds": seconds,
    } | ({"interrupted": True} if found.is_interrupted else {})


def _refusal(read: Throughput, found: StageSplit | FreeSplit) -> dict[str, Any]:
    """Why there is no split; a node that is in the way is named by the ids of the file's."""
    ids = [
        each
        for each, node in zip(read.ids, read.node_of_op.tolist(), strict=True)
        if node == found.stuck_node
    ]
    reason = found.reason
    if ids:
        shown = ", ".join(map(str, ids[:8])) + (", ..." if len(ids) > 8 else "")
        reason = reason.replace(f"node {found.stuck_node}", f"node {shown}", 1)
    return {"reason": reason, "split": []}


def _device_names(kinds: Sequence[int]) -> list[int]:
    """Accelerators count up from 0, CPUs down from -1."""
    names, accelerators, cpus = [], 0, 0
    for kind in kinds:
        if kind == ACCELERATOR:
            names.append(accelerators)
            accelerators += 1
        else:
            cpus += 1
            names.append(-cpus)
    return names


def _as_free(stages: Throughput, read: Throughput, pipeline: StageSplit) -> Ints:
    """A pipeline's stages as devices of the free problem, whose nodes are parts of the other's."""
    device_of_node = np.empty(read.problem.num_nodes, dtype=np.int32)
    device_of_node[read.node_of_op] = pipeline.stage_of_node[stages.node_of_op]
    return device_of_node


def compile_kernels() -> None:
    """Solve a small problem both ways, so that no file's seconds hold compilation."""
    kinds = [DeviceKind(name="device", count=2, seconds=np.array([1.0, 2.0, 3.0]))]
    pairs = [(0, 1), (1, 2)]
    problem = make_problem(
        kinds=kinds, num_bytes=[0.0] * 3, edges=pairs, wires=[(pair, 0.5) for pair in pairs]
    )
    with announced_compilation():
        solve_split(problem)
        solve_free(problem, budget_seconds=0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("files", nargs="+", metavar="FILE", help="the authors' JSON")
    objective = parser.add_mutually_exclusive_group()
    objective.add_argument("--latency", action="store_true", help="minimise the time of one sample")
    objective.add_argument("--contiguous", action="store_true", help="only stages of a pipeline")
    parser.add_argument(
        "--budget", type=float, default=DEFAULT_BUDGET_SECONDS, help="seconds a file, about"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    options = parser.parse_args(arguments)
    try:
        if not 0 < options.budget < float("inf"):
            raise InputError(f"--budget must be positive and finite, got {options.budget}")
        if not options.latency:
            compile_kernels()
        for path in options.files:
            record = _measure(path, options)
            print(json.dumps(record) if options.json else as_text(record), flush=True)
            if record.get("interrupted"):
                return 130
    except InputError as error:
        return _complain(str(error), 2)
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return _complain(f"standard output: {error.strerror}", 2)
    except KeyboardInterrupt:
        return _complain("interrupted", 130)
    return 0


def _measure(path: str, options: argparse.Namespace) -> dict[str, Any]:
    if options.latency:
        return measure_latency(path, options.budget, options.seed)
    if options.contiguous:
        return measure_contiguous(path, options.budget, options.seed)
    return measure_free(path, options.budget, options.seed)


def _complain(text: str, code: int) -> int:
    print(f"error: {text}", file=sys.stderr)
    return code


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    if record["objective"] is None:
        return f"{record['file']}: {record['stop']}, {record['reason']}"
    gap = "unknown" if record["gap"] is None else f"{record['gap']:.2%}"
    text = (
        f"{record['file']}: {record['objective']:.4f} ms, at least {record['bound']:.4f} "
        f"(gap {gap}, {record['stop']}), {record['seconds']:.2f} s"
    )
    if record.get("contiguous") is not None:
        text += f", contiguous {record['contiguous']:.4f}"
    return f"{text}, authors' greedy {record['greedy']:.4f}" if "greedy" in record else text


if __name__ == "__main__":
    sys.exit(main())
