"""Benchmarks are programs that nobody runs for weeks: here the quick ones run once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        ["simulator.py", "--repeats", "1"],
        [
            "deploy.py", "--models", "bert-small", "--clusters", "mixed-s1", "--budget", "1",
            "--topology-budget", "0.5", "--topologies", "2", "--seeds", "1", "--cap", "20",
        ],
    ],
    ids=lambda each: each[0],
)  # fmt: skip
def test_a_benchmark_prints_its_rows(arguments: list[str]) -> None:
    name, *options = arguments
    done = subprocess.run(
        [sys.executable, FOLDER / name, *options, "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    assert all(isinstance(json.loads(line), dict) for line in done.stdout.splitlines())
    assert done.stdout
