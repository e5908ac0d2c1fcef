"""Presses Ctrl-C at random moments of `meshwright plan --method auto`, and looks at what is left.

    python benchmarks/interrupts.py [--models M,..] [--presses N] [--budget S] [--seed N] [--json]

A moment is drawn uniformly between the first method's answer and the end of the budget. An end is
good where the command returns 130, the folder holds a plan that simulates to the answer's step, and
the answer's stop is INTERRUPTED. The seconds are those from the signal to the end of the process.
"""

import argparse
import json
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwright.planned import read_plan_folder
from meshwright.simulate.simulate import simulate

CASES = {
    "inception-v3": "tag-testbed",
    "bert-large": "dgx1-x4",
    "alexnet-32": "mixed-s2",
}
"""Models, each with a cluster."""

Record = dict[str, Any]


def press_once(model: str, cluster: str, budget: float, wait: float, folder: Path) -> Record | None:
    """One search, interrupted so long after its first answer; None: it had ended by then."""
    command = [sys.executable, "-m", "meshwright", "plan", model, "--cluster", cluster]
    command += ["--budget", str(budget), "-o", str(folder), "--json", "--verbose"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        said = ""
        while "single: " not in said and process.poll() is None:
            said = process.stderr.readline()
        time.sleep(wait)
        if process.poll() is not None:
            return None
        pressed = time.perf_counter()
        process.send_signal(signal.SIGINT)
        out, err = process.communicate()
        seconds = time.perf_counter() - pressed
    record: Record = {"model": model, "cluster": cluster, "wait": wait, "seconds": seconds}
    record |= {"code": process.returncode, "faults": _find_faults(process.returncode, out, folder)}
    during = [line for line in (said + err).splitlines() if "_seconds" not in line]
    return record | {"said": during[-1] if during else ""}


def _find_faults(code: int, out: str, folder: Path) -> list[str]:
    if code != 130 or not out:
        return [f"exit code {code}, and {len(out)} characters of output"]
    answer = json.loads((folder / "answer.json").read_text())
    graph, cluster, plan = read_plan_folder(folder)
    faults = [] if answer["stop"] == "INTERRUPTED" else [f"stop {answer['stop']}"]
    if simulate(graph, cluster, plan).step_seconds != answer["step_seconds"]:
        faults.append("the plan is another than the answer's")
    return faults


def run(models: list[str], presses: int, budget: float, seed: int) -> Iterator[Record]:
    """A record for each press."""
    draw = random.Random(seed)
    for model in models:
        done = 0
        while done < presses:
            with tempfile.TemporaryDirectory() as folder:
                wait = draw.uniform(0.0, budget)
                record = press_once(model, CASES[model], budget, wait, Path(folder) / "out")
            if record is not None:
                done += 1
                yield record


def main() -> None:
    """Print a line for each press, and what the slowest was."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default=",".join(CASES))
    parser.add_argument("--presses", type=int, default=20)
    parser.add_argument("--budget", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    records = []
    for record in run(given.models.split(","), given.presses, given.budget, given.seed):
        records.append(record)
        text = f"{record['model']} after {record['wait']:.2f} s: ended in {record['seconds']:.2f} s"
        shown = json.dumps(record) if given.json else "; ".join((text, *record["faults"]))
        print(shown, flush=True)
    if not given.json:
        worst = max(record["seconds"] for record in records)
        bad = sum(bool(record["faults"]) for record in records)
        print(f"{len(records)} presses, {bad} with faults, the slowest ended in {worst:.2f} s")


if __name__ == "__main__":
    main()
