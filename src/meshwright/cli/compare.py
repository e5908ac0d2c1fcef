"""`meshwright compare`: holds a plan's prediction against a run of it, and writes costs back."""

from argparse import Namespace
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.api import simulate
from meshwright.cli.console import Words, make_console, print_json
from meshwright.cli.exit_code import ExitCode
from meshwright.cli.progress import shown_progress
from meshwright.cli.sheet import print_table
from meshwright.compared import Case, read_case, read_run
from meshwright.errors import InputError
from meshwright.explain.drift import Dependence, find_dependences
from meshwright.export.perfetto.compare import write_comparison
from meshwright.files import finite
from meshwright.message import remark
from meshwright.profile.profile import Profile, merge_profiles, read_profile
from meshwright.report.breakdown import Breakdown
from meshwright.report.calibrate import calibrated_cluster, measured_profile
from meshwright.report.compare import Comparison, compare
from meshwright.report.drift import LEAST_RUNS, find_drifts
from meshwright.report.evidence import (
    at_steady_pace,
    make_calibration,
    steady_seconds,
    wall_seconds,
)
from meshwright.report.measured_ops import graph_of_steps
from meshwright.units import format_seconds

MAX_DEVICES = 32
"""Devices of a larger cluster that get lines of their own."""
MAX_GROUPS = 12
MAX_FINDINGS = 12
_NOTHING = 1e-10
"""Seconds below this are what adding up floats leaves behind."""


def run_compare(arguments: Namespace) -> int:
    """Compare, write what is asked for, and show where prediction and reality part."""
    with shown_progress(f"comparing {arguments.plan}", arguments):
        cases = _read_cases(arguments)
        case = cases[-1]
        comparison = compare(case.predicted, case.measured, case.cluster)
        if arguments.trace is not None:
            coarser = write_comparison(case.predicted, case.measured, case.cluster, arguments.trace)
            if coarser:
                remark(f"{arguments.trace} is coarser than the steps: {coarser}")
        written = _write_back(arguments, cases)
        steps = [(each.predicted, each.measured) for each in cases]
        drifts = find_drifts(case.cluster, steps)
        dependences = find_dependences(case.graph, case.cluster, case.plan, drifts)
    if arguments.json:
        found = {"calibrated_seconds": written, "drifts": [*map(_drift_document, dependences)]}
        print_json(_document(arguments, case, comparison) | found)
        return ExitCode.DONE
    _show(case, comparison)
    _show_drifts(cases, dependences)
    if written is not None:
        remark(
            f"with the costs written, the same plan is predicted to take "
            f"{format_seconds(written)} a step"
        )
    if arguments.trace is not None:
        remark(f"wrote {arguments.trace}; open it in ui.perfetto.dev")
    return ExitCode.DONE


def _read_cases(arguments: Namespace) -> list[Case]:
    found = []
    for path in arguments.runs:
        run = read_run(path)
        for name in ("write_graph", "write_profile"):
            # Emulated devices have waited for predicted times: writing these back would prove them.
            if run.is_emulated and getattr(arguments, name) is not None:
                raise InputError(
                    f"--{name.replace('_', '-')}: must be given a run that computed, but "
                    f"{path} was emulated; its communication can be written with "
                    f"--write-cluster"
                )
        found.append(read_case(arguments.plan, path, with_links=arguments.trace is not None))
    return found


def _write_back(arguments: Namespace, cases: Sequence[Case]) -> float | None:
    """Write measured costs: of ops and kernels those of all runs, of links the last one's. Returns
    the step time predicted with them, None if none are used."""
    case = cases[-1]
    graph, cluster = case.graph, case.cluster
    if arguments.write_profile is not None:
        for each in cases:
            _write_profile(arguments.write_profile, each)
    if arguments.write_graph is not None:
        steps = [(each.plan, at_steady_pace(each.run, each.measured)) for each in cases]
        graph = graph_of_steps(graph, cluster, steps)
        graph.save(arguments.write_graph)
    if arguments.write_cluster is not None:
        cluster = calibrated_cluster(cluster, case.measured)
        day = datetime.now(UTC).date()
        records = [
            make_calibration(each.graph, each.cluster, each.predicted, each.run, day)
            for each in cases
        ]
        kept = (*cluster.calibrations, *(each for each in records if each is not None))
        cluster = replace(cluster, calibrations=kept)
        cluster.save(arguments.write_cluster)
        before, after = (
            (each.links, each.hop_bytes_per_second) for each in (case.cluster, cluster)
        )
        if before == after:
            remark(
                "no transfer had its route to itself for long enough: the links stay as they were"
            )
    if graph is case.graph and cluster is case.cluster:
        return None
    return simulate(graph, cluster, case.plan).step_seconds


def _write_profile(path: Path, case: Case) -> None:
    """Add the calls of the run to what the file has."""
    date = datetime.now(UTC).replace(microsecond=0)
    steady = at_steady_pace(case.run, case.measured)
    new = measured_profile(case.cluster, case.run, steady, date)
    if not new.tables:
        raise InputError("--write-profile: the run must say which kernel calls its ops were")
    before = read_profile(path) if path.exists() else Profile()
    merge_profiles(before, new).save(path)


def _document(arguments: Namespace, case: Case, comparison: Comparison) -> dict[str, Any]:
    paths = ("trace", "write_graph", "write_cluster", "write_profile")
    given = {name: getattr(arguments, name) for name in paths}
    return {
        "plan": str(arguments.plan),
        "run": str(arguments.runs[-1]),
        "runs": [str(each) for each in arguments.runs],
        "model": case.graph.name,
        "cluster": case.cluster.name,
        "is_emulated": case.run.is_emulated,
        "steps": len(case.run.step_seconds),
        "wall_seconds": finite(wall_seconds(case.run)),
        "predicted_seconds": finite(comparison.predicted_seconds),
        "measured_seconds": finite(comparison.measured_seconds),
        "error": finite(comparison.error),
        "predicted": asdict(comparison.predicted),
        "measured": asdict(comparison.measured),
        "devices": [asdict(each) for each in comparison.devices],
        "groups": [
            asdict(each) | {"difference_seconds": each.difference_seconds}
            for each in comparison.groups
        ],
        "findings": list(comparison.findings),
        **{name: None if path is None else str(path) for name, path in given.items()},
    }


def _drift_document(found: Dependence) -> dict[str, Any]:
    drift = found.drift
    return {
        "what": drift.what,
        "devices": list(drift.devices),
        "links": list(drift.links),
        "factor": drift.factor,
        "low": drift.low,
        "high": drift.high,
        "runs": drift.num_runs,
        "slower": finite(found.slower),
        "decision": found.decision,
        "change": found.change,
        "gain": found.gain,
    }


def _show_drifts(cases: Sequence[Case], dependences: Sequence[Dependence]) -> None:
    """What has changed by all runs, and what of the plan depends on it."""
    if len(cases) < LEAST_RUNS:
        return
    console = make_console()
    console.print()
    if not dependences:
        console.print(f"all {len(cases):,} runs: no link and no device has changed")
    for each in dependences:
        console.print(f"- {each}")


def _show(case: Case, comparison: Comparison) -> None:
    """What stands out, then where the time of each device went, then what differs most."""
    console = make_console()
    kind = "an emulated" if case.run.is_emulated else "a"
    wall = wall_seconds(case.run)
    step = f"step {case.run.measured_step} of {kind} run"
    title = f"{case.graph.name} on {case.cluster.name}, {step}"
    console.print(Words(title, style="bold"))
    if np.isfinite(wall):
        count = len(steady_seconds(case.run))
        console.print(f"median of {count} steps by the wall clock: {format_seconds(wall)}")
    for text in comparison.findings[:MAX_FINDINGS]:
        console.print(f"- {text}")
    more = len(comparison.findings) - MAX_FINDINGS
    if more > 0:
        console.print(f"- and {more} more (--json has all)")
    console.print()
    heads = ("device", "", "step", "compute", "communication", "waiting", "overhead")
    print_table(heads, _device_rows(comparison))
    console.print()
    rows = [
        (
            group.sort,
            group.name,
            str(group.count),
            format_seconds(group.predicted_seconds),
            format_seconds(group.measured_seconds),
            _signed(group.difference_seconds),
        )
        for group in comparison.groups[:MAX_GROUPS]
    ]
    columns = ("what", "which", "count", "predicted", "measured", "difference")
    print_table(columns, rows, wraps=("which",))


def _device_rows(comparison: Comparison) -> list[tuple[str, ...]]:
    rows = []
    for device in comparison.devices[:MAX_DEVICES]:
        rows.append((device.name, "predicted", *map(format_seconds, _cells(device.predicted))))
        rows.append(("", "measured", *map(format_seconds, _cells(device.measured))))
    if len(comparison.devices) > MAX_DEVICES:
        rows.append((f"... {len(comparison.devices) - MAX_DEVICES} more", *[""] * 6))
    pairs = zip(_cells(comparison.measured), _cells(comparison.predicted), strict=True)
    rows.append(("all", "difference", *(_signed(after - before) for after, before in pairs)))
    return rows


def _cells(breakdown: Breakdown) -> tuple[float, ...]:
    return (
        breakdown.total_seconds,
        breakdown.compute_seconds,
        breakdown.communication_seconds,
        breakdown.waiting_seconds,
        breakdown.overhead_seconds,
    )


def _signed(seconds: float) -> str:
    if abs(seconds) < _NOTHING:
        return "0 s"
    return f"{'-' if seconds < 0 else '+'}{format_seconds(abs(seconds))}"
