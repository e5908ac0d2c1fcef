"""In notebooks an answer is its first screen, and its report the whole, in a frame of its own."""

import importlib.util
import pickle
from collections.abc import Callable
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

import meshwright as mw
from meshwright.page.sheet import PageSheet

HOSTILE = '<script>alert("x")</script>\x1b[31m'


@pytest.fixture(scope="module")
def answer() -> mw.Answer:
    return mw.plan("mlp", mw.cluster("v100-32-x2"), method="data", budget_seconds=0.5)


def formatter() -> Callable[[Any], str]:
    """What a notebook makes of a value: IPython's own formatter where it is installed."""
    if importlib.util.find_spec("IPython") is None:
        return lambda value: str(value._repr_html_())
    from IPython.core.formatters import HTMLFormatter

    made: Callable[[Any], str] = HTMLFormatter()
    return made


class Elements(HTMLParser):
    """The tags of a text, and what its frame holds."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: dict[str, str | None] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag == "iframe":
            self.attributes = dict(attrs)


def test_an_answer_is_its_first_screen(answer: mw.Answer) -> None:
    text = formatter()(answer)
    assert set(Elements(text).tags) == {"table", "caption", "tbody", "tr", "th", "td"}
    for word in (
        "mlp on v100-32-x2", "samples/s", "bound", "the gap is at most", "limits", "collective",
        "times", "answer.report() shows the whole",
    ):  # fmt: skip
        assert word in text
    assert answer.limits.startswith("collective ")
    total = sum(answer.waits.values())
    assert total == pytest.approx(answer.step_seconds)


def test_a_report_is_the_whole_in_a_frame(answer: mw.Answer, tmp_path: Path) -> None:
    report = answer.report()
    found = Elements(formatter()(report))
    assert found.tags == ["iframe"]
    assert found.attributes["sandbox"] == "allow-scripts", "not the notebook's origin"
    assert found.attributes["srcdoc"] == report.html
    report.save(tmp_path / "own.html")
    assert answer.request is not None
    mw.report(answer.request.graph, answer.request.cluster, answer, tmp_path / "plan.html")
    assert (tmp_path / "own.html").read_text() == (tmp_path / "plan.html").read_text()


def test_names_are_text(answer: mw.Answer) -> None:
    hostile = replace(answer, model=HOSTILE, cluster=HOSTILE, notes=(HOSTILE,))
    text = formatter()(hostile)
    assert "<script" not in text
    assert "\x1b" not in text
    frame = formatter()(PageSheet(html='"><script>alert(1)</script>'))
    assert Elements(frame).tags == ["iframe"]


def test_an_answer_without_a_plan_has_a_report_too() -> None:
    graph = mw.load_graph("gpt:hidden=8192,heads=64,layers=80,sequence=2048,batch=64")
    none = mw.plan(graph, "v100-16-x2", method="single", budget_seconds=0.5)
    assert none.plan is None
    assert none.limits == ""
    assert "no plan fits" in none.report().html or none.binding in none.report().html


def test_answers_of_a_search_say_who_draws_them(answer: mw.Answer) -> None:
    assert pickle.loads(pickle.dumps(replace(answer, request=None))).draw is answer.draw
    with pytest.raises(mw.InputError, match=r"report: needs an answer of mw\.plan"):
        replace(answer, draw=None).report()
