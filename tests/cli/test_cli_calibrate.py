"""`meshwright calibrate`: from nothing to a plan that knows what its times are worth."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from cli_runner import run

import meshwright as mw
from meshwright.interpreter import module_command
from meshwright.profile.profile import read_profile
from meshwright.simulate.measured import Run

pytest.importorskip("torch", reason="calibrate needs the torch extra")

FACTORY = """
import torch
from torch import nn


def make():
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(64, 96), nn.ReLU(), nn.Linear(96, 64), nn.ReLU())
        loss = lambda y: y.square().mean()
        return {"model": model, "args": (torch.empty(8, 64),), "loss": loss}
"""


def calibrate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "calibrated.py").write_text(FACTORY)
    command = ("calibrate", "calibrated:make", "--device", "cpu", *words)
    environment = {**os.environ, "MESHWRIGHT_CACHE": str(folder / "cache")}
    return subprocess.run(
        module_command("meshwright", *command, "--budget", "1", "--steps", "3"),
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize("ranks", [1, 2])
def test_one_command_measures_all_that_the_next_plan_uses(tmp_path: Path, ranks: int) -> None:
    method = "data" if ranks == 2 else "single"
    words = ("--ranks", str(ranks), "--method", method, "--batches", "2")
    done = calibrate(tmp_path, "-o", "made", *words)
    assert done.returncode == 0, done.stderr
    assert f"Sequential on {ranks} device" in done.stdout
    folder = tmp_path / "made"
    assert f"next: meshwright plan {Path('made/graph.json.gz')} --cluster" in done.stdout
    graph, cluster = mw.load_graph(folder / "graph.json.gz"), mw.cluster(folder / "cluster.yaml")
    assert read_profile(folder / "times.json.gz").batches == (8, 2)
    assert 2.0 in graph.ladders["cpu"]
    (record,) = cluster.calibrations
    assert (record.model, record.device_type) == ("Sequential", "cpu")
    assert (record.num_devices, record.num_hosts) == (ranks, 1)
    assert record.measured_seconds > 0
    assert cluster.num_devices == ranks
    if ranks == 2:  # links were measured, and collectives
        assert {each.collective for each in cluster.tables} >= {"all_reduce"}
    out = tmp_path / "planned"
    arguments = (folder / "graph.json.gz", "--cluster", folder / "cluster.yaml", "-o", out)
    result = run("plan", *arguments, "--method", method, "--budget", 1)
    assert result.code == 0
    assert "(calibrated by" in result.out


def test_ops_are_timed_in_the_regions_that_they_run_in(tmp_path: Path) -> None:
    """A device of its own runs the step on all samples and on those of one of two replicas."""
    words = ("--compile", "--ranks", "2", "--method", "data", "--batches", "4")
    done = calibrate(tmp_path, "-o", "made", *words)
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "made"
    (table,) = read_profile(folder / "times.json.gz").tables
    assert table.software["compiler"] == "inductor"
    assert table.batches == (4, 8)
    for samples in (8, 4):
        assert Run.load(folder / "trial" / f"ran-{samples}" / "run.json.gz").software == dict(
            table.software
        )
    graph = mw.load_graph(folder / "plan" / "graph.json.gz")  # as the trials have timed it
    assert np.isfinite(graph.seconds["cpu"]).all()
    assert 4.0 in graph.ladders["cpu"]
    run = Run.load(folder / "ran" / "run.json.gz")
    assert run.software["compiler"] == "inductor"
    (record,) = mw.cluster(folder / "cluster.yaml").calibrations
    assert record.num_devices == 2


def test_what_a_command_refuses_ends_it(tmp_path: Path) -> None:
    done = calibrate(tmp_path, "-o", "made", "--optimizer", "none-such", "--cluster", "cpu-x1")
    assert done.returncode == 2
    assert "calibrate: `meshwright profile` ended with exit code 2" in done.stderr
    assert done.stdout == ""
