"""How large reports are, how soon a browser shows them, and how smoothly their timeline zooms.

    python benchmarks/report.py [CASE ...] [--json] [--keep DIR]

Needs Chromium and the Python package playwright. `draw_seconds` is what making the file takes,
without the simulation; `first_seconds` is from the start of loading until the first screen is in
the document, `timeline_seconds` until the timeline can be used, `ready_seconds` until all figures
are drawn: the browser's own marks, the best of three loads in fresh pages. `zoom_fps` are frames
a second while the timeline zooms in and out for three seconds, and `slowest_ms` is the longest time
between two of these frames.
"""

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from meshwright.cluster.build import fully_connected
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.page.entry import make_entry
from meshwright.page.write import write_page
from meshwright.plan.answer import Answer, Stop
from meshwright.plan.plan import Part, Plan
from meshwright.simulate.simulate import simulate
from meshwright.source import load_graph
from simulator import place
from synthetic import synthetic_gpt

LOADS = 3
NUM_OPS, NUM_DEVICES = 26_000, 16
GPT3 = "gpt:hidden=12288,heads=96,layers=96,sequence=2048,batch=1536"
_ZOOM = """() => new Promise((resolve) => {
    const view = STATE.view, gaps = [], begin = performance.now();
    let last = begin;
    const frame = (now) => {
        gaps.push(now - last);
        last = now;
        const phase = (now - begin) / 3000;
        if (phase >= 1) return resolve(gaps.slice(1));
        view.zoom(Math.sin(6 * Math.PI * phase) > 0 ? 0.94 : 1 / 0.94, view.whole * 0.4);
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
})"""

Case = tuple[Graph, Cluster, Plan]


def _flat_cluster() -> Cluster:
    return fully_connected(num_devices=NUM_DEVICES, device_type="v100-32", bytes_per_second=50e9)


def _placed(layout: str) -> Case:
    graph, cluster = synthetic_gpt(NUM_OPS), _flat_cluster()
    return graph, cluster, place(graph, cluster, layout)


def _replicated() -> Case:
    graph, cluster = synthetic_gpt(NUM_OPS, batch=16), find_cluster("v100-32-x16")
    devices = tuple(device.name for device in cluster.devices)
    return graph, cluster, Plan(parts=(Part(ops=graph.op_names, devices=devices),))


def _hybrid(name: str, **degrees: int) -> Case:
    graph, cluster = load_graph(GPT3), find_cluster(name)
    return graph, cluster, Plan.from_degrees(graph, cluster, **degrees)


def _replicated_widely() -> Case:
    graph, cluster = load_graph("resnet50").at_batch(1024), find_cluster("h100-x8x128")
    devices = tuple(device.name for device in cluster.devices)
    return graph, cluster, Plan(parts=(Part(ops=graph.op_names, devices=devices),))


CASES: Mapping[str, Callable[[], Case]] = {
    "16 devices, blocks": lambda: _placed("blocks"),
    "16 devices, random": lambda: _placed("random"),
    "16 devices, replicas": _replicated,
    "1,024 devices, hybrid": lambda: _hybrid(
        "h100-x8x128", tensor=8, pipeline=16, data=8, microbatches=48
    ),
    "1,024 devices, replicas": _replicated_widely,
}


def measure(name: str, folder: Path) -> dict[str, Any]:
    """Draw a case, and load it in a browser."""
    graph, cluster, plan = CASES[name]()
    timeline = simulate(graph, cluster, plan, with_links=True)
    answer = Answer(
        model=graph.name,
        cluster=cluster.name,
        batch=graph.batch,
        method="hybrid",
        plan=plan,
        step_seconds=timeline.step_seconds,
        bound_seconds=0.0,
        stop=Stop.ENDED,
        peak_bytes=timeline.peak_bytes,
    )
    begin = time.perf_counter()
    entry = make_entry(graph, cluster, answer, timeline=timeline)
    explained = time.perf_counter()
    path = folder / f"{name.replace(', ', '-').replace(' ', '-').replace(',', '')}.html"
    write_page([entry], path)
    return {
        "case": name,
        "ops": graph.num_ops,
        "devices": cluster.num_devices,
        "instructions": timeline.program.num_instructions,
        "explain_seconds": explained - begin,
        "draw_seconds": time.perf_counter() - explained,
        "megabytes": path.stat().st_size / 1e6,
        **_browse(path),
    }


def _browse(path: Path) -> dict[str, Any]:
    from playwright.sync_api import sync_playwright

    loads: list[dict[str, float]] = []
    with sync_playwright() as started:
        browser = started.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        for _ in range(LOADS):
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.goto(path.resolve().as_uri())
            page.wait_for_selector("body[data-ready=true]", timeout=120_000)
            marks = page.evaluate(
                "() => performance.getEntriesByType('mark').map((m) => [m.name, m.startTime])"
            )
            loads.append({each: at / 1e3 for each, at in marks})
            found = page.evaluate("() => [STATE.view.data.bars, STATE.view.names.length]")
            page.locator("#timeline canvas").scroll_into_view_if_needed()
            gaps = page.evaluate(_ZOOM)
            page.close()
        browser.close()
    best = {each: min(load[each] for load in loads) for each in loads[0]}
    return {
        "bars": found[0],
        "rows": found[1],
        "first_seconds": best["meshwright-first"],
        "timeline_seconds": best["meshwright-timeline"],
        "ready_seconds": best["meshwright-ready"],
        "zoom_fps": 1e3 * len(gaps) / sum(gaps),
        "slowest_ms": max(gaps),
    }


def as_text(row: Mapping[str, Any]) -> str:
    """A row for people."""
    return (
        f"{row['case']:24} {row['ops']:,} ops, {row['bars']:,} bars in {row['rows']:,} rows: "
        f"{row['megabytes']:.2f} MB, first screen {row['first_seconds']:.2f} s, timeline "
        f"{row['timeline_seconds']:.2f} s, all {row['ready_seconds']:.2f} s, zoom "
        f"{row['zoom_fps']:.0f} frames/s (slowest {row['slowest_ms']:.0f} ms); drawn in "
        f"{row['draw_seconds']:.1f} s"
    )


def rows(names: list[str], folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each case."""
    for name in names or list(CASES):
        yield measure(name, folder)


def main() -> None:
    """Measure the reports of all cases, and print a line for each."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {'; '.join(CASES)}")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--keep", type=Path, help="where the reports stay")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.keep or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        for row in rows(arguments.cases, folder):
            print(json.dumps(row) if arguments.json else as_text(row), flush=True)


if __name__ == "__main__":
    main()
