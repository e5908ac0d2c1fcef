"""`meshwright explain` for people and programs, of folders with a plan and without one."""

import json
from pathlib import Path

import pytest
from cli_runner import refusal, run

import meshwright as mw
from json_schema import is_valid

MODEL = "gpt:hidden=64,heads=4,layers=2,sequence=16,vocabulary=64,batch=8"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plan of data parallelism on two devices."""
    path = tmp_path_factory.mktemp("explain")
    assert run("plan", MODEL, "--cluster", "h100-x2", "--method", "data", "-o", path).code == 0
    return path


def test_a_plan_is_explained_in_lines_that_fit(folder: Path) -> None:
    result = run("explain", folder, "--simulations", 3)
    assert result.code == 0
    for head in (
        "What the step is spent on, by the critical path",
        "The critical path",
        "What each decision is worth, by simulating the other one",
        "Plans of other kinds, and what they lose their time to",
        "Memory at its fullest",
    ):
        assert head in result.out
    assert "not simulated (see --simulations)" in result.out
    assert max(map(len, result.out.splitlines())) <= 100


def test_the_json_object_is_what_the_schema_says_and_what_python_gives(folder: Path) -> None:
    found = run("explain", folder, "--simulations", 2, "--json").json
    schema = mw.schema("explanation")
    assert is_valid(found, schema, schema)
    assert sum(each["share"] for each in found["shares"]) == pytest.approx(1)
    same = mw.explain(folder, simulations=2)
    assert json.loads(json.dumps(same.to_dict())) == found
    assert "spent on" in str(same)
    assert "<table>" in same._repr_html_()
    assert repr(same).startswith("Explanation(tensor 1, pipeline 1, data 2")


def test_an_answer_is_explained_like_its_folder(folder: Path) -> None:
    answer = mw.plan(MODEL, "h100-x2", method="data", budget_seconds=1)
    found = mw.explain(answer, simulations=0)
    assert found.shares == mw.explain(folder, simulations=0).shares
    assert found.bound_seconds == answer.bound_seconds


@pytest.mark.slow
def test_where_nothing_fits_each_change_is_told(tmp_path: Path) -> None:
    model = "gpt:hidden=4096,heads=32,layers=8,sequence=16,batch=4"  # 29 GB of state
    plan = ("plan", model, "--cluster", "1080ti-x1", "--method", "single", "--budget", 0.1)
    assert run(*plan, "-o", tmp_path).code == 3
    result = run("explain", tmp_path)
    assert result.code == 0
    assert "no plan fits" in result.out
    assert "a device in place of" in result.out
    found = run("explain", tmp_path, "--json").json
    assert {each["kind"] for each in found["remedies"]} >= {"devices", "memory", "batch"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("nowhere",), "nowhere: no such plan, neither a file nor a folder"),
        ((), "the following arguments are required: DIR"),
    ],
)
def test_bad_input_is_one_line(words: tuple[str, ...], message: str) -> None:
    assert message in refusal("explain", *words)


def test_a_number_of_simulations_is_whole(folder: Path) -> None:
    assert "must be a whole number from 0, got '-1'" in refusal(
        "explain", folder, "--simulations=-1"
    )


def test_a_folder_without_an_answer_is_refused(folder: Path, tmp_path: Path) -> None:
    for name in ("graph.json.gz", "cluster.yaml", "plan.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    assert "must hold answer.json beside the plan" in refusal("explain", tmp_path)


def test_an_answer_that_does_not_know_what_was_asked_is_refused() -> None:
    from dataclasses import replace

    answer = mw.plan(MODEL, "h100-x2", method="single", budget_seconds=1)
    with pytest.raises(mw.InputError, match="must know what was asked"):
        mw.explain(replace(answer, request=None))
