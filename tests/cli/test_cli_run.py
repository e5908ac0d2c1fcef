"""`meshwright run`: emulated plans on local processes, and what is refused."""

import io
import json
import subprocess
import sys
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch", reason="execution needs the torch extra")

import cli_runner
from cli_runner import refusal

from canary import heard, plant
from listeners import find_descendants, find_listeners
from meshwright.cli.progress import StepLine, shown_steps
from meshwright.cli.start import rank_commands
from meshwright.errors import InputError
from meshwright.execute.log import Entry
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Plan, place_ops
from meshwright.source import load_graph
from small import connected, layers, stages


def write_plan(folder: Path, microbatches: int = 4) -> tuple[Graph, Plan]:
    """Two stages of 20 ms a microbatch each way, between which 100 kB a microbatch go."""
    graph = layers(2, forward=0.08, backward=0.08, activation=4e5, batch=4)
    plan = stages(graph, [["d0"], ["d1"]], "1f1b", microbatches)
    save_folder(folder, graph, plan)
    return graph, plan


def save_folder(folder: Path, graph: Graph, plan: Plan) -> None:
    """What `plan -o` leaves, on two devices."""
    folder.mkdir()
    plan.save(folder / "plan.json")
    graph.save(folder / "graph.json.gz")
    connected(2, bandwidth=1e9).save(folder / "cluster.yaml")


def test_an_emulated_plan_takes_its_predicted_time_and_is_compared(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan")
    log = plant(tmp_path, spared=("meshwright",))  # which Python itself would run
    words = ["run", "plan", "--emulate", "--steps", "4", "--json", "-o", "ran"]
    with subprocess.Popen(
        [sys.executable, "-m", "meshwright", *words],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path,
    ) as run:  # fmt: skip
        listeners = set()
        while run.poll() is None:
            listeners |= find_listeners(find_descendants(run.pid))
            time.sleep(0.02)
        out, said = run.communicate()
    assert run.returncode == 0, said
    # The store and gloo listen while it runs, on nothing that another machine could reach.
    assert listeners
    assert all(address.is_loopback for address, _ in listeners)
    document: dict[str, Any] = json.loads(out)
    assert document["ranks"] == 2
    assert document["is_emulated"]
    # Whatever else the machine does: never faster than predicted, and of the same size.
    assert document["step_seconds"] > 0.95 * document["predicted_seconds"]
    assert document["step_seconds"] < 3 * document["predicted_seconds"] + 0.5
    compared = cli_runner.run("compare", tmp_path / "plan", tmp_path / "ran", "--json")
    assert compared.code == 0, compared.err
    assert compared.json["measured_seconds"] > 0
    assert {path.name for path in (tmp_path / "ran").iterdir()} == {
        "run.json.gz", "trace.json", "plan.json", "cluster.yaml", "graph.json.gz",
    }  # fmt: skip
    assert heard(log) == []  # by the launcher and by its ranks


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "none", "--emulate"], "none: no such plan"),
        (["run", "plan"], "one of the arguments --model --emulate --script is required"),
        (["run", "plan", "--model", "nothing"], "no model is called 'nothing'"),
        (["run", "plan", "--emulate", "--network", "ovs"], "--network: needs --testbed, got ovs"),
        (["run", "plan", "--emulate", "--weights", "none"], "weights none: must be a folder"),
        (["export", "none", "--to", "weights", "-o", "out"], "checkpoints none: there is none"),
        (["run", "plan", "--emulate", "--testbed", "--name", "a b"], "a name must be 1 to 16"),
        (["run", "plan", "--emulate", "--check"], "--check: needs --model"),
        (["run", "plan", "--emulate", "--backend", "nccl"], "nccl: ranks must compute on cuda"),
        (
            ["run", "plan", "--model", "gpt2"],
            "must be those of a captured training step to be trained",
        ),
        (
            ["run", "gpt2", "--model", "gpt2", "--precision", "fp32", "--optimizer", "sgd"],
            "are _fused_adamw_, got sgd",
        ),
        (["run", "gpt2", "--model", "gpt2"], "are _fused_adamw_, got mixed-adamw"),
        (
            ["run", "gpt2", "--model", "gpt2", "--precision", "fp32", "--autocast", "bf16"],
            "has no op in bf16",
        ),
        (["run", "thirds", "--emulate"], "a batch of 4 samples cannot be cut into 3 equal"),
    ],
)
def test_what_cannot_run_is_refused_in_one_line(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_plan(tmp_path / "plan")
    write_plan(tmp_path / "thirds", microbatches=3)
    graph = load_graph("gpt2", precision="fp32")
    save_folder(tmp_path / "gpt2", graph, place_ops(graph.op_names, [0] * graph.num_ops, ["d0"]))
    monkeypatch.chdir(tmp_path)
    said = refusal(*words)
    assert message in said
    assert "rank " not in said  # none has been started


def test_a_terminal_has_one_line_that_is_drawn_over_itself(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, now = io.StringIO(), [0.0]
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    line = StepLine(4, clock=lambda: now[0])
    for step, moment in enumerate((0.0, 0.01, 0.2, 0.3), start=1):
        now[0] = moment
        line(Entry(step, 1 / step, 0.1, 0.5, 16.0))
    # The second came too early; the last is erased, as the losses are printed then.
    assert terminal.getvalue() == (
        "\r\x1b[K[#####...............] step 1 of 4: loss 1.0000, 16 samples/s, 1.5 s left\r"
        "\r\x1b[K[###############.....] step 3 of 4: loss 0.3333, 16 samples/s, 500 ms left\r"
        "\r\x1b[K"
    )
    assert len(shown_steps(Namespace(quiet=False, steps=4))) == 1
    assert shown_steps(Namespace(quiet=True, steps=4)) == ()
    monkeypatch.setattr(terminal, "isatty", lambda: False)
    assert shown_steps(Namespace(quiet=False, steps=4)) == ()


def test_a_host_that_no_variable_can_name_is_refused() -> None:
    with pytest.raises(InputError, match=r"run: host 'h\\x00': its name must have no NUL"):
        rank_commands(["h\0"], None)


def test_a_script_of_ones_own_is_started_by_torchrun(tmp_path: Path) -> None:
    write_plan(tmp_path / "plan")
    words = ["run", tmp_path / "plan", "--script", "train.py --epochs 3"]
    assert refusal(*words) == "--script: needs --commands; torchrun starts scripts, not Meshwright"
    lines = cli_runner.run(*words, "--commands", "--restarts", 2).out.splitlines()
    assert lines[1].endswith("--master-port 29500 --max-restarts 2 train.py --epochs 3")
    assert lines[-1].endswith("exec python train.py --epochs 3'")
