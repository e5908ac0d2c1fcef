"""Reports in a browser: they draw, zoom, filter and search, ask no network and obey no name.

Nothing here waits for a time to pass: a page says when it is drawn.
"""

import shutil
from collections.abc import Callable, Iterator
from importlib.resources import files
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pages import HOSTILE, answered, entry_of, explained, hostile, pipeline, replicas

from measured_run import run_of
from meshwright.compared import Case
from meshwright.page.entry import PageEntry, measured_entry
from meshwright.page.sheet import PageSheet
from meshwright.page.write import write_page
from meshwright.simulate.measured import measured_timeline
from meshwright.simulate.simulate import simulate
from quick import few

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
if find_spec("playwright") is None or CHROMIUM is None:
    pytest.skip("needs the package playwright and Chromium", allow_module_level=True)

Open = Callable[..., "Page"]
NO_STREAM = "delete window.DecompressionStream"


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    from playwright.sync_api import sync_playwright

    with sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports by name."""
    folder = tmp_path_factory.mktemp("pages")
    case = pipeline()
    graph, cluster, plan = case
    predicted = simulate(graph, cluster, plan, granularity="op", with_links=True)
    run = run_of(predicted, finish=predicted.finish * 1.25, start=predicted.start * 1.25)
    ran = Case(
        graph=graph, cluster=cluster, plan=plan, run=run, predicted=predicted,
        measured=measured_timeline(predicted.program, run),
    )  # fmt: skip
    pages: dict[str, list[PageEntry]] = {
        "one": [explained(entry_of(case, commands=("meshwright run plan --model m",)))],
        "wide": [entry_of(replicas(12))],
        "several": [entry_of(case, name="first"), entry_of(replicas(), name="second")],
        "run": [measured_entry(ran, name="the run")],
        "hostile": [explained(entry_of(hostile(), name=HOSTILE[0]))],
    }
    for name, entries in pages.items():
        write_page(entries, folder / f"{name}.html")
    return {name: folder / f"{name}.html" for name in pages}


@pytest.fixture
def opened(browser: "Browser", written: dict[str, Path]) -> Iterator[Open]:
    """Opens a report; afterwards it must have said nothing on the console and loaded nothing."""
    said: list[str] = []
    asked: list[str] = []
    contexts = []

    def start(name: str, script: str = "", **settings: Any) -> "Page":
        given: dict[str, Any] = {
            "viewport": {"width": 1280, "height": 900},
            "offline": True,
        } | settings
        context = browser.new_context(**given)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: said.append(message.text))
        page.on("pageerror", lambda error: said.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        if script:
            page.add_init_script(script)
        page.goto(written[name].as_uri())
        page.wait_for_selector("body[data-ready=true]")
        return page

    yield start
    for context in contexts:
        context.close()
    assert said == []
    assert [url for url in asked if not url.startswith("file:")] == []
    assert len(asked) == len(contexts)


def test_a_notebook_s_frame_shows_the_report(
    browser: "Browser", written: dict[str, Path], tmp_path: Path
) -> None:
    sheet = PageSheet(html=written["hostile"].read_text(encoding="utf-8"))
    book = tmp_path / "book.html"
    book.write_text(f"<!doctype html><meta charset=utf-8><body>{sheet._repr_html_()}</body>")
    context = browser.new_context(offline=True)
    page, said = context.new_page(), list[str]()
    page.on("console", lambda message: said.append(message.text))
    page.goto(book.as_uri())
    frame = page.frame_locator("iframe")
    frame.locator("body[data-ready=true]").wait_for()
    assert frame.locator("canvas").count() > 0
    assert frame.locator("body").evaluate("() => self.origin") == "null", "one of its own"
    assert said == []
    context.close()


def view(page: "Page", expression: str) -> Any:
    """What the timeline says of itself."""
    return page.evaluate(f"() => {{ const view = STATE.view; return {expression}; }}")


def test_the_first_screen_says_what_the_answer_says(opened: Open) -> None:
    page = opened("one")
    answer, _ = answered(*pipeline())
    shown = dict(
        zip(
            page.locator("#figures dt").all_inner_texts(),
            page.locator("#figures dd.value").all_inner_texts(),
            strict=True,
        )
    )
    assert page.locator("h1").inner_text() == "chain on hosts"
    assert shown["gap"] == f"{100 * answer.gap:.3g} %"
    assert {"step", "throughput", "bound", "trust", "memory"} <= set(shown)
    assert "auto:hybrid" in page.locator("#facts").inner_text()
    assert "meshwright run plan --model m" in page.locator("#commands").inner_text()
    parts = page.locator("#limits .part").all_inner_texts()
    assert sum(float(each.removesuffix(" %")) for each in parts) == pytest.approx(100, abs=0.5)


def test_every_section_is_drawn(opened: Open) -> None:
    page = opened("one")
    sections = ("timeline", "memory", "cluster", "model", "search", "why")
    for name in sections:
        assert page.locator(f"#{name}").is_visible(), name
    for name in ("plans", "run", "whatif"):
        assert page.locator(f"#{name}").is_hidden(), name
    assert page.locator("#sections a:visible").count() == len(sections)
    assert page.locator("#memory .uplot").count() == page.locator("#search .uplot").count() == 1
    # Two devices, two hosts and the switch.
    assert page.locator("#cluster svg rect").count() == 4
    assert page.locator("#cluster svg ellipse").count() == 1
    drawn = "(canvas) => canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height)"
    for canvas in page.locator("canvas:visible").all():
        assert canvas.evaluate(f"{drawn[:-1]}).data.some((each) => each > 0)")


def test_the_timeline_zooms_and_pans_by_wheel_and_keys(opened: Open) -> None:
    page = opened("one")
    canvas = page.locator("#timeline canvas")
    whole = view(page, "view.to - view.from")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    page.mouse.move(box["x"] + 600, box["y"] + 60)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -300)
    page.keyboard.up("Control")
    page.wait_for_timeout(0)
    narrow = view(page, "view.to - view.from")
    assert narrow < whole
    canvas.focus()
    page.keyboard.press("+")
    assert view(page, "view.to - view.from") == pytest.approx(0.7 * narrow)
    before = view(page, "view.from")
    page.keyboard.press("d")
    assert view(page, "view.from") > before
    page.keyboard.press("0")
    assert view(page, "[view.from, view.to]") == [0, whole]


def test_hovering_and_selecting_tell_what_a_bar_is(opened: Open) -> None:
    page = opened("one")
    canvas = page.locator("#timeline canvas")
    canvas.scroll_into_view_if_needed()
    x, y = view(page, "[view.gutter + 4, TOP + 1.5 * ROW]")
    canvas.hover(position={"x": x, "y": y})
    assert "f0 [mb 0]" in page.locator("#tip").inner_text()
    canvas.click(position={"x": x, "y": y})
    told = page.locator("#timeline-detail").inner_text()
    assert told.startswith("f0 [mb 0] · forward, h0.d0 · ")
    page.keyboard.press("ArrowRight")
    assert page.locator("#timeline-detail").inner_text().startswith("f1 [mb 0] · ")
    page.keyboard.press("ArrowUp")
    assert ", h0.d0" in page.locator("#timeline-detail").inner_text()


def test_the_critical_path_is_followed_to_its_end(opened: Open) -> None:
    page = opened("one")
    _, timeline = answered(*pipeline())
    page.locator("#timeline canvas").focus()
    told = []
    for _ in timeline.critical_path:
        page.keyboard.press("n")
        told.append(page.locator("#timeline-detail").inner_text().split(" · ")[0])
    names = [timeline.program.describe(row) for row in timeline.critical_path]
    assert told == names
    page.keyboard.press("p")
    assert page.locator("#timeline-detail").inner_text().startswith(names[-2])
    assert page.locator("#show-path").get_attribute("aria-pressed") == "true"


def test_search_counts_and_finds_bars(opened: Open) -> None:
    page = opened("one")
    _, timeline = answered(*pipeline())
    field = page.locator("#bar-search")
    field.fill("b2")
    names = [timeline.program.describe(row) for row in range(timeline.program.num_instructions)]
    computed = sum(name.startswith("b2") for name in names)
    crossed = sum(name.startswith("send b2") for name in names)
    links = view(page, "[...view.rows].filter((k) => k >= view.firstLink).length")
    assert links > 0
    count = int(page.locator("#timeline-told").inner_text().split()[0])
    assert count >= computed + crossed > computed
    field.press("Enter")
    assert page.locator("#timeline-detail").inner_text().startswith(("b2", "send b2"))
    field.fill("nothing is called so")
    field.press("Enter")
    assert page.locator("#timeline-told").inner_text() == "no bar matches"
    field.press("Escape")
    assert view(page, "view.countChosen()") == view(page, "view.data.bars")


def test_rows_and_kinds_are_filtered(opened: Open) -> None:
    page = opened("one")
    every = view(page, "view.rows.length")
    page.get_by_label("links", exact=True).uncheck()
    assert view(page, "view.rows.length") < every
    page.locator("#row-search").fill("h1.d0")
    names = view(page, "view.rows.filter((k) => k >= 0).map((k) => view.names[k])")
    assert names
    assert all("h1.d0" in name for name in names)
    page.get_by_label("forward", exact=True).uncheck()
    kinds = view(
        page, "[...new Set(Array.from(view.bars.cause).filter((_, k) => view.bars.chosen[k]))]"
    )
    assert 0 not in kinds
    assert 1 in kinds


def test_devices_that_do_the_same_share_their_bars(opened: Open) -> None:
    page = opened("wide")
    assert view(page, "view.names.length") > 3 * view(page, "view.data.counts.length")
    assert (
        page.locator("#memory-choice option")
        .all_inner_texts()[0]
        .startswith("h0.d0 and 11 others like it")
    )


def test_plans_stand_side_by_side_and_are_chosen(opened: Open) -> None:
    page = opened("several")
    assert page.locator("#plans .stack").count() == 2
    heads = page.locator("#plans table thead th").all_inner_texts()
    assert heads[1:] == ["first", "second"]
    page.locator("#plan-choice").select_option("1")
    page.wait_for_selector("body[data-ready=true]")
    assert view(page, "view.names.filter((name) => name.startsWith('h3.d0')).length") > 0


def test_a_measured_run_has_a_timeline_of_its_own(opened: Open) -> None:
    page = opened("run")
    assert "Predicted and measured" in page.locator("#run").inner_text()
    step = view(page, "view.data.step")
    page.locator("#timeline-choice").select_option(label="measured")
    page.locator("#timeline-legend input").first.wait_for()
    assert page.evaluate(
        "async () => { await STATE.view.open(1); return STATE.view.data.step; }"
    ) == (pytest.approx(1.25 * step))


def test_without_a_stream_of_the_browser_the_page_unpacks_itself(opened: Open) -> None:
    plain, own = opened("one"), opened("one", NO_STREAM)
    assert own.evaluate("() => typeof DecompressionStream") == "undefined"
    for expression in (
        "Array.from(view.bars.start)",
        "view.labels",
        "Array.from(view.path.finish)",
    ):
        assert view(plain, expression) == view(own, expression)


def test_names_are_shown_and_not_obeyed(opened: Open) -> None:
    page = opened("hostile")
    assert page.evaluate("() => window.owned") is None
    assert page.locator("main img, main script, main b").count() == 0
    assert HOSTILE[0] in page.locator("h1").inner_text()
    labels = " ".join(view(page, "view.labels"))
    for name in (*HOSTILE[:3], HOSTILE[4]):
        assert name in labels
    for folded in page.locator("details").all():
        folded.evaluate("(each) => { each.open = true; }")
    page.locator("#timeline-tables table").first.wait_for()
    assert HOSTILE[1] in page.locator("#cluster").inner_text()
    assert page.evaluate("() => window.owned") is None


@pytest.mark.parametrize(
    "look", few([("light", 1280), ("dark", 1280), ("light", 420), ("dark", 420)], ("dark", 1280))
)
def test_axe_finds_nothing_serious(
    browser: "Browser", written: dict[str, Path], look: tuple[Any, int]
) -> None:
    if find_spec("axe_playwright_python") is None:
        pytest.skip("needs the package axe-playwright-python")
    axe = files("axe_playwright_python").joinpath("axe.min.js").read_text(encoding="utf-8")
    context = browser.new_context(
        color_scheme=look[0], viewport={"width": look[1], "height": 900}, bypass_csp=True
    )
    page = context.new_page()
    page.goto(written["one"].as_uri())
    page.wait_for_selector("body[data-ready=true]")
    for folded in page.locator("details").all():
        folded.evaluate("(each) => { each.open = true; }")
    page.evaluate(axe)
    found = page.evaluate("async () => (await axe.run()).violations")
    serious = [
        (each["id"], [node["html"][:120] for node in each["nodes"][:3]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    context.close()
    assert serious == []


def test_a_narrow_page_needs_no_sideways_scrolling(opened: Open) -> None:
    page = opened("one", viewport={"width": 400, "height": 800})
    assert page.evaluate("() => document.documentElement.scrollWidth") <= 400


def test_it_prints(opened: Open, tmp_path: Path) -> None:
    page = opened("one")
    page.pdf(path=tmp_path / "page.pdf")
    assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_the_theme_can_be_chosen(opened: Open) -> None:
    page = opened("one", color_scheme="dark")
    back = "() => getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(back)
    page.locator("#theme").click()
    page.wait_for_selector("body[data-ready=true]")
    assert page.evaluate(back) != dark
