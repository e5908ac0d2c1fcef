"""Figures for papers, where matplotlib is."""

import sys
from pathlib import Path
from xml.etree.ElementTree import parse

import pytest
from pages import entry_of, hostile, pipeline, replicas

from meshwright.errors import InputError
from meshwright.page.figure import CAUSE_COLORS, KIND_COLORS, write_figures

SVG = "{http://www.w3.org/2000/svg}"
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
    for path in written:
        if path.suffix == ".svg":
            assert parse(path).getroot().tag == f"{SVG}svg"
        else:
            assert path.read_bytes().startswith(b"\x89PNG\r\n")


def test_figures_of_several_plans_have_names_of_their_own(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    entries = [entry_of(hostile(), name="../../a b"), entry_of(replicas(), name="second")]
    written = {path.name for path in write_figures(entries, tmp_path)}
    assert {"1-a-b-timeline.svg", "2-second-timeline.svg", "plans.png"} <= written
    assert {path.name for path in tmp_path.iterdir()} == written
    for path in tmp_path.glob("*.svg"):  # names are drawn, and are no elements
        for each in parse(path).iter():
            assert each.tag.removeprefix(SVG) not in ("script", "foreignObject", "a")
            links = [text for name, text in each.items() if name.endswith("href")]
            assert all(text.startswith(("#", "data:image/png;base64,")) for text in links)


def test_without_matplotlib_figures_are_refused_in_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match="matplotlib") as caught:
        write_figures([entry_of(pipeline())], tmp_path)
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())
