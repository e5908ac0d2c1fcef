"""Holds predicted step times against measured ones: emulated devices on real networks of this
machine, and real compute on two ranks.

Needs root, for network namespaces (`meshwright testbed`). Cases of one model on one cluster
compete: regret is what the plan that is predicted to be fastest takes more than the fastest.
"""

import argparse
import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from statistics import fmean, median
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is imported

import numpy as np
import numpy.typing as npt
import torch

from execution_cases import Case, Scenario, hybrid_scenarios, scenarios
from execution_ranks import Job, emulate_jobs, merge_job, run_on_hosts
from execution_real import measure_real
from meshwright.errors import InputError
from meshwright.execute.lowered import lower_frozen
from meshwright.network.testbed.apply import built
from meshwright.report.compare import compare
from meshwright.simulate.measured import measured_timeline
from meshwright.simulate.simulate import run_program, simulate

TESTBED = "execution"
MOST_SECONDS = 10.0
"""Plans that are predicted to take longer are left out."""
LEAST_SHARE = 0.02
"""And those in which not even a second device computes for this share of the step."""
STEPS = 6
"""The first warms up; the median of the rest is kept."""
RETRIES = 2


def measure_scenario(scenario: Scenario, steps: int, *, explains: bool) -> Iterator[dict[str, Any]]:
    """One record a case."""
    cases, predicted = [], []
    for case in scenario.cases():
        timeline = simulate(case.graph, case.cluster, case.plan)
        # A device by itself says nothing about a network.
        is_shared = sorted(timeline.busy_seconds)[-2] > LEAST_SHARE * timeline.step_seconds
        if is_shared and timeline.step_seconds <= MOST_SECONDS:
            cases.append(case)
            predicted.append(timeline.step_seconds)
    jobs = [
        Job(
            lowered=lower_frozen(case.graph, case.cluster, case.plan),
            steps=steps,
            timed=1 if explains else 0,
        )
        for case in cases
    ]
    limit = 60.0 + 3.0 * (steps + 1) * sum(predicted)
    with built(cases[0].cluster, TESTBED) as testbed:
        results = run_on_hosts(testbed, scenario.ranks, emulate_jobs(jobs), limit)
    for number, (case, job, seconds) in enumerate(zip(cases, jobs, predicted, strict=True)):
        run = merge_job(job, number, results)
        measured = run.step_seconds[1:steps]
        record = make_record(case, seconds, measured)
        if explains:
            frozen = run_program(job.lowered.program, case.cluster)
            happened = measured_timeline(job.lowered.program, run)
            record["findings"] = compare(frozen, happened, case.cluster).findings
        yield record


def make_record(case: Case, predicted: float, measured: Sequence[float]) -> dict[str, Any]:
    """A case for programs."""
    return {
        "model": case.model,
        "ranks": case.cluster.num_devices,
        "megabits": case.megabits,
        "plan": case.plan_name,
        "predicted_seconds": predicted,
        "measured_seconds": median(measured),
        "error": predicted / median(measured) - 1,
        "fastest_seconds": min(measured),
        "slowest_seconds": max(measured),
    }


def summarise(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What all cases say together."""
    errors = [abs(record["error"]) for record in records]
    groups: dict[tuple[str, int, int], list[dict[str, Any]]] = defaultdict(list)
    for record in records:
        groups[record["model"], record["ranks"], record["megabits"]].append(record)
    regrets = [regret(group) for group in groups.values() if len(group) > 1]
    return {
        "cases": len(records),
        "mean_absolute_error": fmean(errors),
        "max_absolute_error": max(errors),
        "spearman": spearman(
            [record["predicted_seconds"] for record in records],
            [record["measured_seconds"] for record in records],
        ),
        "groups": len(regrets),
        "worst_regret": max(regrets, default=0.0),
        "load": os.getloadavg()[0],
    }


def regret(records: Sequence[dict[str, Any]]) -> float:
    """What the plan ranked first takes more than the fastest."""
    first = min(records, key=lambda record: float(record["predicted_seconds"]))
    best = min(float(record["measured_seconds"]) for record in records)
    return float(first["measured_seconds"]) / best - 1


def spearman(one: Sequence[float], other: Sequence[float]) -> float:
    """Correlation of ranks; ties share the mean of their ranks."""
    return float(np.corrcoef(_ranks(one), _ranks(other))[0, 1])


def _ranks(values: Sequence[float]) -> npt.NDArray[np.float64]:
    array = np.asarray(values)
    below = (array[:, None] > array[None, :]).sum(axis=1)
    equal = (array[:, None] == array[None, :]).sum(axis=1)
    ranks: npt.NDArray[np.float64] = below + (equal - 1) / 2.0
    return ranks


def measure(wanted: Sequence[Scenario], steps: int, *, explains: bool) -> Iterator[dict[str, Any]]:
    """All scenarios; one that fails is tried again."""
    for scenario in wanted:
        for attempt in range(RETRIES + 1):
            try:
                records = list(measure_scenario(scenario, steps, explains=explains))
                break
            except InputError as error:
                if attempt == RETRIES:
                    raise
                print(f"{scenario.model}: {error}; once more", file=sys.stderr, flush=True)
                time.sleep(2.0)
        yield from records


def as_text(record: dict[str, Any]) -> str:
    """A record for people."""
    if "model" not in record:
        return ", ".join(f"{name} {value:.4g}" for name, value in record.items())
    lines = [
        f"{record['model']:>12} {record['ranks']:3} ranks {record['megabits']:5} Mbit/s "
        f"{record['plan']:24} predicted {record['predicted_seconds']:7.4f} s measured "
        f"{record['measured_seconds']:7.4f} s ({record['fastest_seconds']:.4f} to "
        f"{record['slowest_seconds']:.4f}): {record['error']:+.2%}"
        + (f", overhead {record['overhead_share']:.2%}" if "overhead_share" in record else ""),
        *(f"{'':16}{finding}" for finding in record.get("findings", ())),
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Read the command line, print one line a case and one for all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="print one JSON object a line")
    parser.add_argument("--steps", type=int, default=STEPS, help="steps a case (default: 6)")
    parser.add_argument("--only", default="", help="models whose names hold this")
    parser.add_argument("--explain", action="store_true", help="say where the two part")
    parser.add_argument("--hybrid", action="store_true", help="plans with teams, ZeRO, ...")
    parser.add_argument(
        "--real", action="store_true", help="real compute on two ranks instead of emulated devices"
    )
    parser.add_argument("--compile", action="store_true", help="with --real: compiled regions")
    parser.add_argument(
        "--device", choices=("cpu", "cuda"), default="cpu", help="with --real: where ranks compute"
    )
    options = parser.parse_args(arguments)
    show = json.dumps if options.json else as_text
    if options.real:
        found = measure_real(
            options.steps,
            options.only,
            compiles=options.compile,
            device=torch.device(options.device),
        )
    else:
        every = hybrid_scenarios() if options.hybrid else scenarios()
        wanted = [each for each in every if options.only in each.model]
        found = measure(wanted, options.steps, explains=options.explain)
    records = []
    try:
        for record in found:
            records.append(record)
            print(show(record), flush=True)
        if records:
            print(show(summarise(records)), flush=True)
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
