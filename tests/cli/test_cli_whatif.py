"""`meshwright whatif` and `meshwright sweep`, as one types them, right and wrong."""

import csv
import importlib.util
import json
from pathlib import Path

import pytest
from cli_runner import refusal, run

import meshwright as mw
from json_schema import is_valid


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planned") / "plan"
    words = ["plan", "mlp", "--cluster", "dgx1-x2", "--method", "data", "--budget", 1, "-q"]
    assert run(*words, "-o", path).code == 0
    return path


def test_a_question_is_shown_beside_what_is(folder: Path) -> None:
    words = ["--link", "switch=2x", "--batch", "2x", "--price", "v100-32=2.10/h"]
    result = run("whatif", folder, *words, "--workers", 1)
    assert result.code == 0, result.err
    assert max(map(len, result.out.splitlines())) <= 100
    for word in ("mlp on dgx1-x2, 16 devices", "same plan", "re-planned", "cost/sample"):
        assert word in result.out
    assert "switch 2x, batch 2x" in result.out
    assert "as it is: " in result.err


def test_the_answer_is_one_object(folder: Path) -> None:
    result = run("whatif", folder, "--devices", "-8", "--workers", 1, "--json")
    document = result.json
    assert is_valid(document, mw.schema("whatif"), mw.schema("whatif"))
    assert document["now"]["num_devices"] == 16
    assert [each["num_devices"] for each in document["outcomes"]] == [8]
    assert document["outcomes"][0]["question"] == "-8 devices"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--link", "leaf0=2x"], "link 'leaf0': no node, kind or level of that name"),
        (["--link", "switch=400G"], "may be bits or bytes"),
        (["--memory", "h100=2x"], "memory: no device of type 'h100'"),
        (["--devices", "+3"], "devices: must be whole hosts, multiples of 8, got 19"),
        (["--price", "h100"], "price: must be such as"),
        (["--budget", "0"], "argument --budget: must be a positive number"),
        (["--speed"], "argument --speed: expected one argument"),
        (["--without", "host7"], "without: no host 'host7'"),
    ],
)
def test_wrong_questions_are_refused(folder: Path, words: list[str], message: str) -> None:
    assert message in refusal("whatif", folder, *words)


def test_a_folder_without_a_plan_is_refused(tmp_path: Path) -> None:
    assert "no such plan" in refusal("whatif", tmp_path / "none", "--batch", "2x")
    assert "must hold graph.json.gz" in refusal("whatif", tmp_path, "--batch", "2x")


def test_a_search_that_found_nothing_can_be_asked(tmp_path: Path) -> None:
    words = ["plan", "gpt2", "--cluster", "1080ti-x2", "--method", "single", "--budget", 1, "-q"]
    assert run(*words, "--batch", 256, "-o", tmp_path).code == 3
    result = run("whatif", tmp_path, "--memory", "100x", "--workers", 1)
    assert result.code == 0, result.err
    assert "now fits" in result.out


def test_a_sweep_is_a_table_a_curve_and_a_file(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "sweep.csv"
    words = ["--devices", "4,8,16", "--price", "v100-32=2/h", "--workers", 1, "--budget", 10]
    result = run("sweep", folder, *words, "-o", path)
    assert result.code == 0, result.err
    assert max(map(len, result.out.splitlines())) <= 100
    for word in ("efficiency", "bound", "cost/sample", "samples/s", "best by time: devices"):
        assert word in result.out
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert [row["num_devices"] for row in rows] == ["4", "8", "16"]
    assert all(float(row["bound_seconds"]) <= float(row["step_seconds"]) for row in rows)


def test_a_sweep_of_a_model_is_one_object(tmp_path: Path) -> None:
    path = tmp_path / "sweep.json"
    words = ["--cluster", "v100-32-x2", "--method", "data", "--link", "inside=1x,2x"]
    result = run("sweep", "mlp", *words, "--workers", 1, "--budget", 5, "--json", "-o", path)
    assert result.code == 0, result.err
    assert result.json == json.loads(path.read_text())
    assert is_valid(result.json, mw.schema("sweep"), mw.schema("sweep"))


def test_a_deadline_that_nothing_meets_is_an_answer(folder: Path) -> None:
    result = run("sweep", folder, "--devices", "8", "--deadline", "1ns", "--workers", 1)
    assert result.code == 3
    assert "no point will do: the shortest step is" in result.err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "sweep: must have something to vary"),
        (["--devices", "8", "--devices", "16"], "sweep: axes must differ, got devices, devices"),
        (["--devices", "8", "-o", "sweep.pdf"], "sweep.pdf: must end in .svg, .png, .csv, .json"),
        (["--devices", "8", "-o", "none/sweep.csv"], "must be in a folder that exists"),
        (["--devices", "8", "--method", "data"], "--method: needs a model and --cluster"),
        (["--devices", "8", "--deadline", "soon"], "argument --deadline: deadline: must be a time"),
        (["--devices", "8", "--objective", "cost"], "objective cost: must have prices"),
    ],
)
def test_wrong_sweeps_are_refused(folder: Path, words: list[str], message: str) -> None:
    assert message in refusal("sweep", folder, *words)


def test_a_plot_needs_matplotlib(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "sweep.svg"
    words = ["sweep", folder, "--devices", "8,16", "--workers", 1, "-o", path]
    if importlib.util.find_spec("matplotlib") is None:
        assert "plot: needs matplotlib; install meshwright[plot]" in refusal(*words)
        return
    assert run(*words).code == 0
    assert path.read_bytes().startswith(b"<?xml")
