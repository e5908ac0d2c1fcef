"""`meshwright replan`, as one types it, right and wrong."""

import shutil
from pathlib import Path

import pytest
from cli_runner import refusal, run

import meshwright as mw
from json_schema import is_valid

LLAMA = "llama:hidden=64,heads=4,layers=4,sequence=16,vocabulary=64,intermediate=128,batch=12"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("planned") / "plan"
    words = ["plan", LLAMA, "--cluster", "titan-v-4x2", "--method", "data", "--budget", 1, "-q"]
    assert run(*words, "-o", path).code == 0
    return path


def test_a_lost_host_is_answered_in_a_page(folder: Path) -> None:
    result = run("replan", folder, "--without", "host1", "--checkpoint-every", 50, "--budget", 1)
    assert result.code == 0, result.err
    assert max(map(len, result.out.splitlines())) <= 100
    for word in ("now 6 devices", "before", "carried over", "planned anew", "What changes"):
        assert word in result.out
    assert "No parameter and no optimiser state has to move" in result.out
    assert result.out.strip().endswith(".")


def test_the_new_plan_is_written_and_can_be_asked_again(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "again"
    words = ["--without", "host1", "--without", "host2", "--budget", 1, "--json", "-o", path]
    document = run("replan", folder, *words).json
    assert is_valid(document, mw.schema("replan"), mw.schema("replan"))
    assert (document["num_devices"], document["plan"]) == (4, str(path / "plan.json"))
    assert document["is_forced"] is False
    again = run("replan", path, "--hosts", "+1", "--budget", 1, "--json").json
    assert again["num_devices"] == 6
    assert again["before_seconds"] == pytest.approx(document["step_seconds"])
    assert again["moves"]["total_bytes"] > 0 or again["difference"]["joined"] == []


def test_a_measured_network_is_planned_for(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "measured.json"
    path.write_text('{"host0": "100 Mb/s"}')
    document = run("replan", folder, "--bandwidth", path, "--budget", 1, "--json").json
    assert document["num_devices"] == 8
    assert document["carried_seconds"] > document["before_seconds"]
    assert document["step_seconds"] <= document["carried_seconds"]


def test_what_is_written_over_a_plan_leaves_nothing_of_it(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "over"
    shutil.copytree(folder, path)
    old = (path / "plan.html").read_bytes(), (path / "trace.json").read_bytes()
    words = ["--without", "host1", "--without", "host1", "--budget", 1, "--json", "-o", path]
    assert run("replan", path, *words).json["num_devices"] == 6
    assert (path / "plan.html").read_bytes() != old[0]
    assert (path / "trace.json").read_bytes() != old[1]


def test_where_nothing_fits_there_are_remedies(folder: Path, tmp_path: Path) -> None:
    words = ["--without", "host[1-3]", "--memory", "0.00001x", "--budget", 0.2]
    result = run("replan", folder, *words, "-o", tmp_path / "none")
    assert result.code == 3
    assert "The smallest changes that do" in result.out
    assert "no plan fits" in result.err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "replan: must have something that has changed"),
        (["--without", "host9"], "without: no host 'host9'"),
        (["--without", "*"], "must leave a host"),
        (["--bandwidth", "nowhere.json"], "nowhere.json"),
        (["--cluster", "nowhere"], "nowhere"),
        (["--without", "host1", "--storage", "fast"], "argument --storage"),
        (["--without", "host1", "--checkpoint-every", "soon"], "argument --checkpoint-every"),
        (["--batch", "2x"], "unrecognized arguments: --batch"),
    ],
)
def test_wrong_changes_are_refused(folder: Path, words: list[str], message: str) -> None:
    assert message in refusal("replan", folder, *words)
