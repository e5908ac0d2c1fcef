"""Methods in processes beside the search: they find what they would find here, or cost nothing."""

import math
import signal
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from meshwright.cluster.catalogue import find_cluster
from meshwright.plan.answer import Stop
from meshwright.plan.moment import Moment
from meshwright.search import beside, portfolio, run
from meshwright.search.beside import Beside
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt, Incumbent
from meshwright.search.method.table import METHODS
from meshwright.search.portfolio import find_plan, search_by
from meshwright.search.problem import Problem
from meshwright.search.warm import small_cluster, small_step
from meshwright.zoo.shipped import read_shipped

LONG = 600.0
"""Seconds that no search on a small step uses up."""


def make_problem(seconds: float = LONG) -> Problem:
    return Problem(graph=small_step(), cluster=small_cluster(), clock=Clock(seconds))


def test_a_method_finds_the_same_in_a_process_of_its_own() -> None:
    problem, heard = make_problem(), list[Moment]()
    here = search_by("consecutive", problem.graph, problem.cluster, budget_seconds=LONG)
    with Beside("consecutive", problem, heard.append) as process:
        found = process.wait()
    assert found is not None
    assert process.has_begun
    assert (found.plan, found.step_seconds) == (here.plan, here.step_seconds)
    assert (found.bound_seconds, found.stop) == (here.bound_seconds, here.stop)
    assert found.statistics == here.statistics
    assert heard == found.incumbent.history, "it is told before the process ends"
    assert heard[-1].step_seconds == here.step_seconds


def test_ctrl_c_ends_it_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "GRACE_SECONDS", LONG)  # whatever else the machine does
    problem = replace(make_problem(), graph=read_shipped("unet"), known=None)
    with Beside("mcmc", problem) as process:
        while not process.has_begun:
            process._is_done.wait(0.01)
        problem.clock.interrupt()
        found = process.wait()
    assert found is not None
    assert found.stop is Stop.INTERRUPTED
    assert found.fits


def test_what_is_enough_ends_it_with_what_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "GRACE_SECONDS", LONG)
    problem = replace(make_problem(), graph=read_shipped("unet"), known=None)
    with Beside("mcmc", problem) as process:
        while not process.has_begun:
            process._is_done.wait(0.01)
        problem.clock.satisfy()
        found = process.wait()
    assert found is not None
    assert found.stop is Stop.GAP
    assert found.fits


def test_one_that_dies_says_nothing() -> None:
    with Beside("deploy", make_problem()) as process:
        process._process.kill()
        assert process.wait() is None
    assert not process.has_begun


def test_one_that_is_too_late_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "_LATE_SECONDS", 0.0)
    with Beside("deploy", make_problem(1e-9)) as process:
        assert process.wait() is None


def test_auto_takes_what_processes_find(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "num_cores", lambda: 2)
    lines: list[str] = []

    def slow(problem: Problem, attempt: Attempt) -> None:
        while not processes[0].has_begun:
            signal.sigtimedwait([], 0.01)
        METHODS["data"](problem, attempt)

    processes: list[Beside] = []

    def started(name: str, problem: Problem, hear: Callable[[Moment], None]) -> Beside:
        processes.append(Beside(name, problem, hear))
        return processes[0]

    monkeypatch.setattr(portfolio, "Beside", started)
    monkeypatch.setattr(run, "METHODS", {**METHODS, "pipeline": slow})
    problem = make_problem()
    answer = find_plan(problem.graph, problem.cluster, budget_seconds=20, progress=lines.append)
    assert [each.name for each in processes] == ["deploy"]
    assert any(line.startswith("deploy: ") for line in lines)
    assert answer.statistics["deploy_seconds"] <= answer.statistics["data_seconds"]


def test_what_cannot_be_faster_is_not_searched() -> None:
    lines: list[str] = []
    graph, cluster = read_shipped("unet"), find_cluster("nvlink50-eth20-x4")
    find_plan(graph, cluster, budget_seconds=3, progress=lines.append)
    said = [line for line in lines if line.startswith("placement: ")]
    assert len(said) == 1
    assert "not tried: no placement is faster than" in said[0]


def test_time_that_is_left_is_spent_near_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    near: list[Problem] = []
    graph, cluster = small_step(), small_cluster()
    best = search_by("pipeline", graph, cluster, budget_seconds=LONG)
    assert best.plan is not None

    def weak(problem: Problem, attempt: Attempt) -> None:
        if problem.starts:
            near.append(problem)
            attempt.offer(best.plan, problem.settle(best.plan))  # type: ignore[arg-type]
        else:
            METHODS["data"](problem, attempt)

    searches: dict[str, Any] = {
        name: weak if name in ("consecutive", "pipeline") else METHODS["data"] for name in METHODS
    }
    monkeypatch.setattr(run, "METHODS", {**searches, "consecutive": METHODS["consecutive"]})
    monkeypatch.setattr(portfolio, "num_cores", lambda: 1)
    answer = find_plan(graph, cluster, budget_seconds=LONG)
    assert near
    assert near[0].starts[0].schedule is not None
    assert answer.step_seconds <= best.step_seconds


def test_a_plan_that_is_heard_of_counts_before_its_record_comes() -> None:
    incumbent = Incumbent(Clock(LONG))
    assert incumbent.known_seconds == math.inf
    moment = Moment(
        seconds=1.0, method="deploy", step_seconds=2.0, bound_seconds=1.0, claim="undivided"
    )
    incumbent.hear(moment)
    incumbent.hear(replace(moment, step_seconds=3.0))
    assert incumbent.known_seconds == 2.0
    assert incumbent.step_seconds == math.inf
