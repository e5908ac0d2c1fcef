"""Who runs the plan, from the command line and from Python to the plan's folder and records."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import refusal, run

from meshwright import api
from meshwright.plan.plan import Plan
from meshwright.planned import read_plan_folder

MODEL = "gpt:hidden=128,heads=4,layers=4,sequence=64,vocabulary=512,batch=8,precision=bf16"
CLUSTER = "h100-x8"
WORDS = ("--tensor", 2, "--pipeline", 2, "--data", 2, "--microbatches", 2)


def simulate(*words: object) -> Any:
    return run("simulate", MODEL, "--cluster", CLUSTER, *WORDS, *words)


def test_a_step_is_predicted_for_the_runtime_that_is_named() -> None:
    graph, cluster = api.load_graph(MODEL), api.cluster(CLUSTER)
    plan = Plan.from_degrees(graph, cluster, tensor=2, pipeline=2, data=2, microbatches=2)
    own, theirs = simulate("--json").json, simulate("--runtime", "megatron", "--json").json
    assert (own["runtime"], theirs["runtime"]) == ("meshwright", "megatron")
    expected = api.simulate(graph, cluster, plan, runtime="megatron")
    assert theirs["step_seconds"] == pytest.approx(expected.step_seconds, rel=1e-12)
    assert theirs["step_seconds"] > own["step_seconds"]
    same = api.simulate(graph, cluster, replace(plan, runtime="megatron"))
    assert same.step_seconds == expected.step_seconds
    shown = simulate("--runtime", "megatron")
    assert any(line.split()[1:3] == ["runtime", "megatron"] for line in shown.out.splitlines())
    assert theirs["hybrid"]["degrees"]["tensor"] == 2


def test_gradients_in_fp32_take_two_bytes_a_parameter_more() -> None:
    held = {
        name: simulate("--runtime", name, "--zero", 1, "--json").json["hybrid"]["stages"][0]
        for name in ("megatron", "deepspeed")
    }
    sizes = {name: each["memory_bytes"]["gradients"] for name, each in held.items()}
    weights = held["megatron"]["memory_bytes"]["parameters"]
    assert sizes["megatron"] == pytest.approx(2 * weights, rel=1e-9)
    assert sizes["deepspeed"] == pytest.approx(weights, rel=1e-9)


def test_a_search_names_its_runtime_everywhere(tmp_path: Path) -> None:
    result = run(
        "plan", MODEL, "--cluster", CLUSTER, "--method", "hybrid", "--budget", 2, "--runtime",
        "torchtitan", "--pipeline", 2, "-o", tmp_path / "o", "--json",
    )  # fmt: skip
    assert result.json["runtime"] == "torchtitan"
    plan = Plan.load(tmp_path / "o" / "plan.json")
    assert plan.runtime == "torchtitan"
    again = run("simulate", "--plan", tmp_path / "o", "--json").json
    assert again["runtime"] == "torchtitan"
    assert again["step_seconds"] == pytest.approx(result.json["step_seconds"], rel=1e-9)
    # Whoever runs it by this program runs it as this program does.
    assert read_plan_folder(tmp_path / "o")[2].runtime == "meshwright"


def test_auto_plans_for_others_by_hybrid_alone() -> None:
    answer = api.plan(MODEL, "h100-x2", budget_seconds=1, runtime="fsdp2")
    assert (answer.method, answer.runtime) == ("auto:hybrid", "fsdp2")
    assert answer.plan is not None
    assert answer.notes[0] == "only hybrid was tried: it plans for fsdp2"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("simulate", *WORDS, "--runtime", "megatron", "--granularity", "op"),
         "granularity op: the runtime must be meshwright, got megatron"),
        (("plan", "--runtime", "fsdp2", "--method", "heft"),
         "runtime fsdp2: the method must be hybrid or auto, got 'heft'"),
    ],
)  # fmt: skip
def test_what_a_runtime_cannot_be_asked_is_refused(words: tuple[Any, ...], message: str) -> None:
    command, *rest = words
    assert message in refusal(command, MODEL, "--cluster", CLUSTER, *rest)
