"""Figures for papers, where matplotlib is."""

from pathlib import Path

import pytest
from pages import entry_of, hostile, pipeline, replicas

from meshwright.page.figure import CAUSE_COLORS, KIND_COLORS, write_figures

STATIC = Path(__file__).parents[2] / "src/meshwright/page/static"


def test_colours_are_those_of_the_page() -> None:
    text = (STATIC / "script/dom.js").read_text(encoding="utf-8")
    for color in (*CAUSE_COLORS, *KIND_COLORS):
        assert f'"{color}"' in text


def test_each_figure_is_written_twice(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    written = write_figures([entry_of(pipeline())], tmp_path / "figures")
    names = {"search", "timeline", "memory", "cluster", "model"}
    assert {path.name for path in written} == {
        f"{name}{suffix}" for name in names for suffix in (".svg", ".png")
    }
    for path in written:
        assert path.stat().st_size > 1000
    assert "<svg" in (tmp_path / "figures/timeline.svg").read_text(encoding="utf-8")


def test_figures_of_several_plans_have_names_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    entries = [entry_of(hostile(), name="../../a b"), entry_of(replicas(), name="second")]
    written = {path.name for path in write_figures(entries, tmp_path)}
    assert {"1-a-b-timeline.svg", "2-second-timeline.svg", "plans.png"} <= written
    assert {path.name for path in tmp_path.iterdir()} == written
