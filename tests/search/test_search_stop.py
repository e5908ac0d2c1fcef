"""Why searches stop: proven, ended by themselves, cut by their budget, or interrupted."""

import contextlib
import signal
import threading
import time
from typing import Any

import pytest

from meshwright.cluster.catalogue import find_cluster
from meshwright.graph.graph import Graph
from meshwright.plan.answer import Answer, Stop
from meshwright.search import interrupt, portfolio
from meshwright.search.interrupt import pressed_again
from meshwright.search.judge import settle_stop, why_stopped
from meshwright.search.method.baseline import data, single
from meshwright.search.method.mcmc.mcmc import mcmc
from meshwright.search.method.name import SEARCHES
from meshwright.search.portfolio import find_plan
from meshwright.zoo.shipped import read_shipped

LONG = 1e6
"""Seconds that no search on a small step uses up."""
CUT_SHORT = 1e-9
CLOCKED = ("hybrid", "pipeline", "deploy", "placement", "mcmc", "flexflow", "mcts")
"""Searches that go on for as long as they are given; others look at the clock between trials."""


def test_the_four_reasons() -> None:
    assert why_stopped() is Stop.ENDED
    assert why_stopped(is_cut=True) is Stop.LIMIT
    assert why_stopped(is_cut=True, is_interrupted=True) is Stop.INTERRUPTED
    assert settle_stop(Stop.LIMIT, 1.0, 1.0) is Stop.PROVED
    assert settle_stop(Stop.ENDED, 1.1, 1.0) is Stop.ENDED
    assert settle_stop(Stop.INTERRUPTED, 1.0, 1.0) is Stop.INTERRUPTED


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
    answer = portfolio._SEARCHES[method](graph, cluster, budget_seconds=CUT_SHORT)
    assert answer.stop is Stop.LIMIT


def test_a_walk_of_few_steps_ends_and_one_of_many_is_cut() -> None:
    graph, cluster = read_shipped("unet"), find_cluster("a100-80-x4")
    assert mcmc(graph, cluster, steps=5, budget_seconds=LONG).stop is Stop.ENDED
    assert mcmc(graph, cluster, steps=10**9, budget_seconds=CUT_SHORT).stop is Stop.LIMIT


def test_auto_without_time_for_its_methods_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(portfolio, "_compile_kernels", lambda *_, **__: None)
    graph, cluster = read_shipped("unet"), find_cluster("a100-80-x4")
    answer = find_plan(graph, cluster, budget_seconds=CUT_SHORT)
    assert answer.stop is Stop.LIMIT
    assert set(answer.statistics) == {"single_seconds"}


def auto_of(monkeypatch: pytest.MonkeyPatch, **searches: Any) -> Answer:
    """`auto` with some searches in the place of its own."""
    monkeypatch.setattr(portfolio, "_SEARCHES", dict(portfolio._SEARCHES) | searches)
    monkeypatch.setattr(portfolio, "_compile_kernels", lambda *_, **__: None)
    return find_plan(read_shipped("mlp"), find_cluster("v100-32-x2"), budget_seconds=LONG)


def press(graph: Graph, cluster: Any, **options: Any) -> Answer:
    """A search that Ctrl-C ends with its best so far."""
    try:
        signal.raise_signal(signal.SIGINT)
        raise AssertionError
    except KeyboardInterrupt:
        found = data(graph, cluster, **options)
    return Answer(
        method="metis",
        plan=found.plan,
        step_seconds=found.step_seconds,
        bound_seconds=found.bound_seconds,
        stop=Stop.INTERRUPTED,
    )


def test_ctrl_c_in_one_method_ends_all_of_auto(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []

    def heft(graph: Graph, cluster: Any, **options: Any) -> Answer:
        called.append("heft")
        return single(graph, cluster, **options)

    answer = auto_of(monkeypatch, metis=press, heft=heft)
    assert answer.stop is Stop.INTERRUPTED
    assert answer.plan is not None
    assert called == []
    assert "metis_seconds" in answer.statistics  # its best so far counts
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_a_method_loses_ends_auto_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a finaliser, from which no exception comes out."""
    called: list[str] = []

    def deaf(graph: Graph, cluster: Any, **options: Any) -> Answer:
        with contextlib.suppress(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        return data(graph, cluster, **options)

    def heft(graph: Graph, cluster: Any, **options: Any) -> Answer:
        called.append("heft")
        return single(graph, cluster, **options)

    assert auto_of(monkeypatch, metis=deaf, heft=heft).stop is Stop.INTERRUPTED
    assert called == []


def test_a_method_that_does_not_end_after_ctrl_c_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interrupt, "GRACE_SECONDS", 0.01)

    def stubborn(*_: Any, **__: Any) -> Answer:
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
    }


def test_a_press_that_comes_late_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interrupt, "GRACE_SECONDS", 0.01)
    with pressed_again() as again:
        again.is_armed = True
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        again.is_armed = False
        while not again.is_own:  # the clock's press comes now, and nobody hears it
            time.sleep(0)


def test_other_threads_leave_the_handler_alone() -> None:
    before, seen = signal.getsignal(signal.SIGINT), []

    def look() -> None:
        with pressed_again():
            seen.append(signal.getsignal(signal.SIGINT))

    thread = threading.Thread(target=look)
    thread.start()
    thread.join()
    assert seen == [before]
