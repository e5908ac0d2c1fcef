"""The record of plans: what counts as worse, and that a row does not depend on the clock."""

import importlib
import json
import subprocess
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from meshwright.search.method.name import METHODS

FOLDER = Path(__file__).parent.parent / "benchmarks"
RECORD = FOLDER / "results" / "2026-11-18-plans.jsonl"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark."""
    monkeypatch.syspath_prepend(str(FOLDER))
    return importlib.import_module("plans")


def row(**changes: Any) -> dict[str, Any]:
    return {
        "method": "metis",
        "model": "mlp",
        "cluster": "v100-32-x2",
        "seed": 0,
        "options": {},
        "limits": {"looks": 8},
        "step_seconds": 2.0,
        "bound_seconds": 1.0,
        "stop": "ended",
        "plan": "a",
    } | changes


def test_the_same_row_is_no_change(program: ModuleType) -> None:
    assert program.compare([row()], [row(), row(seed=1)]) == []


def test_a_faster_plan_is_listed_with_both_times_and_is_not_worse(program: ModuleType) -> None:
    (change,) = program.compare([row()], [row(plan="b", step_seconds=1.5)])
    assert change["step_seconds"] == [2.0, 1.5]
    assert not change["has_same_plan"]
    assert change["worse"] == []


@pytest.mark.parametrize(
    ("changes", "worse"),
    [
        ({"plan": "b", "step_seconds": 2.1}, ["step"]),
        ({"bound_seconds": 0.9}, ["bound"]),
        ({"plan": None, "step_seconds": None}, ["step"]),
        ({"plan": "b", "step_seconds": 3.0, "bound_seconds": 0.5}, ["step", "bound"]),
    ],
)
def test_a_slower_plan_and_a_weaker_bound_are_worse(
    program: ModuleType, changes: dict[str, Any], worse: list[str]
) -> None:
    (change,) = program.compare([row()], [row(**changes)])
    assert change["worse"] == worse


def test_a_bound_that_proved_that_nothing_fits_is_the_strongest(program: ModuleType) -> None:
    nothing = row(plan=None, step_seconds=None, bound_seconds=None)
    assert program.compare([nothing], [nothing]) == []
    (change,) = program.compare([nothing], [nothing | {"bound_seconds": 1.0}])
    assert change["worse"] == ["bound"]


@pytest.mark.parametrize("changes", [{"seed": 1}, {"options": {"gap": 0.1}}, {"limits": {}}])
def test_a_row_of_another_case_does_not_stand_for_it(
    program: ModuleType, changes: dict[str, Any]
) -> None:
    (change,) = program.compare([row()], [row(**changes)])
    assert change["worse"] == ["missing"]


def test_the_clock_goes_on_by_looks_alone_and_comes_back(program: ModuleType) -> None:
    true = time.perf_counter
    with program.counted():
        first, second, third = (time.perf_counter() for _ in range(3))
        assert second - first == third - second > 0
    assert time.perf_counter is true


def test_the_record_has_every_case_of_every_method(program: ModuleType) -> None:
    recorded = program.read_rows(RECORD)
    cases = list(program.list_cases())
    assert len(recorded) == len(cases) >= 120
    assert {case.method for case in cases} == set(METHODS)
    assert [
        (each["method"], each["model"], each["cluster"], each["seed"]) for each in recorded
    ] == [(case.method, case.model, case.cluster, case.seed) for case in cases]


def test_a_search_that_only_the_clock_ends_finds_the_recorded_plan(program: ModuleType) -> None:
    """In a process of its own, whose searches are imported with the counted clock."""
    case = program.Case(method="flexflow", model="mlp", cluster="v100-32-x2")
    script = (
        f"import json; from plans import *\nwith counted(): print(json.dumps(find_row({case!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=FOLDER,
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    found = json.loads(done.stdout)
    assert found["stop"] == "LIMIT"
    assert found in program.read_rows(RECORD)
