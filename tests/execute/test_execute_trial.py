"""A plan is tried before its ranks start: what a rank would refuse is refused then."""

import subprocess
import sys
from functools import cache
from pathlib import Path
from unittest.mock import patch

import pytest

pytest.importorskip("torch", reason="execution needs the torch extra")

import expert_models
import torch
from small_models import make_workload

from meshwright.capture.capture import capture_workload
from meshwright.errors import InputError
from meshwright.execute.apart import check_apart
from meshwright.execute.bind_rank import bind_rank
from meshwright.execute.group import pick_backend
from meshwright.execute.lowered import lower_frozen
from meshwright.execute.settings import Settings
from meshwright.execute.steps import PlannedSteps
from meshwright.execute.trial import differing_devices, try_plan
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Part, Plan
from small import connected

OPTIMIZER = "sgd"
SETTINGS = Settings(optimizer=OPTIMIZER, device="cpu")


@cache
def graph() -> Graph:
    return capture_workload(make_workload("perceptron"), OPTIMIZER)


def replicas(*shares: float) -> Plan:
    """All ops on as many devices as there are shares."""
    devices = tuple(f"d{number}" for number in range(len(shares)))
    return Plan(parts=(Part(ops=graph().op_names, devices=devices, shares=shares),))


def test_a_plan_that_runs_is_not_refused() -> None:
    plan = replicas(0.25, 0.75)
    with patch("meshwright.execute.trial.bind_rank", wraps=bind_rank) as bound:
        try_plan(graph(), connected(3), plan, lambda: make_workload("perceptron"), SETTINGS)
    assert [each.args[2] for each in bound.call_args_list] == [0, 1]  # as ranks do


@pytest.mark.parametrize(
    ("built", "shares", "reason"),
    [
        ("inception", (0.5, 0.5), "plan again with the same model"),
        ("perceptron", (0.99, 0.01), "must be at least one sample"),
    ],
)
def test_what_a_rank_would_refuse_is_refused(
    built: str, shares: tuple[float, ...], reason: str
) -> None:
    with pytest.raises(InputError, match=reason):
        try_plan(graph(), connected(3), replicas(*shares), lambda: make_workload(built), SETTINGS)


def test_of_devices_that_do_the_same_one_is_tried() -> None:
    plan = replicas(0.25, 0.25, 0.5)
    assert list(differing_devices(lower_frozen(graph(), connected(3), plan))) == [0, 2]


def test_experts_take_each_sample_by_itself() -> None:
    # Where the rows of an expert end is a sum over samples, but only over those of the same rows.
    workload = expert_models.make_workload("two of four")
    graph = capture_workload(workload, OPTIMIZER)
    assert "_grouped_mm" in graph.kind
    assert "cumsum" in graph.kind
    steps = PlannedSteps(workload, graph, OPTIMIZER)
    assert steps[2].samples == 2
    check_apart(graph, steps)


def test_nccl_is_refused_where_ranks_are_on_the_cpu() -> None:
    cpu = torch.device("cpu")
    assert pick_backend(cpu, None) == pick_backend(cpu, "gloo") == "gloo"
    with pytest.raises(InputError, match="backend nccl: ranks must compute on cuda, not on cpu"):
        pick_backend(cpu, "nccl")


@pytest.mark.slow
@pytest.mark.parametrize("shares", [(0.5, 0.5), (1.0,)])
def test_where_the_model_is_another_one_line_says_so_and_no_two_ranks_start(
    tmp_path: Path, shares: tuple[float, ...]
) -> None:
    (tmp_path / "other.py").write_text(
        "import torch\n"
        "def make():\n"
        "    print('building')\n"
        "    return torch.nn.Linear(4, 4), (torch.zeros(16, 4),), {}\n"
    )
    folder = tmp_path / "plan"
    folder.mkdir()
    graph().save(folder / "graph.json.gz")
    connected(3).save(folder / "cluster.yaml")
    replicas(*shares).save(folder / "plan.json")
    words = ["run", "plan", "--model", "other:make", "--optimizer", "sgd"]
    done = subprocess.run(
        [sys.executable, "-m", "meshwright", *words],
        capture_output=True, text=True, cwd=tmp_path, timeout=200,
    )  # fmt: skip
    assert done.returncode == 2
    said = done.stderr.splitlines()
    assert said[0].startswith("meshwright: importing and calling other:make")
    assert len(said) == 2
    rows = round(16 * shares[0])  # of the first rank, which is tried
    assert f"loss: must be a scalar tensor, got ({rows}, 4)" in said[1]
    assert ("rank 0 (" in said[1]) == (len(shares) == 1)  # which needs no trial
    assert len(shares) == 1 or done.stdout == ""
