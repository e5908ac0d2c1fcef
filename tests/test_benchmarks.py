"""Benchmarks are programs that nobody runs for weeks: here the quick ones run once."""

import json
import shutil
import subprocess
import sys
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).parent.parent / "benchmarks"
pytestmark = pytest.mark.slow


def rows_of(name: str, *options: str) -> list[dict[str, Any]]:
    """What a benchmark prints, read as an object a line."""
    done = subprocess.run(
        [sys.executable, FOLDER / name, *options, "--json"],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


def test_the_simulator_runs_the_same_programs_however_links_are_shared() -> None:
    rows = rows_of("simulator.py", "--repeats", "1")
    placed = [row for row in rows if row["case"].startswith("placement")]
    assert [row["sharing"] for row in placed] == ["none", "fair"] * (len(placed) // 2)
    for alone, shared in pairwise(placed):
        if shared["sharing"] == "fair":
            assert alone["case"] == shared["case"]
            assert alone["instructions"] == shared["instructions"] >= alone["ops"]
    by_op, by_part = rows[len(placed) :]
    assert (by_op["case"], by_part["case"]) == ("pipeline by op", "pipeline by part")
    assert by_part["instructions"] < by_op["instructions"]
    for row in rows:
        per_second = row["instructions"] / row["run_ms"] * 1e3
        assert row["instructions_per_second"] == pytest.approx(per_second)


def test_deploy_is_never_slower_in_any_of_its_tables() -> None:
    options = (
        "--models", "bert-small", "--clusters", "mixed-s1", "--budget", "1",
        "--topology-budget", "2", "--topologies", "2", "--seeds", "1", "--cap", "20",
    )  # fmt: skip
    rows = rows_of("deploy.py", *options)
    summaries = {row["of"]: row for row in rows if row["table"] == "summary"}
    answered = [row for row in rows if row["table"] != "summary"]
    assert {row["model"] for row in answered} == {"bert-small"}
    for table, summary in summaries.items():
        assert summary["rows"] == sum(row["table"] == table for row in answered) > 0
        assert summary.get("slower_rows", 0) == summary.get("without_a_plan", 0) == 0
    assert summaries.keys() == {row["table"] for row in answered}
    assert summaries["sfb"]["never_slower"]
    assert summaries["iterations"]["has_network"]


def test_reports_are_as_small_as_they_must_be_and_open() -> None:
    if find_spec("playwright") is None or shutil.which("chromium") is None:
        pytest.skip("needs the package playwright and Chromium")
    rows = rows_of("report.py", "16 devices, replicas", "1,024 devices, hybrid")
    assert [row["devices"] for row in rows] == [16, 1024]
    for row, most in zip(rows, (8, 15), strict=True):
        assert row["megabytes"] <= most
        assert row["bars"] > 100_000
        assert 0 < row["first_seconds"] <= row["timeline_seconds"] <= row["ready_seconds"]
