"""Why searches stop: proven, ended by themselves, cut by their budget, or interrupted."""

import contextlib
import signal
import threading
import time
from functools import partial
from typing import Any

import pytest

from meshwright.cluster.catalogue import find_cluster
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.plan import place_ops
from meshwright.search import clock as clock_module
from meshwright.search import portfolio, run
from meshwright.search.claim import Claim
from meshwright.search.clock import Clock
from meshwright.search.incumbent import Attempt, Incumbent
from meshwright.search.judge import Verdict
from meshwright.search.method.name import SEARCHES
from meshwright.search.method.table import METHODS
from meshwright.search.portfolio import find_plan, search_by
from meshwright.search.problem import Problem
from meshwright.zoo.shipped import read_shipped

mcmc = partial(search_by, "mcmc")

LONG = 1e6
"""Seconds that no search on a small step uses up."""
CUT_SHORT = 1e-9
CLOCKED = ("hybrid", "pipeline", "deploy", "placement", "mcmc", "flexflow", "mcts")
"""Searches that go on for as long as they are given; others look at the clock between trials."""


def verdict(seconds: float, missing: float = 0.0) -> Verdict:
    """What the simulator might say of a plan."""
    lacks = "a device lacks memory" if missing else ""
    return Verdict(
        step_seconds=seconds, peak_bytes=(1.0,), binding=lacks, missing_bytes=missing,
        over_bytes=(missing,),
    )  # fmt: skip


def test_the_five_reasons() -> None:
    clock = Clock()
    attempt = Incumbent(clock).begin("single", Claim.PLACEMENT)
    stops = [attempt.stop]
    attempt.offer(place_ops(("op",), [0], ["d0"]), verdict(1.1))
    attempt.raise_bound(1.0)
    stops.append(attempt.stop)
    clock.cut()
    stops.append(attempt.stop)
    attempt.raise_bound(1.1)
    stops.append(attempt.stop)
    clock.interrupt()
    stops.append(attempt.stop)
    assert stops == [Stop.INFEASIBLE, Stop.ENDED, Stop.LIMIT, Stop.PROVED, Stop.INTERRUPTED]


@pytest.mark.parametrize(
    "method", [name for name in (*SEARCHES, "m-sct", "quickp") if name != "hybrid"]
)
def test_a_search_with_time_for_all_ends_by_itself(method: str) -> None:
    answer = find_plan(read_shipped("mlp"), find_cluster("v100-32-x2"), method, budget_seconds=LONG)
    assert answer.stop in (Stop.ENDED, Stop.PROVED)


def test_auto_ends_by_itself_too() -> None:
    graph = read_shipped("mlp")
    cluster = find_cluster("v100-32-x2")
    assert find_plan(graph, cluster, budget_seconds=LONG).stop in (Stop.ENDED, Stop.PROVED)


@pytest.mark.parametrize("method", CLOCKED[1:])
def test_a_search_without_time_says_so(method: str) -> None:
    graph, cluster = read_shipped("unet"), find_cluster("a100-80-x4")
    answer = search_by(method, graph, cluster, budget_seconds=CUT_SHORT)
    assert answer.stop is Stop.LIMIT


def test_a_walk_of_few_steps_ends_and_one_of_many_is_cut() -> None:
    graph, cluster = read_shipped("unet"), find_cluster("a100-80-x4")
    assert mcmc(graph, cluster, steps=5, budget_seconds=LONG).stop is Stop.ENDED
    assert mcmc(graph, cluster, steps=10**9, budget_seconds=CUT_SHORT).stop is Stop.LIMIT


def test_auto_without_time_for_its_methods_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "compile_methods", lambda *_, **__: None)
    graph, cluster = read_shipped("unet"), find_cluster("a100-80-x4")
    answer = find_plan(graph, cluster, budget_seconds=CUT_SHORT)
    assert answer.stop is Stop.LIMIT
    assert set(answer.statistics) == {"single_seconds"}


def auto_of(monkeypatch: pytest.MonkeyPatch, **searches: Any) -> Answer:
    """`auto` with some searches in the place of its own."""
    monkeypatch.setattr(run, "METHODS", {**METHODS, **searches})
    monkeypatch.setattr(portfolio, "compile_methods", lambda *_, **__: None)
    return find_plan(read_shipped("mlp"), find_cluster("v100-32-x2"), budget_seconds=LONG)


def press(problem: Problem, attempt: Attempt) -> None:
    """A search that Ctrl-C ends with its best so far."""
    with problem.clock.heard():
        signal.raise_signal(signal.SIGINT)
        raise AssertionError
    METHODS["data"](problem, attempt)


def test_ctrl_c_in_one_method_ends_all_of_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def heft(problem: Problem, attempt: Attempt) -> None:
        called.append("heft")
        METHODS["single"](problem, attempt)

    answer = auto_of(monkeypatch, metis=press, heft=heft)
    assert answer.stop is Stop.INTERRUPTED
    assert answer.plan is not None
    assert called == []
    assert "metis_seconds" in answer.statistics  # its best so far counts
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_a_method_loses_ends_auto_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a finaliser, from which no exception comes out."""
    called: list[str] = []

    def deaf(problem: Problem, attempt: Attempt) -> None:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        METHODS["data"](problem, attempt)

    def heft(problem: Problem, attempt: Attempt) -> None:
        called.append("heft")
        METHODS["single"](problem, attempt)

    assert auto_of(monkeypatch, metis=deaf, heft=heft).stop is Stop.INTERRUPTED
    assert called == []


@pytest.mark.parametrize("has_offered", [False, True])
def test_a_method_that_does_not_end_after_ctrl_c_is_left_out_but_for_what_it_has_offered(
    has_offered: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock_module, "GRACE_SECONDS", 0.01)

    def stubborn(problem: Problem, attempt: Attempt) -> None:
        if has_offered:
            METHODS["single"](problem, attempt)
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            threading.Event().wait()  # for ever, but for another Ctrl-C
        raise AssertionError

    answer = auto_of(monkeypatch, metis=stubborn)
    assert answer.stop is Stop.INTERRUPTED
    assert set(answer.statistics) == {
        f"{name}_seconds"
        for name in ("single", "round-robin", "data", "data-proportional", "horovod")
    } | ({"metis_seconds"} if has_offered else set())


def test_ctrl_c_before_any_plan_is_an_exception(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        auto_of(monkeypatch, single=interrupted)


def test_a_press_that_comes_late_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock_module, "GRACE_SECONDS", 0.01)
    clock = Clock()
    with clock.listening():
        with clock.hurried(), pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        while not clock._press.is_own:  # the clock's press comes now, and nobody hears it
            time.sleep(0)


def test_other_threads_leave_the_handler_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def look() -> None:
        with Clock().listening():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]
