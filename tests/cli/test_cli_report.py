"""`meshwright report` and `mw.report`: from folders and answers to one file."""

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cli_runner import refusal, run

import meshwright as mw
from measured_run import run_of
from meshwright.errors import InputError
from meshwright.planned import read_answer


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "plan"
    options = ("--method", "data", "--budget", 1, "-q")
    assert run("plan", "mlp", "--cluster", "v100-32-x2", *options, "-o", path).code == 0
    return path


def document(path: Path) -> dict[str, Any]:
    """The data of a page."""
    text = path.read_text(encoding="utf-8")
    found = re.search('<script type="application/json" id="page-data">(.*?)</script>', text, re.S)
    assert found is not None
    data: dict[str, Any] = json.loads(found[1])
    return data


def test_a_plan_comes_with_its_report(folder: Path) -> None:
    (plan,) = document(folder / "plan.html")["plans"]
    answer = json.loads((folder / "answer.json").read_text())
    assert plan["timelines"][0]["step"] == answer["step_seconds"]
    assert plan["search"]["history"][-1][2] == answer["history"][-1]["step_seconds"]
    assert f"meshwright run {folder} --emulate" in " ".join(plan["summary"]["commands"])


def test_an_answer_is_read_back_from_its_folder(folder: Path) -> None:
    read = read_answer(folder)
    made = mw.plan("mlp", "v100-32-x2", method="data", budget_seconds=1)
    assert (read.method, read.stop) == (made.method, made.stop)
    assert read.step_seconds == made.step_seconds
    assert read.bound_seconds == made.bound_seconds
    assert read.plan == made.plan
    assert [each.method for each in read.history] == [each.method for each in made.history]
    assert read.history[-1].step_seconds == made.history[-1].step_seconds


def test_several_folders_stand_side_by_side(folder: Path, tmp_path: Path) -> None:
    page = tmp_path / "both.html"
    result = run("report", folder, folder, "-o", page)
    assert result.code == 0
    assert f"wrote {page} (" in result.err
    data = document(page)
    assert len(data["plans"]) == len(data["steps"]) == 2
    assert data["compared"]["title"] == "Plans side by side"
    assert data["steps"][0]["predicted"] == pytest.approx(sum(data["steps"][0]["shares"].values()))


def test_the_report_goes_into_the_first_folder(folder: Path) -> None:
    found = run("report", folder, "--json").json
    assert found == {
        "report": str(folder / "plan.html"),
        "bytes": (folder / "plan.html").stat().st_size,
        "figures": [],
    }


def test_explanations_and_changes_are_shown_where_they_are(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "plan"
    other.mkdir()
    for path in folder.iterdir():
        (other / path.name).write_bytes(path.read_bytes())
    asked = run("whatif", folder, "--batch", "2x", "--budget", 1, "--json")
    (other / "whatif.json").write_text(asked.out)
    assert run("report", other, "--explain", "-q").code == 0
    (plan,) = document(other / "plan.html")["plans"]
    assert any("decision" in each["title"] for each in plan["tables"]["why"])
    assert [row[0] for row in plan["tables"]["whatif"][0]["rows"]] == ["as it is", "batch 2x"]


def test_a_run_is_shown_beside_its_prediction(folder: Path, tmp_path: Path) -> None:
    graph, cluster = (
        mw.Graph.load(folder / "graph.json.gz"),
        mw.Cluster.load(folder / "cluster.yaml"),
    )
    plan = mw.Plan.load(folder / "plan.json")
    predicted = mw.simulate(graph, cluster, plan, granularity="op")
    for name in ("graph.json.gz", "cluster.yaml", "plan.json"):
        (tmp_path / name).write_bytes((folder / name).read_bytes())
    slower = {"start": 2 * predicted.start, "finish": 2 * predicted.finish}
    run_of(predicted, **slower).save(tmp_path / "run.json.gz")
    assert run("report", tmp_path).code == 0
    (shown,) = document(tmp_path / "plan.html")["plans"]
    assert [each["title"] for each in shown["timelines"]] == ["predicted", "measured"]
    assert shown["timelines"][1]["step"] == pytest.approx(2 * predicted.device_seconds)
    assert shown["tables"]["run"][0]["rows"]


def test_an_answer_in_python_is_drawn_like_its_folder(tmp_path: Path) -> None:
    answer = mw.plan("mlp", "v100-32-x2", method="data", budget_seconds=1)
    mw.report("mlp", "v100-32-x2", answer, tmp_path / "one.html")
    slower = mw.plan("mlp", "v100-32-x2", method="single", budget_seconds=1)
    mw.report("mlp", "v100-32-x2", answer, tmp_path / "two.html", others=[slower])
    (one,) = document(tmp_path / "one.html")["plans"]
    assert one["timelines"][0]["step"] == answer.step_seconds
    names = [each["name"] for each in document(tmp_path / "two.html")["plans"]]
    assert names == ["1: data", "2: single"]


def test_what_is_about_another_plan_is_refused(tmp_path: Path) -> None:
    answer = mw.plan("mlp", "v100-32-x2", method="data", budget_seconds=1)
    other = mw.plan("mlp", "v100-32-x4", method="data", budget_seconds=1)
    file = tmp_path / "page.html"
    with pytest.raises(InputError, match="answer: must be of mlp on v100-32-x4, is of mlp on v100"):
        mw.report("mlp", "v100-32-x4", answer, file)
    with pytest.raises(InputError, match="explanation: must be of cluster v100-32-x2, is of v100"):
        mw.report("mlp", "v100-32-x2", answer, file, explanation=mw.explain(other))
    assert not file.exists()


def test_changes_of_another_plan_are_left_out(folder: Path, tmp_path: Path) -> None:
    own = tmp_path / "own"
    shutil.copytree(folder, own)
    other = tmp_path / "other"
    words = ["plan", "mlp", "--cluster", "v100-32-x4", "--method", "single", "--budget", "1"]
    assert run(*words, "-o", other).code == 0
    asked = run("whatif", other, "--batch", "2x", "--budget", "0.5", "--json")
    (own / "whatif.json").write_text(asked.out)
    result = run("report", own, "-o", tmp_path / "page.html")
    assert result.code == 0
    assert "is about another plan than" in result.err
    assert document(tmp_path / "page.html")["plans"][0]["tables"]["whatif"] == []


def test_where_no_plan_fits_the_report_says_why(tmp_path: Path) -> None:
    result = run(
        "plan", "gpt2-xl", "--cluster", "1080ti-x1", "--method", "single", "--budget", 1,
        "-o", tmp_path / "none",
    )  # fmt: skip
    assert result.code == 3
    (plan,) = document(tmp_path / "none" / "plan.html")["plans"]
    assert plan["summary"]["figures"][0]["value"] == "no plan fits"
    assert plan["summary"]["commands"][0].startswith("meshwright explain ")


def test_bad_folders_are_refused_by_name(folder: Path, tmp_path: Path) -> None:
    assert "no such plan" in refusal("report", tmp_path / "nowhere")
    assert "must hold" in refusal("report", tmp_path)
    broken = tmp_path / "broken"
    broken.mkdir()
    for path in folder.iterdir():
        (broken / path.name).write_bytes(path.read_bytes())
    text = (broken / "answer.json").read_text()
    (broken / "answer.json").write_text(re.sub('"stop":"[A-Z]+"', '"stop":"DONE"', text))
    assert "stop must be one of PROVED" in refusal("report", broken)
    (broken / "answer.json").write_text(
        re.sub('"bound_seconds":[^,]+', '"bound_seconds":1e9', text, count=1)
    )
    assert "bound_seconds must not be above step_seconds" in refusal("report", broken)
    (broken / "answer.json").write_text(text)
    (broken / "whatif.json").write_text("{}")
    assert "whatif.json" in refusal("report", broken)


def test_an_answer_needs_no_request(tmp_path: Path) -> None:
    answer = mw.plan("mlp", "v100-32-x2", method="data", budget_seconds=1)
    mw.report("mlp", "v100-32-x2", replace(answer, request=None), tmp_path / "one.html")
    assert document(tmp_path / "one.html")["plans"][0]["summary"]["fits"]


def test_the_command_writes_figures_beside_the_report(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    words = ("--cluster", "v100-32-x2", "--method", "data", "-o", tmp_path / "out")
    assert run("plan", "mlp", *words).code == 0
    drawn = ("-o", tmp_path / "page.html", "--figures", tmp_path / "drawn")
    result = run("report", tmp_path / "out", *drawn)
    assert result.code == 0, result.err
    assert (tmp_path / "page.html").stat().st_size > 10_000
    names = {path.name for path in (tmp_path / "drawn").iterdir()}
    assert {"timeline.svg", "memory.png", "cluster.svg"} <= names
