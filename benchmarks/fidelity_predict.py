"""Predicted steps and peaks of the rows that `fidelity.py` measured, and how far off they are."""

import gzip
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from fidelity_rows import FOREACH, build_row, tf32_of

REPEATABLE = 0.03
"""Rows whose timings spread further say nothing about a prediction's error."""
DEVICE_TYPE = "h200"


def capture_row(
    row: str,
    found: dict[str, Any],
    header: dict[str, Any] | None = None,
) -> Any:
    """The graph of a row, with the times of its own kernels as those of the device type.

    `header`: that of its file; None: one of 2026-11-18 or later.
    """
    from meshwright.capture.capture import capture  # not needed to measure

    workload, autocast = build_row(row)
    known = {
        each["call"]: each["seconds"]
        for each in found["calls"]
        if isinstance(each["seconds"], float)
    }
    header = {"optimizer": FOREACH} if header is None else header
    with tf32_of(row, header.get("tf32")):
        return capture(
            workload.model,
            workload.args,
            workload.kwargs,
            loss=workload.loss,
            batch=workload.batch,
            autocast=autocast,
            measured={DEVICE_TYPE: known},
            compile=header.get("compiled", False),
            foreach=header.get("optimizer") == FOREACH,
        )


def predict_row(found: dict[str, Any], header: dict[str, Any]) -> dict[str, Any]:
    """A row's step time and peak memory as predicted, beside what was measured."""
    from dataclasses import replace

    from meshwright.cluster.builder.draft import Draft
    from meshwright.plan.plan import place_ops
    from meshwright.simulate.simulate import simulate

    graph = capture_row(found["row"], found, header)
    draft = Draft("one")
    draft.add_host("host", DEVICE_TYPE, 1)
    cluster = draft.finish()
    plan = place_ops(graph.op_names, [0] * graph.num_ops, [cluster.devices[0].name])
    fitted = simulate(replace(graph, seconds={}), cluster, plan)
    profiled = simulate(graph, cluster, plan)
    return {
        "row": found["row"],
        "step_seconds": found["step_seconds"],
        "spread": found["spread"],
        "fitted_seconds": fitted.step_seconds,
        "profiled_seconds": profiled.step_seconds,
        "launch_bound": fitted.is_launch_bound,
        "peak_bytes": found["peak_bytes"],
        "predicted_bytes": max(fitted.peak_bytes),
    }


def predict(path: Path, output: Path | None, jobs: int) -> None:
    """Predict every row, as many at once as there are jobs, and say how far off that is."""
    with gzip.open(path, "rt") as file:
        header, *rows = (json.loads(line) for line in file)
    lines = [{"command": " ".join(["python", *sys.argv]), "measured": header}]
    for found in rows:
        if "error" in found:
            print(f"{found['row']:28} {found['error'][:80]}")
    measured = [found for found in rows if "error" not in found]
    print(f"{'row':28} {'step':>9} {'spread':>7} {'fitted':>7} {'profile':>7} {'memory':>7}")
    for line in _predicted(measured, header, jobs):
        lines.append(line)
        print(
            f"{line['row']:28} {line['step_seconds'] * 1e3:6.1f} ms {line['spread']:7.1%} "
            f"{line['fitted_seconds'] / line['step_seconds']:7.3f} "
            f"{line['profiled_seconds'] / line['step_seconds']:7.3f} "
            f"{line['predicted_bytes'] / line['peak_bytes']:7.3f}"
            f"{' launch-bound' if line['launch_bound'] else ''}",
            flush=True,
        )
    lines.append(summarise(lines[1:]))
    print(json.dumps(lines[-1], indent=1))
    if output is not None:
        output.write_text("".join(json.dumps(line) + "\n" for line in lines))


def _predicted(
    rows: Sequence[dict[str, Any]], header: dict[str, Any], jobs: int
) -> Iterator[dict[str, Any]]:
    """The predictions of rows, in their order."""
    one = partial(predict_row, header=header)
    if jobs == 1:
        yield from map(one, rows)
        return
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        yield from pool.map(one, rows)


def summarise(lines: list[dict[str, Any]]) -> dict[str, Any]:
    """Mean absolute errors and rank correlation."""
    steady = [line for line in lines if line["spread"] <= REPEATABLE]
    times = [line["step_seconds"] for line in steady]

    def error(name: str, over: list[dict[str, Any]], truth: str) -> float:
        return statistics.fmean(abs(line[name] / line[truth] - 1) for line in over)

    return {
        "rows": len(lines),
        "repeatable_rows": len(steady),
        "fitted_error": error("fitted_seconds", steady, "step_seconds"),
        "fitted_worst": max(abs(x["fitted_seconds"] / x["step_seconds"] - 1) for x in steady),
        "fitted_spearman": spearman([line["fitted_seconds"] for line in steady], times),
        "profiled_error": error("profiled_seconds", steady, "step_seconds"),
        "memory_error": error("predicted_bytes", lines, "peak_bytes"),
        "memory_lowest": min(line["predicted_bytes"] / line["peak_bytes"] for line in lines),
    }


def spearman(first: list[float], second: list[float]) -> float:
    """Rank correlation; there are no ties among times."""
    ranks = [[sorted(values).index(value) for value in values] for values in (first, second)]
    return statistics.correlation(*ranks) if len(first) > 1 else 1.0
