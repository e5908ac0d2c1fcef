"""What a page says stands in the answer, the timeline and the explanation."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pages import HOSTILE, answered, entry_of, explained, hostile, pipeline, replicas
from test_page_pack import unpack

from meshwright.explain.explain import explain_plan
from meshwright.page.document import page_document
from meshwright.page.entry import PageEntry, make_entry
from meshwright.page.html import SCRIPTS, STYLES, make_page
from meshwright.page.pack import Blobs
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.request import Request
from meshwright.report.expected import with_facts
from meshwright.simulate.footprint import footprint
from meshwright.units import format_percent, format_seconds

STATIC = Path(__file__).parents[2] / "src/meshwright/page/static"


def described(entry: PageEntry) -> tuple[dict[str, Any], Blobs]:
    blobs = Blobs()
    document = page_document([entry], blobs)
    # As a browser reads it: what is not finite is no JSON.
    return json.loads(json.dumps(document, allow_nan=False))["plans"][0], blobs


def test_the_first_screen_has_the_figures_of_the_answer() -> None:
    graph, cluster, plan = pipeline()
    answer, timeline = answered(graph, cluster, plan)
    summary = described(entry_of((graph, cluster, plan)))[0]["summary"]
    figures = {each["name"]: each["value"] for each in summary["figures"]}
    full = with_facts(graph, cluster, answer, timeline)
    assert full.memory is not None
    assert figures["step"] == format_seconds(timeline.step_seconds)
    assert figures["bound"] == format_seconds(answer.bound_seconds)
    assert figures["gap"] == format_percent(answer.gap)
    assert figures["throughput"] == f"{64 / timeline.step_seconds:,.4g} samples/s"
    assert figures["memory"].split()[1] in ("KiB", "MiB", "GiB")
    facts = dict(summary["facts"])
    assert facts["plan"] == plan.description
    assert facts["times"] == full.provenance
    assert facts["stop"].startswith("LIMIT: ")


def test_what_limits_the_step_adds_up_to_it() -> None:
    for case in (pipeline(), replicas()):
        entry = entry_of(case)
        found = explain_plan(
            Request(graph=case[0], cluster=case[1]), case[2], simulations=0, rivals=0
        )
        limits = described(entry)[0]["summary"]["limits"]
        assert sum(each["share"] for each in limits) == pytest.approx(1)
        assert limits[0]["cause"] == str(found.shares[0].cause)
        assert limits[0]["seconds"] == pytest.approx(found.shares[0].seconds)


def test_bars_in_the_page_are_those_that_were_drawn() -> None:
    entry = entry_of(pipeline())
    document, blobs = described(entry)
    assert entry.timeline is not None
    (data,) = document["timelines"]
    start, length = (unpack(data["sets"][name], blobs) for name in ("start", "length"))
    names = unpack(data["names"], blobs)
    sets = unpack(data["tracks"], blobs)
    first = np.concatenate(([0], np.cumsum(data["counts"])))
    labels, label = unpack(data["labels"], blobs), unpack(data["sets"]["label"], blobs)
    program = entry.timeline.program
    for device in range(2):
        track = names.index(program.device_names[device])
        own = slice(first[sets[track]], first[sets[track] + 1])
        rows = np.flatnonzero(
            (program.instructions["device"] == device) & (program.instructions["op"] >= 0)
            & (program.instructions["group"] < 0)
        )  # fmt: skip
        rows = rows[np.argsort(entry.timeline.start[rows], kind="stable")]
        assert start[own].tolist() == np.rint(entry.timeline.start[rows] * 1e9).tolist()
        finish = start[own].astype(np.int64) + length[own]
        assert finish.tolist() == np.rint(entry.timeline.finish[rows] * 1e9).tolist()
        assert [labels[each] for each in label[own]] == [program.name_of(int(k)) for k in rows]


def test_memory_and_devices_are_those_of_the_footprint() -> None:
    graph, cluster, plan = pipeline()
    entry = entry_of((graph, cluster, plan))
    assert entry.timeline is not None
    document, blobs = described(entry)
    held = footprint(graph, cluster, entry.timeline)
    memory, network = document["memory"], document["network"]
    assert memory["peak"] == held.peak_bytes.tolist()
    assert memory["usable"] == held.usable_bytes.tolist()
    busy = unpack(network["busy"], blobs)
    assert busy == pytest.approx(entry.timeline.device_utilisation)
    rows = document["tables"]["device"][0]["rows"]
    assert [row[0] for row in rows] == [each.name for each in cluster.devices]
    assert rows[0][4] == format_percent(float(entry.timeline.device_utilisation[0]))


def test_the_search_is_the_answers_history() -> None:
    entry = entry_of(pipeline())
    search = described(entry)[0]["search"]
    assert [row[0] for row in search["history"]] == [0.1, 0.5]
    assert search["history"][1][2] == entry.answer.step_seconds
    assert set(search["methods"]) == {"data", "hybrid"}


def test_neighbours_rivals_and_changes_are_tables() -> None:
    outcome = {
        "question": "as it is", "kept": None, "planned": step(2.0), "shared": None, "gain": 0.0,
        "samples_per_second": 5.0, "bound_seconds": 1.0, "cost_per_sample": None,
    }  # fmt: skip
    faster = outcome | {"question": "nic 2x", "planned": step(1.0), "gain": 1.0, "kept": step(1.5)}
    whatif = {"now": outcome, "outcomes": [faster], "notes": ["memory: no effect"]}
    entry = replace(explained(entry_of(pipeline())), whatif=whatif)
    tables = described(entry)[0]["tables"]
    titles = [each["title"].split(",")[0] for each in tables["why"]]
    assert titles[0] == "What the step is spent on"
    assert "What each decision is worth" in titles
    (table,) = tables["whatif"]
    assert table["rows"][1] == ["nic 2x", "1.5 s", "1 s", "+100 %", "5", "1 s", "-"]
    assert table["note"] == "memory: no effect"


def step(seconds: float) -> dict[str, Any]:
    return {
        "step_seconds": seconds,
        "fits": True,
        "headroom": 0.5,
        "description": "",
        "obstacle": "",
    }


def test_an_answer_without_a_plan_says_why() -> None:
    graph, cluster, _ = pipeline()
    answer = Answer(
        model=graph.name, cluster=cluster.name, batch=64, method="auto", plan=None,
        step_seconds=float("inf"), bound_seconds=0.0, stop=Stop.INFEASIBLE,
        binding="memory of h0.d0: needs 3 GiB more",
    )  # fmt: skip
    document, _ = described(make_entry(graph, cluster, answer))
    summary = document["summary"]
    assert not summary["fits"]
    assert summary["figures"][0]["value"] == "no plan fits"
    assert "needs 3 GiB more" in summary["figures"][0]["note"]
    assert document["timelines"] == []


def test_a_folder_of_other_costs_is_remarked() -> None:
    graph, cluster, plan = pipeline()
    answer, timeline = answered(graph, cluster, plan)
    older = replace(answer, step_seconds=2 * answer.step_seconds)
    notes = [
        text
        for name, text in described(make_entry(graph, cluster, older, timeline=timeline))[0][
            "summary"
        ]["facts"]
        if name == "note"
    ]
    assert any("other costs" in each for each in notes)


class _Outline(HTMLParser):
    """The elements of a page."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=False)
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}
        self.is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.is_inside = True

    def handle_data(self, data: str) -> None:
        if self.is_inside:
            place = len(self.found) - 1
            self.texts[place] = self.texts.get(place, "") + data

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002
        self.is_inside = False


def outline(entry: PageEntry) -> _Outline:
    blobs = Blobs()
    document = page_document([entry], blobs)
    parsed = _Outline()
    parsed.feed(make_page(document, blobs.texts))
    return parsed


def test_hostile_names_make_no_element() -> None:
    plain, spoiled = outline(entry_of(pipeline())), outline(entry_of(hostile(), name=HOSTILE[0]))
    assert [tag for tag, _ in spoiled.found] == [tag for tag, _ in plain.found]
    text = next(
        spoiled.texts[place]
        for place, (_, attributes) in enumerate(spoiled.found)
        if attributes.get("id") == "page-data"
    )
    assert not set(text) & set("<>&\u2028\u2029")
    summary = json.loads(text)["plans"][0]["summary"]
    assert HOSTILE[0] in summary["title"]


def test_the_policy_allows_what_the_page_holds_and_nothing_else() -> None:
    parsed = outline(entry_of(pipeline()))
    policy = next(
        attributes["content"] or ""
        for tag, attributes in parsed.found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy
    code = [
        parsed.texts[place]
        for place, (tag, attributes) in enumerate(parsed.found)
        if tag == "style" or (tag == "script" and "type" not in attributes)
    ]
    assert len(code) == len(SCRIPTS) + len(STYLES)
    hashes = {base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() for text in code}
    assert set(re.findall("sha256-([^']+)'", policy)) == hashes
    for tag, attributes in parsed.found:
        assert not {name for name in attributes if name.startswith("on")}, tag
        assert not {"src", "style"} & set(attributes), tag


OWN = sorted((STATIC / "script").glob("*.js"))


def test_every_script_is_in_the_page() -> None:
    assert {f"script/{path.name}" for path in OWN} == {name for name in SCRIPTS if "/" in name} - {
        "vendor/uPlot.iife.min.js"
    }


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_scripts_keep_to_their_rules(path: Path) -> None:
    """What a linter would say, where there is none: texts are text nodes, nothing is evaluated."""
    text = path.read_text(encoding="utf-8")
    lines = text.splitlines()
    assert lines[0] == '"use strict";'
    assert lines[1].startswith("// ")
    assert len(lines) <= 400
    assert not re.search(r"\b(innerHTML|outerHTML|insertAdjacentHTML|eval)\b|\bvar\s", text)
    assert not re.search(r"document\.write|new Function|fetch\(|XMLHttpRequest|import\(", text)
    assert not re.search(r"(?<![=!<>])==(?!=)|!=(?!=)", text)
    assert all(line == line.rstrip() and "\t" not in line for line in lines)
    for one, other in ("()", "[]", "{}"):
        bare = re.sub(r'"(\\.|[^"\\])*"|`(\\.|[^`\\])*`|//.*', "", text)
        assert bare.count(one) == bare.count(other)


def test_what_is_vendored_says_whose_it_is() -> None:
    vendored = {path.name for path in (STATIC / "vendor").iterdir()}
    assert vendored == {"uPlot.LICENSE", "uPlot.iife.min.js", "uPlot.min.css"}
    assert "MIT License" in (STATIC / "vendor/uPlot.LICENSE").read_text()
    head = (STATIC / "vendor/uPlot.iife.min.js").read_text(encoding="utf-8")[:200]
    assert "v1.6.32" in head
