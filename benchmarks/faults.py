"""Kills random ranks at random moments of training, and compares the end with an undisturbed run.

Two stages of two replicas each train in four processes. Each run is killed several times: while its
ranks start, trace, are in a step or write a checkpoint. It must resume by itself from the last
checkpoint and end with the same losses and the same bits in every tensor.
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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from children import find_children
from meshwright.cluster.catalogue import find_cluster
from meshwright.plan.plan import Schedule, ScheduleKind
from meshwright.search.instance import make_instance
from meshwright.search.method.pipeline.chain import make_chain, stages_plan
from meshwright.search.method.pipeline.consecutive import equal_stages
from meshwright.source import capture_model

HERE = Path(__file__).resolve().parent
MODEL = "faults_model:factory"
NUM_STAGES, NUM_REPLICAS, MICROBATCHES = 2, 2, 4
NUM_RANKS = NUM_STAGES * NUM_REPLICAS
START_SHARE = 0.35
"""Of the kills so many come while ranks start and trace; the others while they train."""
LIMIT_SECONDS = 300.0

Note = dict[str, Any]
Record = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What is trained, and how it is disturbed."""

    folder: Path
    steps: int
    every: int
    kills_per_run: int


def write_plan(folder: Path) -> None:
    """The plan, its graph and its cluster, as `meshwright plan -o` writes them."""
    graph, cluster = capture_model(MODEL), find_cluster(f"cpu-x{NUM_RANKS}")
    chain = make_chain(make_instance(graph, cluster), [0])
    ends = equal_stages(np.ones(chain.num_blocks), NUM_STAGES)
    homes = np.split(np.arange(cluster.num_devices), NUM_STAGES)
    plan = stages_plan(graph, cluster, chain, ends, homes, MICROBATCHES)
    schedule = Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=MICROBATCHES)
    folder.mkdir()
    graph.save(folder / "graph.json.gz")
    cluster.save(folder / "cluster.yaml")
    replace(plan, schedule=schedule).save(folder / "plan.json")


class Training:
    """`meshwright run` in a process of its own, and what its ranks note."""

    def __init__(self, setting: Setting, name: str, restarts: int) -> None:
        self.checkpoints = setting.folder / f"{name}-checkpoints"
        self.notes = setting.folder / f"{name}-notes"
        self.notes.mkdir()
        command = [
            sys.executable,
            "-P",
            "-m",
            "meshwright",
            "run",
            str(setting.folder / "plan"),
            "--json",
        ]
        command += ["--model", MODEL, "--steps", str(setting.steps), "--restarts", str(restarts)]
        command += ["--checkpoint", str(self.checkpoints), "--every", str(setting.every)]
        environment = {**os.environ, "FAULTS_NOTES": str(self.notes), "PYTHONPATH": str(HERE)}
        self.began = time.time()
        self.process = subprocess.Popen(
            command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def find_ranks(self, attempt: int) -> dict[int, int]:
        """Process numbers by rank, of those that run in an attempt."""
        return {
            int(known["RANK"]): pid
            for pid, known in find_children(self.process.pid)
            if known.get("TORCHELASTIC_RESTART_COUNT") == str(attempt)
        }

    def read_notes(self, rank: int) -> list[Note]:
        """What a rank has noted in all attempts."""
        path = self.notes / f"rank-{rank}.jsonl"
        lines = path.read_text().split("\n")[:-1] if path.exists() else []
        return [json.loads(line) for line in lines]

    def first_note(self, attempt: int, phase: str) -> Note | None:
        """The earliest note of any rank that an attempt has reached a phase."""
        notes = [note for rank in range(NUM_RANKS) for note in self.read_notes(rank)]
        found = [each for each in notes if (each["attempt"], each["phase"]) == (attempt, phase)]
        return min(found, key=lambda note: note["time"], default=None)

    def wait_for(self, claim: Callable[[], Any]) -> Any:
        """What `claim` returns once it is true."""
        deadline = time.monotonic() + LIMIT_SECONDS
        while not (found := claim()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.process.kill()
                raise SystemExit(f"error: the run has ended: {self.process.communicate()[1]}")
            time.sleep(0.01)
        return found

    def saved_step(self) -> int:
        """The step of the latest checkpoint that is there under its name."""
        names = [path.name for path in self.checkpoints.glob("step-*")]
        return max((int(name[5:]) for name in names if name[5:].isdigit()), default=0)

    def finish(self) -> tuple[dict[str, Any], str]:
        """Its report and what it said."""
        out, said = self.process.communicate(timeout=LIMIT_SECONDS)
        if self.process.returncode:
            raise SystemExit(f"error: the run ended with {self.process.returncode}: {said}")
        return json.loads(out), said


def kill_one(
    training: Training, attempt: int, setting: Setting, usual: "Usual", draw: random.Random
) -> Record:
    """Kill a random rank of an attempt at a random moment; what was under way."""
    ranks = training.wait_for(
        lambda: len(found := training.find_ranks(attempt)) == NUM_RANKS and found
    )
    started = time.time()
    if draw.random() < START_SHARE:
        time.sleep(draw.uniform(0, usual.start_seconds))
    else:
        training.wait_for(lambda: training.first_note(attempt, "step"))
        time.sleep(draw.uniform(0, usual.train_seconds / (setting.kills_per_run + 1)))
    rank = draw.randrange(NUM_RANKS)
    saved = training.saved_step()
    os.kill(ranks[rank], signal.SIGKILL)
    killed = time.time()
    notes = [each for each in training.read_notes(rank) if each["attempt"] == attempt]
    last = notes[-1] if notes else {"phase": "start", "step": 0}
    done = max((each["step"] for each in notes if each["phase"] == "after step"), default=0)
    return {
        "attempt": attempt,
        "rank": rank,
        "started": started,
        "killed": killed,
        "phase": last["phase"],
        "step": last["step"],
        "steps_done": max(done, saved),
        "steps_saved": saved,
    }


def add_resumption(training: Training, kills: Sequence[Record]) -> Iterator[Record]:
    """What each kill cost; of one that was followed by another before training, the time is not
    known."""
    notes = [training.first_note(attempt, "step") for attempt in range(len(kills) + 1)]
    for number, kill in enumerate(kills):
        attempt = next(each for each in range(number + 1, len(notes)) if notes[each] is not None)
        note = notes[attempt]
        assert note is not None
        is_next = attempt == number + 1
        restarted = kills[attempt]["started"] if is_next and attempt < len(kills) else None
        record = {key: kill[key] for key in kill if key not in ("started", "killed")}
        record["resumed_after"] = note["step"] - 1
        record["steps_lost"] = max(0, kill["steps_done"] - record["resumed_after"])
        record["restart_seconds"] = restarted and round(restarted - kill["killed"], 3)
        record["resume_seconds"] = round(note["time"] - kill["killed"], 3) if is_next else None
        yield record


@dataclass(frozen=True, slots=True, kw_only=True)
class Usual:
    """The undisturbed run."""

    training: Training
    losses: list[float]
    start_seconds: float
    """Until the first step."""
    train_seconds: float


def run_undisturbed(setting: Setting) -> Usual:
    """The run to compare with."""
    training = Training(setting, "undisturbed", 0)
    report, _ = training.finish()
    first = training.first_note(0, "step")
    assert first is not None
    return Usual(
        training=training,
        losses=report["losses"],
        start_seconds=first["time"] - training.began,
        train_seconds=time.time() - first["time"],
    )


def run_disturbed(
    setting: Setting, number: int, usual: Usual, draw: random.Random
) -> tuple[list[Record], Record]:
    """The kills of one run, and how it ended."""
    training = Training(setting, f"run-{number}", setting.kills_per_run)
    kills = [
        {"run": number, **kill_one(training, attempt, setting, usual, draw)}
        for attempt in range(setting.kills_per_run)
    ]
    report, said = training.finish()
    is_same, num_tensors = same_tensors(
        usual.training.checkpoints / f"step-{setting.steps:08d}",
        training.checkpoints / f"step-{setting.steps:08d}",
    )
    end = {
        "run": number,
        "steps": len(report["losses"]),
        "same_losses": report["losses"] == usual.losses,
        "same_bits": is_same,
        "tensors": num_tensors,
        "told": said.count("was killed by signal 9"),
        "lines": len(said.splitlines()),
    }
    return list(add_resumption(training, kills)), end


def same_tensors(one: Path, other: Path) -> tuple[bool, int]:
    """Whether two checkpoints have the same bits, and how many tensors they have."""
    first, second = (_read_bits(path) for path in (one, other))
    return first == second, len(first)


def _read_bits(path: Path) -> dict[str, bytes]:
    from safetensors.torch import load_file

    found: dict[str, bytes] = {}
    for file in path.glob("*.safetensors"):
        found |= {name: each.numpy().tobytes() for name, each in load_file(file).items()}
    return found


def summarise(kills: Sequence[Record], ends: Sequence[Record]) -> Record:
    """All kills in one object."""
    seconds = [each["resume_seconds"] for each in kills if each["resume_seconds"] is not None]
    restart = [each["restart_seconds"] for each in kills if each["restart_seconds"] is not None]
    phases = [each["phase"].removeprefix("after ") for each in kills]
    return {
        "kills": len(kills),
        "phases": {phase: phases.count(phase) for phase in sorted(set(phases))},
        "runs_with_same_bits": sum(each["same_bits"] and each["same_losses"] for each in ends),
        "runs": len(ends),
        "lost_beyond_checkpoint": sum(
            max(0, each["steps_saved"] - each["resumed_after"]) for each in kills
        ),
        "most_steps_lost": max(each["steps_lost"] for each in kills),
        "median_restart_seconds": round(median(restart), 3) if restart else None,
        "median_resume_seconds": round(median(seconds), 3),
        "most_resume_seconds": max(seconds),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print one JSON object a kill and a run, then a summary; 1 where anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--kills", type=int, default=4, help="of each run (default: 4)")
    parser.add_argument("--steps", type=int, default=200, help="of each run (default: 200)")
    parser.add_argument("--every", type=int, default=5, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0, help="of ranks and moments")
    options = parser.parse_args(arguments)
    draw = random.Random(options.seed)
    kills: list[Record] = []
    ends: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="meshwright-faults-") as name:
        setting = Setting(
            folder=Path(name),
            steps=options.steps,
            every=options.every,
            kills_per_run=options.kills,
        )
        write_plan(setting.folder / "plan")
        usual = run_undisturbed(setting)
        for number in range(options.runs):
            some, end = run_disturbed(setting, number, usual, draw)
            for record in (*some, end):
                print(json.dumps(record), flush=True)
            kills += some
            ends.append(end)
    summary = summarise(kills, ends)
    print(json.dumps(summary))
    return int(summary["runs_with_same_bits"] < len(ends) or summary["lost_beyond_checkpoint"] > 0)


if __name__ == "__main__":
    sys.exit(main())
