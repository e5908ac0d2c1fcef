"""Answers are kept by what they depend on, found again, and gone on from."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import meshwright as mw
from meshwright import recall
from meshwright.cluster.catalogue import find_cluster
from meshwright.plan.answer import Answer, RunnerUp, Stop
from meshwright.plan.request import Request
from meshwright.recall import SWITCH, AnswerCache, open_answers, recall_or_search
from meshwright.search.method.hybrid.scope import Scope
from meshwright.search.portfolio import answer_request
from meshwright.zoo.shipped import read_shipped


@pytest.fixture
def kept(tmp_path: Path) -> AnswerCache:
    return AnswerCache(tmp_path / "answers", "code")


def asked(**given: Any) -> Request:
    usual: dict[str, Any] = {
        "graph": read_shipped("mlp", 64), "cluster": find_cluster("v100-32-x2"),
        "method": "heft", "budget_seconds": 0.2,
    }  # fmt: skip
    return Request(**(usual | given))


def refuse(*_: object, **__: object) -> Answer:
    raise AssertionError("nothing is to be searched")


def test_the_same_question_is_answered_from_the_cache(
    kept: AnswerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = recall_or_search(asked(), kept)
    monkeypatch.setattr("meshwright.recall.answer_request", refuse)
    second = recall_or_search(asked(), kept)
    assert second.plan == first.plan
    assert second.step_seconds == first.step_seconds
    assert second.bound_seconds == first.bound_seconds
    assert second.stop is first.stop
    assert second.peak_bytes == first.peak_bytes
    assert second.runner_ups == first.runner_ups
    (note,) = [each for each in second.notes if "answered from the cache" in each]
    assert "--fresh" in note
    assert not any("cache" in each for each in first.notes)


def test_runner_ups_are_kept(kept: AnswerCache) -> None:
    first = recall_or_search(asked(), kept)
    other = recall_or_search(asked(method="single"), None)
    assert other.plan is not None
    found = RunnerUp(plan=other.plan, step_seconds=other.step_seconds, description="another")
    kept.write(replace(first, runner_ups=(found, replace(found, description="the same"))))
    answer = recall_or_search(asked(), kept)
    assert answer.runner_ups == (found, replace(found, description="the same"))


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"sharing": "none"},
        {"method": "single"},
        {"cluster": find_cluster("v100-32-x4")},
        {"graph": read_shipped("mlp", 65)},
        {"gap": 0.1, "method": "placement"},
        {"method": "hybrid", "scope": Scope(zero=(0,))},
    ],
    ids=lambda change: "+".join(change),
)
def test_whatever_differs_is_another_question(kept: AnswerCache, change: Mapping[str, Any]) -> None:
    assert kept.path(asked(**change)) != kept.path(asked())
    assert replace(kept, code="other").path(asked()) != kept.path(asked())


def test_what_a_graph_holds_decides_not_its_name(kept: AnswerCache) -> None:
    graph = asked().graph
    slower = replace(graph, flops=np.nextafter(graph.flops, np.inf))
    assert kept.path(asked(graph=slower)) != kept.path(asked())
    assert kept.path(asked(graph=replace(graph))) == kept.path(asked())
    assert kept.path(asked(budget_seconds=9.0)) == kept.path(asked())


def test_a_longer_budget_goes_on(kept: AnswerCache, monkeypatch: pytest.MonkeyPatch) -> None:
    first = recall_or_search(asked(), kept)
    kept.write(replace(first, stop=Stop.LIMIT, search_seconds=0.2))
    searched: list[tuple[Request, tuple[object, ...]]] = []
    real = answer_request

    def search(request: Request, **given: Any) -> Answer:
        searched.append((request, tuple(given["starts"])))
        return real(request, **given)

    monkeypatch.setattr("meshwright.recall.answer_request", search)
    second = recall_or_search(asked(budget_seconds=1.2), kept)
    (near, starts), (other, nothing) = searched
    assert starts == (first.plan,)
    assert nothing == ()
    assert near.budget_seconds == pytest.approx(0.4)
    assert near.budget_seconds + other.budget_seconds <= 1.4
    assert other.seed != first.request.seed if first.request else False
    assert second.step_seconds <= first.step_seconds
    assert second.bound_seconds >= first.bound_seconds
    assert second.search_seconds >= first.search_seconds
    assert any("goes on from a search" in each for each in second.notes)
    searched.clear()
    recall_or_search(asked(budget_seconds=1.0), kept)  # less than was searched by now
    assert not searched


def test_what_ended_by_itself_needs_no_more_time(
    kept: AnswerCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recall_or_search(asked(), kept).stop in (Stop.ENDED, Stop.PROVED)
    monkeypatch.setattr("meshwright.recall.answer_request", refuse)
    recall_or_search(asked(budget_seconds=100.0), kept)


def test_that_nothing_fits_is_kept_too(kept: AnswerCache, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = find_cluster("v100-32-x2")
    devices = tuple(replace(each, memory_bytes=1e3) for each in cluster.devices)
    request = asked(cluster=replace(cluster, devices=devices))
    first = recall_or_search(request, kept)
    assert first.plan is None
    monkeypatch.setattr("meshwright.recall.answer_request", refuse)
    assert recall_or_search(request, kept).binding == first.binding


@pytest.mark.parametrize("name", ["answer.json", "plan.json", "runner-ups.json"])
def test_what_is_damaged_is_searched_anew_and_said(kept: AnswerCache, name: str) -> None:
    first = recall_or_search(asked(), kept)
    (kept.path(asked()) / name).write_text("{")
    said: list[str] = []
    again = recall_or_search(asked(), kept, say=said.append)
    assert again.plan == first.plan
    assert any(line.startswith("searching anew: ") for line in said)
    assert recall_or_search(asked(), kept).notes != again.notes  # it was kept again


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    answer = recall_or_search(asked(), AnswerCache(tmp_path / "file", "code"), say=said.append)
    assert answer.plan is not None
    assert any(line.startswith("the answer is not kept: ") for line in said)


def test_the_oldest_answers_go(kept: AnswerCache, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recall, "_MOST", 2)
    for seed in range(4):
        recall_or_search(asked(seed=seed), kept)
    assert len(list(kept.folder.iterdir())) == 2
    assert kept.read(asked(seed=3)) is not None


def test_users_have_a_cache_unless_they_switch_it_off(tmp_path: Path) -> None:
    found = open_answers({"MESHWRIGHT_CACHE": str(tmp_path)})
    assert found is not None
    assert found.folder == tmp_path / "answers"
    assert open_answers({"MESHWRIGHT_CACHE": str(tmp_path), SWITCH: "no"}) is None
    assert open_answers({}) is None


def test_plan_answers_from_the_cache_and_fresh_searches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESHWRIGHT_CACHE", str(tmp_path))
    monkeypatch.delenv(SWITCH)
    graph, cluster = read_shipped("mlp", 64), find_cluster("v100-32-x2")
    first, second, third = (
        mw.plan(graph, cluster, "heft", budget_seconds=0.2, fresh=fresh)
        for fresh in (False, False, True)
    )
    is_recalled = [any("cache" in note for note in each.notes) for each in (first, second, third)]
    assert is_recalled == [False, True, False]
    assert first.memory is not None
    assert second.memory is not None
    assert first.plan == second.plan == third.plan
