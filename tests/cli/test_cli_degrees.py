"""`meshwright simulate` by degrees, and `meshwright plan` within them."""

from math import inf
from pathlib import Path
from typing import Any

import msgspec
import pytest
from cli_runner import refusal, run

from meshwright import api
from meshwright.cli import plan as plan_command
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.part import Recompute
from meshwright.plan.plan import Plan
from meshwright.plan.request import Request
from meshwright.search.method.hybrid.scope import Scope

MODEL = "gpt:hidden=128,heads=4,layers=4,sequence=64,vocabulary=512,batch=8"
CLUSTER = "h100-x8"
WORDS = (
    "--tensor", 2, "--pipeline", 2, "--data", 2, "--chunks", 2, "--microbatches", 2,
    "--recompute", "selective", "--sequence-parallel", "--zero", 1,
)  # fmt: skip
DEGREES: dict[str, Any] = {
    "tensor": 2, "pipeline": 2, "data": 2, "chunks": 2, "microbatches": 2,
    "recompute": "selective", "sequence_parallel": True, "zero": 1,
}  # fmt: skip


def simulate(*words: object) -> Any:
    return run("simulate", MODEL, "--cluster", CLUSTER, *words)


def plan(*words: object) -> Any:
    return run("plan", MODEL, "--cluster", CLUSTER, "--method", "hybrid", "--budget", 2, *words)


def test_words_are_predicted_as_their_plan_is() -> None:
    graph, cluster = api.load_graph(MODEL), api.cluster(CLUSTER)
    document = simulate(*WORDS, "--json").json
    expected = api.simulate(graph, cluster, Plan.from_degrees(graph, cluster, **DEGREES))
    assert document["step_seconds"] == pytest.approx(expected.step_seconds, rel=1e-12)
    assert document["peak_bytes"] == pytest.approx(list(expected.peak_bytes))
    assert document["plan"] is None
    assert document["hybrid"]["degrees"] == {**DEGREES, "schedule": "interleaved-1f1b"}
    assert len(document["hybrid"]["stages"]) == 4


def test_text_has_degrees_and_stages() -> None:
    result = simulate(*WORDS)
    assert result.code == 0
    for text in ("tensor 2, pipeline 2 x 2 chunks, data 2", "--tensor 2 --seq", "embedding", "MFU"):
        assert text in result.out
    assert max(map(len, result.out.splitlines())) <= 100


def test_a_compiled_step_has_fewer_ops() -> None:
    assert api.load_graph(MODEL, compile=True).num_ops < api.load_graph(MODEL).num_ops
    eager, compiled = (simulate("--data", 8, "--json", *more).json for more in ((), ["--compile"]))
    assert 0 < compiled["step_seconds"] < eager["step_seconds"]


def test_plan_and_simulate_agree_on_the_same_words(tmp_path: Path) -> None:
    limits = ("--tensor", 2, "--pipeline", 2, "--data", 2, "--zero", 1, "--recompute", "full")
    found = plan(*limits, "--chunks", "1,2", "--sequence-parallel", "-o", tmp_path / "o", "--json")
    told = found.json["hybrid"]["degrees"]
    assert (told["tensor"], told["pipeline"], told["data"], told["zero"]) == (2, 2, 2, 1)
    assert told["sequence_parallel"] is True
    assert told.get("chunks", 1) in (1, 2)
    words: list[object] = []
    for name, value in told.items():
        option = f"--{name.replace('_', '-')}"
        shown = ",".join(map(str, value)) if isinstance(value, list) else value
        words += [option] if value is True else [option, shown]
    again = simulate(*words, "--json").json
    assert again["step_seconds"] == pytest.approx(found.json["step_seconds"], rel=1e-12)
    of_file = simulate("--plan", tmp_path / "o" / "plan.json", "--json").json
    assert of_file["step_seconds"] == again["step_seconds"]
    assert of_file["hybrid"] == again["hybrid"]


def test_words_of_plan_are_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    given: list[Request] = []

    def search(request: Request, *_arguments: object, **_options: object) -> Answer:
        given.append(request)
        return Answer(
            method="hybrid", plan=None, step_seconds=inf, bound_seconds=0.0, stop=Stop.INFEASIBLE
        )

    monkeypatch.setattr(plan_command, "recall_or_search", search)
    words = ("--pipeline", "2,4", "--data", 2, "--chunks", "1,2", "--pods", 1, "--zero", "0,1")
    plan(*words, "--no-sequence-parallel", "--microbatches", "2,4", 8, "--recompute", "none,full")
    assert given[0].scope == Scope(
        pipeline=(2, 4), data=(2,), chunks=(1, 2), pods=(1,), zero=(0, 1),
        sequence_parallel=False, recompute=(Recompute.NONE, Recompute.FULL),
    )  # fmt: skip
    assert given[0].microbatches == (2, 4, 8)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "simulate: needs --plan FILE, or degrees such as --data 4; got neither"),
        (
            ("--plan", "p", "--sequence-parallel"),
            "simulate: needs --plan FILE or degrees, got both --plan and --sequence-parallel",
        ),
        (
            ("--tensor", 3),
            "tensor x context x data x pipeline: must be the 8 devices of cluster h100-x8, "
            "got 3 x 1 x 2 x 1 = 6",
        ),
        (("--tensor", 8), "tensor must divide heads of layer 1 (4), got 8"),
        (
            ("--tensor", 0),
            "argument --tensor: must be a whole number from 1, got '0' "
            "(see `meshwright simulate --help`)",
        ),
    ],
)
def test_simulate_refuses(words: tuple[object, ...], message: str) -> None:
    assert refusal("simulate", MODEL, "--cluster", CLUSTER, *words) == message


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--chunks", 2, "--schedule", "1f1b"),
            "scope: chunks above 1 need schedule interleaved-1f1b and 1 another, got chunks 2 and "
            "1f1b",
        ),
        (
            ("--pipeline", "2,x"),
            "argument --pipeline: must be a whole number from 1, got 'x' "
            "(see `meshwright plan --help`)",
        ),
    ],
)
def test_plan_refuses(words: tuple[object, ...], message: str) -> None:
    assert refusal("plan", MODEL, "--cluster", CLUSTER, *words) == message


def test_commands_read_layers(tmp_path: Path) -> None:
    document = {
        "format": "meshwright.plan",
        "version": 4,
        "parts": [
            {"layers": "embedding-2", "devices": ["host0.0", "host0.1"], "zero": 1},
            {"layers": ["3-4", "head"], "devices": ["host0.2", "host0.3"], "zero": 1},
        ],
        "schedule": {"kind": "1f1b", "microbatches": 2},
    }
    words = ("simulate", MODEL, "--cluster", "h100-x4", "--json")
    path = tmp_path / "plan.json"
    path.write_bytes(msgspec.json.encode(document))
    written = run(*words, "--plan", path).json
    degrees = ("--pipeline", 2, "--microbatches", 2, "--layers", "3,3", "--zero", 1)
    assert written["step_seconds"] == run(*words, *degrees).json["step_seconds"]
    path.write_bytes(path.read_bytes().replace(b"embedding-2", b"embedding-1"))
    expected = f"{path}: layer 2: must be in exactly one part, is in none"
    assert refusal(*words, "--plan", path) == expected


def test_a_plan_by_hand_is_shown_by_its_stages() -> None:
    words = ("plan", MODEL, "--cluster", "h100-x4", "--method", "manual", "--budget", 5, "--json")
    found = run(*words).json
    assert found["method"] == "manual"
    assert 0 < found["bound_seconds"] <= found["step_seconds"]
    # All of a small model fits on each of four devices.
    (stage,) = found["hybrid"]["stages"]
    assert stage["layers"] == ["embedding", "head"]
