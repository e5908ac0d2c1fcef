"""Runs on a dataset that are killed or asked to stop at any moment train on every sample once.

The model counts: every sample has a weight of its own, whose gradient is the same at every visit.
"""

import json
import os
import random
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="execution needs the torch extra")

from forked import start_forked
from places import Place, read_bits, save_plan, saved_steps
from small_plans import data_plan, pipeline_plan

from meshwright.plan.plan import ScheduleKind
from meshwright.simulate.measured import Run
from meshwright.source import capture_model
from small import connected
from waiting import wait_until

SAMPLES, BATCH, EVERY, RATE = 50, 8, 5, 0.5
MANY = 1000
"""Steps of a run that outlasts twenty interruptions."""
COUNTING = f"""
import time, torch
from torch import nn

NOTHING = torch.zeros(8)  # of the module: it is imported for the model as well

class Numbers(torch.utils.data.Dataset):
    def __len__(self):
        return {SAMPLES}

    def __getitem__(self, index):
        time.sleep(0.002)
        draw = torch.Generator().manual_seed(index)
        return torch.tensor(index), torch.randn(8, generator=draw) + float(NOTHING.sum())

class Counting(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = nn.Embedding({SAMPLES}, 1)
        nn.init.zeros_(self.seen.weight)
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, ids, x):
        return (self.second(self.first(x).tanh()).square() + self.seen(ids)).mean()

def model():
    ids = torch.arange({BATCH})
    return Counting(), (ids, torch.zeros({BATCH}, 8))
"""


@pytest.fixture
def counting(place: Place, monkeypatch: pytest.MonkeyPatch) -> Place:
    """The place with the model that counts, and plans for it."""
    if not (place.folder / "counting.py").exists():
        (place.folder / "counting.py").write_text(COUNTING)
        monkeypatch.syspath_prepend(str(place.folder))
        graph = capture_model("counting:model", optimizer="sgd")
        save_plan(place.folder / "count-alone", graph, connected(1), data_plan(graph, 1))
        save_plan(place.folder / "count-data", graph, connected(2), data_plan(graph, 2))
        stages = pipeline_plan(graph, 2, 2, ScheduleKind.ONE_F_ONE_B, 2)
        save_plan(place.folder / "count-pipeline", graph, connected(2), stages)
    return place


def options(checkpoints: str, steps: int, workers: int = 1) -> list[str]:
    return [
        "--model", "counting:model", "--data", "counting:Numbers", "--shuffle",
        "--workers", str(workers),
        "--optimizer", "sgd", "--learning-rate", str(RATE), "--steps", str(steps), "--json",
        "--checkpoint", checkpoints, "--every", str(max(EVERY, steps // 100)), "--seed", "3",
    ]  # fmt: skip


def expected_visits(steps: int) -> list[int]:
    """How often each sample comes, by hand: whole epochs, and the beginning of one."""
    epochs, more = divmod(steps * BATCH, SAMPLES)
    begun = np.random.default_rng([3, epochs]).permutation(SAMPLES)[:more].tolist()
    return [epochs + (sample in begun) for sample in range(SAMPLES)]


def check(folder: Path, out: str, undisturbed: Path, losses: list[float]) -> None:
    bits = read_bits(folder)
    assert bits == read_bits(undisturbed)
    assert json.loads(out)["losses"] == losses
    weights = np.frombuffer(bits["seen.weight"], dtype=np.float32)
    assert (-weights * BATCH / RATE).tolist() == expected_visits(len(losses))


def test_validation_is_logged_and_changes_nothing(counting: Place) -> None:
    def train(*more: str) -> Any:
        words = ["run", "count-alone", *options(f"valid{len(more)}", 10, workers=0), *more]
        code, out, _ = start_forked(words, counting.folder).finish()
        assert code == 0
        return json.loads(out)["losses"]

    more = ("--validation", "counting:Numbers", "--validate-every", "4", "--log", "valid.csv")
    assert train(*more) == train()
    rows = [row.split(",") for row in (counting.folder / "valid.csv").read_text().splitlines()[1:]]
    assert [int(row[0]) for row in rows if row[-1]] == [4, 8, 10]


def test_a_rank_that_is_asked_to_stop_keeps_its_place_in_the_data(counting: Place) -> None:
    def start(checkpoints: str) -> Any:
        # A process that multiprocessing forks as a daemon may have no workers.
        words = ["run", "count-alone", *options(checkpoints, 40, workers=0)]
        return start_forked(words, counting.folder)

    code, out, _ = start("kept-whole").finish()
    assert code == 0
    losses = json.loads(out)["losses"]
    folder = counting.folder / "kept"
    for number in (signal.SIGTERM, signal.SIGKILL, signal.SIGTERM):
        before = saved_steps(folder)
        run = start("kept")
        wait_until(partial(_has_saved, folder, before))
        time.sleep(0.02)
        os.kill(run.process.pid, number)
        code, _, said = run.finish()
        if number == signal.SIGTERM:
            after = saved_steps(folder)[-1]
            assert code == 128 + signal.SIGTERM
            stopped = f"meshwright: stopped after step {after}, with a checkpoint to go on from"
            assert said[-1] == stopped
    code, out, _ = start("kept").finish()
    assert code == 0
    check(folder, out, counting.folder / "kept-whole", losses)


@pytest.mark.parametrize("kept", [(), ("--checkpoint", "stopped-kept", "--every", "1000000")])
def test_a_run_that_is_asked_to_stop_leaves_what_it_measured(
    counting: Place, kept: tuple[str, ...]
) -> None:
    words = ["run", "count-alone", "--model", "counting:model", "--optimizer", "sgd", *kept]
    words += ["--steps", "1000000", "-o", f"stopped{len(kept)}", "--log", f"stopped{len(kept)}.csv"]
    run = start_forked(words, counting.folder)
    log = counting.folder / f"stopped{len(kept)}.csv"
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) > 3)
    assert run.process.pid is not None
    os.kill(run.process.pid, signal.SIGTERM)
    code, out, said = run.finish()
    assert (code, out) == (128 + signal.SIGTERM, "")
    measured = Run.load(counting.folder / f"stopped{len(kept)}" / "run.json.gz")
    steps = len(measured.step_seconds)
    assert len(measured.losses) == steps == len(log.read_text().splitlines()) - 1
    assert np.isfinite(measured.start).any()  # the last step, instruction by instruction
    assert measured.measured_step == steps - 1
    ways = "with" if kept else "without"
    assert f"meshwright: stopped after step {steps}, {ways} a checkpoint to go on from" in said
    if kept:
        assert saved_steps(counting.folder / "stopped-kept") == [steps]


def test_a_resumed_run_prints_its_new_losses_only(counting: Place) -> None:
    def train(steps: int, *more: str) -> str:
        words = ["run", "count-alone", "--model", "counting:model", "--optimizer", "sgd"]
        words += ["--checkpoint", "again", "--steps", str(steps), *more]
        code, out, said = start_forked(words, counting.folder).finish()
        assert code == 0, said
        return out

    assert [line.split(":")[0] for line in train(2).splitlines()[:-1]] == ["step 1", "step 2"]
    assert [line.split(":")[0] for line in train(3).splitlines()[:-1]] == ["step 3"]
    document = json.loads(train(4, "--json"))
    assert (document["first_step"], len(document["losses"])) == (3, 4)


def _has_saved(folder: Path, before: list[int]) -> bool:
    return saved_steps(folder)[-1:] > before[-1:]


def _is_ready(place: Place, folder: Path | None, process: Any) -> bool:
    """Whether ranks are there, and a checkpoint in the folder; or all is over."""
    has_come = len(place.ranks()) == 2 and (folder is None or bool(saved_steps(folder)))
    return has_come or process.poll() is not None


def interrupt(place: Place, process: Any, number: signal.Signals, draw: random.Random) -> int:
    """Send a signal to the launcher, or, as nobody else would, kill a rank; the exit code."""
    ranks = list(place.ranks().values()) if number == signal.SIGKILL else []
    if process.poll() is None:
        os.kill(draw.choice([process.pid, *ranks]), number)
    process.communicate(timeout=200)
    wait_until(lambda: not place.marked())
    return int(process.returncode)


@pytest.mark.slow
@pytest.mark.parametrize("plan", ["count-data", "count-pipeline"])
def test_runs_interrupted_twenty_one_times_count_every_sample_once(
    counting: Place, plan: str
) -> None:
    """kill -9 of the launcher or a rank, SIGTERM and Ctrl-C, at any moment after the start."""
    code, out, said = counting.run(plan, *options("kept-whole", MANY))
    assert code == 0, said
    losses = json.loads(out)["losses"]
    draw, folder = random.Random(plan), counting.folder / "kept"
    numbers = [signal.SIGKILL, signal.SIGTERM, signal.SIGINT] * 7
    draw.shuffle(numbers)
    codes = []
    for moment, number in enumerate(numbers):
        process = counting.start(plan, *options("kept", MANY))
        # Every fourth time while it starts.
        wait_until(partial(_is_ready, counting, folder if moment % 4 else None, process))
        time.sleep(draw.uniform(0.0, 0.8))
        codes.append((number, interrupt(counting, process, number, draw)))
    assert saved_steps(folder)[-1] < MANY  # or nothing was interrupted in the end
    code, out, said = counting.run(plan, *options("kept", MANY))
    assert code == 0, said
    check(folder, out, counting.folder / "kept-whole", losses)
    assert {code for number, code in codes if number is signal.SIGTERM} == {143}
    assert {code for number, code in codes if number is signal.SIGINT} == {130}
