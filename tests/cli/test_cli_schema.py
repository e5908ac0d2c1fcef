"""Answers of all kinds are what the shipped schema says, wherever they are written."""

import json
import math
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import refusal, run

import meshwright as mw
from json_schema import CHECKS, NOTES, is_valid
from meshwright.cli import plan as plan_command
from meshwright.cli.parser.schema import FORMS
from meshwright.cli.schema import TITLES
from meshwright.form import DIALECT, list_fields
from meshwright.plan.answer import Answer, RunnerUp, Stop
from meshwright.plan.plan import place_ops
from meshwright.plan.record import AnswerRecord
from meshwright.search.method.name import LAYERED, METHODS
from meshwright.search.warm import small_rails
from meshwright.simulate.record import SimulationRecord

ANSWER, SIMULATION = mw.schema("answer"), mw.schema("simulation")
MODEL = "gpt:hidden=64,heads=4,layers=2,sequence=16,vocabulary=64,batch=8"


def fits(document: Any, schema: dict[str, Any] = ANSWER) -> bool:
    return is_valid(json.loads(json.dumps(document, allow_nan=False)), schema, schema)


def plan(method: str, model: str = MODEL, cluster: str = "h100-x2") -> Answer:
    return mw.plan(model, cluster, method=method, budget_seconds=0.05)


@pytest.mark.parametrize("method", METHODS)
def test_the_answer_of_every_method_fits(method: str) -> None:
    answer = plan(method)
    assert answer.plan is not None
    document = answer.to_dict()
    assert fits(document)
    assert (document["cluster"], document["batch"]) == ("h100-x2", 8)
    assert (document["hybrid"] is not None) == (answer.method.removeprefix("auto:") in LAYERED)


def test_an_answer_without_a_plan_fits_and_has_the_same_fields() -> None:
    huge = "gpt:hidden=4096,heads=32,layers=24,sequence=64,batch=4"
    answers = [plan(method, huge, "1080ti-x2") for method in ("data", "hybrid", "auto")]
    for answer in answers:
        document = answer.to_dict()
        assert answer.stop is Stop.INFEASIBLE
        assert fits(document)
        assert (document["step_seconds"], document["gap"]) == (None, None)
        assert list(document) == list(plan("single").to_dict())


def test_answers_that_were_cut_short_or_cannot_run_fit() -> None:
    answer = plan("single")
    assert answer.plan is not None
    for stop in Stop:
        assert fits(replace(answer, stop=stop).to_dict())
    bare = Answer(
        method="mine", plan=None, step_seconds=math.inf, bound_seconds=math.nan, stop=Stop.LIMIT
    )
    assert fits(bare.to_dict())
    # A plan of a graph that was not captured: nothing can run it, and it has an answer.
    graph, cluster = mw.load_graph("mlp"), mw.cluster("v100-32-x2")
    found = mw.plan(graph, cluster, method="heft", budget_seconds=0.05)
    placed = place_ops(graph.op_names, [0] * graph.num_ops, [cluster.devices[0].name])
    other = RunnerUp(plan=placed, step_seconds=math.inf, description="one device")
    assert fits(replace(found, runner_ups=(other,)).to_dict("plan.json"))


def test_answers_with_an_allocation_fit() -> None:
    rails = small_rails()
    answer = mw.plan("mlp", rails, method="data", budget_seconds=0.05, allocate=True)
    document = answer.to_dict()
    assert document["uniform_seconds"] > 0
    assert document["allocations"]
    assert fits(document)


def test_command_file_and_python_have_one_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = plan("hybrid")
    monkeypatch.setattr(plan_command, "recall_or_search", lambda *_, **__: answer)
    words = ("plan", MODEL, "--cluster", "h100-x2", "--method", "hybrid", "-o", tmp_path, "--json")
    printed = run(*words).json
    written = json.loads((tmp_path / "answer.json").read_text())
    assert printed == answer.to_dict(str(tmp_path / "plan.json"))
    assert written == answer.to_dict("plan.json")
    assert list(written) == list(answer.to_dict()) == list(AnswerRecord.__struct_fields__)


def test_every_field_of_an_answer_is_in_the_record() -> None:
    left = {each.name for each in fields(Answer)} - set(AnswerRecord.__struct_fields__)
    assert left == {"waits", "draw"}  # what a notebook shows, read off a simulation of the plan


@pytest.mark.parametrize("words", [("--data", 2), ("--pipeline", 2, "--recompute", "full")])
def test_simulations_fit(words: tuple[object, ...], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    document = run(
        "simulate", MODEL, "--cluster", "h100-x2", *words, "--trace", trace, "--json"
    ).json
    assert fits(document, SIMULATION)
    assert list(document) == list(SimulationRecord.__struct_fields__)
    assert (document["format"], document["trace"]) == ("meshwright.simulation", str(trace))
    assert document["hybrid"]["stages"]


def test_what_is_missing_or_unknown_does_not_fit() -> None:
    document = plan("hybrid").to_dict()
    for name in document:
        assert not fits({key: value for key, value in document.items() if key != name}), name
    assert not fits(document | {"more": 1})
    assert not fits(document | {"version": 2})
    assert not fits(document | {"stop": "TIRED"})
    stage = document["hybrid"]["stages"][0]
    for change in ({"layers": ["embedding"]}, {"layers": ["a", "b", "c"]}, {"more": 1}):
        changed = {**document["hybrid"], "stages": [stage | change]}
        assert not fits(document | {"hybrid": changed}), change


@pytest.mark.parametrize("name", FORMS)
def test_schemas_are_printed_and_described(name: str) -> None:
    schema = run("schema", name).json
    assert schema == mw.schema(name)
    assert schema["$schema"] == DIALECT
    for definition in schema["$defs"].values():
        assert set(definition) <= {*CHECKS, *NOTES, "additionalProperties"}
        assert definition["additionalProperties"] is False
    text = run("schema", name, "--text").out
    for form in TITLES[name]:
        for row in list_fields(schema, form):
            assert f"  {row.name}" in text
            assert row.description.endswith("."), row


def test_a_form_that_does_not_exist_is_refused() -> None:
    known = "answer, simulation, explanation, audit, cluster, whatif, sweep, replan"
    with pytest.raises(mw.InputError, match=f"must be one of {known}, got 'x'"):
        mw.schema("x")
    assert "choose from" in refusal("schema", "x")
