"""Kills all ranks of random hosts at random moments of elastic runs, and compares the losses with
those of undisturbed runs.

Four hosts train by plans of several kinds, on the loopback or in a testbed (network namespaces,
root). Each run loses two hosts, one after the other: while its ranks start, trace, are in a step or
write a checkpoint. It must plan for those that are left and end with the losses of a run that lost
none.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from types import MappingProxyType
from typing import Any

from children import find_children
from faults_model import NOTES
from meshwright.cli.plan_folder import write_answer
from meshwright.cluster.cluster import Cluster
from meshwright.cluster.file import decode_cluster
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.portfolio import find_plan
from meshwright.source import capture_model

HERE = Path(__file__).resolve().parent
MODEL, DATA = "faults_model:factory", "faults_model:samples"
NUM_HOSTS = 4
START_SHARE = 0.3
"""Of the losses so many come while ranks start and trace; the others while they train."""
LIMIT_SECONDS = 600.0
SLOW = {"flops_per_second": {"fp32": 1e8}, "memory_bytes": 1e10, "memory_bytes_per_second": 1e9}
"""A device on which computing takes so long that plans use all of them."""

CASES: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "data": {"method": "data"},
        "pipeline": {
            "method": "hybrid",
            "scope": Scope(pipeline=(4, 3, 2), data=(1,), tensor=(1,)),
        },
        "hybrid": {"method": "hybrid", "scope": Scope(pipeline=(2,))},
        "zero 3": {"method": "hybrid", "scope": Scope(pipeline=(1,), tensor=(1,), zero=(3,))},
        "placement": {"method": "placement"},
    }
)

Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained, and where."""

    folder: Path
    steps: int
    every: int
    losses_per_run: int


def make_cluster() -> Cluster:
    """Hosts of one slow device each, on one switch."""
    hosts = [{"name": f"h{k}", "devices": "1 x slow", "nics": "1 Gb/s"} for k in range(NUM_HOSTS)]
    document = {"name": "four hosts", "types": {"slow": SLOW}, "hosts": hosts}
    return decode_cluster(json.dumps(document).encode(), "four hosts")


def make_plan(graph: Graph, cluster: Cluster, case: str) -> Answer:
    """The plan of a case."""
    answer = find_plan(graph, cluster, budget_seconds=5.0, **CASES[case])
    assert answer.plan is not None, answer.binding
    return answer


class ElasticRun:
    """`meshwright run --elastic` in a process of its own."""

    def __init__(self, setting: Setting, plan: Path, name: str, *options: str) -> None:
        self.notes = setting.folder / f"{name}-notes"
        self.notes.mkdir()
        self.checkpoints = setting.folder / f"{name}-checkpoints"
        command = [sys.executable, "-P", "-m", "meshwright", "run", str(plan), "--json"]
        command += ["--model", MODEL, "--data", DATA, "--shuffle", "--steps", str(setting.steps)]
        command += ["--checkpoint", str(self.checkpoints), "--every", str(setting.every), *options]
        paths = [str(HERE), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        environment = {**os.environ, NOTES: str(self.notes), "PYTHONPATH": os.pathsep.join(paths)}
        self.began = time.time()
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def find_ranks(self, attempt: int) -> dict[int, str]:
        """The host of each process that is a rank of an attempt."""
        return {
            pid: known["MESHWRIGHT_HOST"]
            for pid, known in find_children(self.process.pid)
            if known.get("MESHWRIGHT_RUN_DIR", "").endswith(f"/attempt-{attempt}")
            and "MESHWRIGHT_HOST" in known
        }

    def last_note(self, attempt: int) -> Record:
        """The last that a rank of an attempt has noted."""
        last: Record = {"phase": "start", "step": 0, "time": 0.0}
        for path in self.notes.iterdir():
            with path.open("rb") as file:
                file.seek(max(0, path.stat().st_size - 400))
                lines = file.read().split(b"\n")[:-1]
            if lines and (note := json.loads(lines[-1]))["attempt"] == attempt:
                last = max(last, note, key=lambda each: each["time"])
        return last

    def first_step_time(self) -> float:
        """When the first step of the first attempt began."""
        notes = map(json.loads, next(self.notes.iterdir()).read_text().splitlines())
        return float(next(each["time"] for each in notes if each["phase"] == "step"))

    def wait_for(self, claim: Callable[[], Any]) -> Any:
        """What `claim` returns once it is true; None where the run has ended before."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (found := claim()):
            if self.process.poll() is not None:
                return None
            if time.monotonic() > deadline:
                self.process.kill()
                raise SystemExit(f"error: the run hangs: {self.process.communicate()[1]}")
            time.sleep(0.05)
        return found

    def lose_host(self, attempt: int, usual: "Usual", last: int, draw: random.Random) -> Record:
        """Kill all ranks of a random host at a random moment of an attempt, before it has taken the
        step `last`; what was under way."""
        ranks = self.wait_for(lambda: self.find_ranks(attempt))
        assert ranks is not None, f"the run has ended: {self.process.communicate()[1]}"
        if draw.random() < START_SHARE:
            until = time.time() + draw.uniform(0, usual.start_seconds)
            self.wait_for(lambda: time.time() >= until or self.last_note(attempt)["step"] >= last)
        else:
            step = draw.randint(1, last)
            self.wait_for(lambda: self.last_note(attempt)["step"] >= step)
            time.sleep(draw.uniform(0, usual.step_seconds))
        ranks = self.find_ranks(attempt)
        assert ranks, f"the run has ended: {self.process.communicate()[1]}"
        host = draw.choice(sorted(set(ranks.values())))
        first, moment = ranks[min(ranks)], time.time()
        for process, own in ranks.items():
            if own == host:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
        phase = self.last_note(attempt)["phase"].removeprefix("after ")
        return {"host": host, "phase": phase, "had_store": host == first, "time": moment}

    def finish(self) -> tuple[Record, str]:
        """Its report and what it said."""
        out, said = self.process.communicate(timeout=LIMIT_SECONDS)
        if self.process.returncode:
            raise SystemExit(f"error: the run ended with {self.process.returncode}: {said}")
        return json.loads(out), said


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """A run that loses no host."""

    losses: list[float]
    start_seconds: float
    """Until the first step."""
    step_seconds: float


def run_undisturbed(setting: Setting, plan: Path, name: str) -> Usual:
    """The run to compare with."""
    run = ElasticRun(setting, plan, name)
    report, _ = run.finish()
    first = run.first_step_time()
    return Usual(
        losses=report["losses"],
        start_seconds=first - run.began,
        step_seconds=(time.time() - first) / setting.steps,
    )


def run_elastic(
    setting: Setting, plan: Path, name: str, usual: Usual, draw: random.Random, testbed: bool
) -> Iterator[Record]:
    """A line for each loss, and one for the end."""
    options = ["--elastic", "-o", str(setting.folder / f"{name}-ran")]
    options += ["--testbed", "--name", f"e{os.getpid():x}"] if testbed else []
    run = ElasticRun(setting, plan, name, *options)
    # Every attempt leaves enough steps for those after it.
    part = setting.steps // (setting.losses_per_run + 1)
    killed = [run.lose_host(k, usual, part * (k + 1), draw) for k in range(setting.losses_per_run)]
    report, said = run.finish()
    found = report["host_losses"]
    assert [each["hosts"] for each in found] == [[each["host"]] for each in killed], said
    for number, (kill, loss) in enumerate(zip(killed, found, strict=True)):
        dropped = ("plan", "cause", "hosts", "known_time", "time")
        kept = {key: each for key, each in {**kill, **loss}.items() if key not in dropped}
        # By the moment of the first kill; what the run itself says begins with its first sign.
        yield {"loss": number, **kept, "notice_seconds": loss["known_time"] - kill["time"]}
    pairs = zip(report["losses"], usual.losses, strict=True)
    worst = max(abs(one - other) / max(1.0, abs(other)) for one, other in pairs)
    yield {"steps": len(report["losses"]), "largest_difference": worst, "ranks": report["ranks"]}


def summarise(losses: Sequence[Record], ends: Sequence[Record]) -> Record:
    """All losses in one object."""
    phases = [each["phase"] for each in losses]
    trained = [each for each in losses if each["start_seconds"] is not None]
    of = {name: [each[f"{name}_seconds"] for each in losses] for name in ("notice", "replan")}
    return {
        "losses": len(losses),
        "runs": len(ends),
        "phases": {phase: phases.count(phase) for phase in sorted(set(phases))},
        "of_the_store": sum(each["had_store"] for each in losses),
        "largest_difference": max(each["largest_difference"] for each in ends),
        "most_steps_repeated": max(each["repeated_steps"] or 0 for each in trained),
        **{f"median_{name}_seconds": round(median(each), 3) for name, each in of.items()},
        **{f"most_{name}_seconds": round(max(each), 3) for name, each in of.items()},
        "median_start_seconds": round(median(each["start_seconds"] for each in trained), 3),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON object a loss and a run, then a summary; 1 where losses differ."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=sorted(CASES), default=list(CASES))
    parser.add_argument("--modes", nargs="+", default=["plain", "testbed"])
    parser.add_argument("--steps", type=int, default=150, help="of each run (default: 150)")
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--losses", type=int, default=2, help="hosts that each run loses")
    parser.add_argument("--seed", type=int, default=0, help="of hosts and moments")
    parser.add_argument("--tolerance", type=float, default=1e-5, help="of losses")
    options = parser.parse_args(arguments)
    draw = random.Random(options.seed)
    ok = True
    with tempfile.TemporaryDirectory(prefix="meshwright-elastic-") as name:
        setting = Setting(
            folder=Path(name),
            steps=options.steps,
            every=options.every,
            losses_per_run=options.losses,
        )
        graph, cluster = capture_model(MODEL), make_cluster()
        usuals: dict[str, Usual] = {}
        for mode in options.modes:
            losses: list[Record] = []
            ends: list[Record] = []
            for case in options.cases:
                plan = setting.folder / case.replace(" ", "-")
                if case not in usuals:
                    answer = make_plan(graph, cluster, case)
                    write_answer(plan, graph, cluster, answer)
                    usuals[case] = run_undisturbed(setting, plan, f"{plan.name}-usual")
                run = f"{plan.name}-{mode}"
                usual = usuals[case]
                for row in run_elastic(setting, plan, run, usual, draw, mode == "testbed"):
                    (losses if "loss" in row else ends).append(row)
                    print(json.dumps({"mode": mode, "case": case, **row}), flush=True)
            summary = summarise(losses, ends)
            print(json.dumps({"mode": mode, **summary}), flush=True)
            ok = ok and summary["largest_difference"] <= options.tolerance
    return int(not ok)


if __name__ == "__main__":
    sys.exit(main())
