"""The examples run, and their losses are those of one process."""

import subprocess
import sys
from pathlib import Path

import pytest

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
