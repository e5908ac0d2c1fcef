"""The examples run, and their losses are those of one process."""

import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

from meshwright.cli.parser import make_parser

pytest.importorskip("torch", reason="execution needs the torch extra")

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt_pipeline", "gpt_pipeline_data", "inception_placement"])
def test_an_example_trains_as_one_process_does(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / f"{name}.py", tmp_path / "plan"],
        capture_output=True,
        text=True,
        timeout=300,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "losses are those of one process" in done.stderr
    assert done.stdout.count("loss ") == 5


def test_the_commands_of_an_example_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    for words in import_module("train_text").list_commands(tmp_path):
        assert make_parser().parse_args(words).command == words[0]


@pytest.mark.slow  # five runs of 600 steps
def test_plans_of_every_kind_learn_from_text_as_one_process_does(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, EXAMPLES / "train_text.py", tmp_path],
        capture_output=True,
        text=True,
        timeout=3000,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 5
    assert all(float(line.partition("validation ")[2].partition(",")[0]) < 2.2 for line in lines)
    assert (tmp_path / "losses.svg").read_text().count("<polyline") == 5
