"""What `plan` prints fits a screen of 24 lines and 100 columns, whatever the plan."""

import io
import math
from pathlib import Path
from typing import Any

import pytest
from cli_runner import run
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from meshwright.cli.console import Words
from meshwright.cli.summary.screen import ScreenRow, fit_facts, screen_rows, show_rows
from meshwright.cluster.build import fully_connected
from meshwright.cluster.catalogue import find_cluster
from meshwright.cost.memory import Footprint
from meshwright.plan.plan import place_ops
from meshwright.simulate.footprint import footprint
from meshwright.simulate.simulate import simulate
from meshwright.zoo.shipped import read_shipped

LINES, COLUMNS = 24, 100
SHAPE = "gpt:hidden=1024,heads=16,layers=8,sequence=128,vocabulary=512,batch=1024"

PLANS = {
    "a placement": ("unet", "nvlink50-eth20-x4", "--method", "heft"),
    "data": ("mlp", "v100-32-x8", "--method", "data"),
    "unlike stages": ("inception-v3", "titan-v-4x4", "--method", "consecutive"),
    "round-robin on unlike devices": ("unet", "tag-testbed", "--method", "round-robin"),
    "a deployment": ("alexnet-32", "mixed-s2", "--method", "deploy", "--budget", 0.5),
    "all searches": ("mlp", "v100-32-x2", "--budget", 0.5),
    "rails": ("mlp", "rail10-4x2", "--method", "data", "--allocate", "--budget", 0.5),
    "layers": (SHAPE, "h100-x8x2", "--method", "hybrid", "--budget", 0.5),
    "layers on 1,024 devices": (SHAPE, "h100-spineleaf-1024", "--method", "manual"),
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_fits_a_screen(kind: str, tmp_path: Path) -> None:
    model, cluster, *options = PLANS[kind]
    # Long reports and traces are for the tests of these.
    output = () if "1,024" in kind else ("-o", tmp_path / "out")
    result = run("plan", model, "--cluster", cluster, *output, *options)
    assert result.code == 0, result.err
    shown = result.out.splitlines()
    # Beside what is printed a line says what was written, on standard error.
    assert len(shown) < LINES, result.out
    # Lines that name the folder are as long as its name.
    assert max(len(line) for line in shown if str(tmp_path) not in line) <= COLUMNS
    facts = [line.split()[1] for line in shown if line.startswith("│ ")]
    assert facts[:2] == ["step", "plan"]
    assert {"peak", "bound", "gap", "method"} <= {*facts}
    assert shown[-2].startswith("more: --verbose prints all tables, ")
    assert ("`meshwright explain " in shown[-2]) == bool(output)
    assert shown[-1].startswith("next: ")


def test_without_a_folder_the_screen_names_what_would_write_the_rest() -> None:
    result = run("plan", "mlp", "--cluster", "v100-32-x2", "--method", "data")
    assert (
        result.out.splitlines()[-2] == "more: --verbose prints all tables, -o DIR writes a report"
    )


@given(st.lists(st.integers(1, 300), min_size=1, max_size=20), st.integers(30, 200))
def test_facts_are_cut_and_the_least_telling_left_out(lengths: list[int], width: int) -> None:
    names = ["step", "path", "methods", "stop", "times", *(f"fact{k}" for k in range(8))]
    rows = {name: Words("word " * (length // 5 + 1)) for name, length in zip(names, lengths)}  # noqa: B905
    console = Console(file=io.StringIO(), width=width)
    table, count = fit_facts(console, rows)
    with console.capture() as capture:
        console.print(table)
    lines = capture.get().splitlines()
    assert len(lines) == count <= 13
    shown = {line.split()[0] for line in lines if not line.startswith(" ")}
    assert set(rows) - shown <= {"path", "methods", "stop"}
    assert "step" in shown


def test_a_row_says_what_its_devices_do() -> None:
    graph, cluster = read_shipped("mlp"), find_cluster("v100-32-x2")
    devices = [device.name for device in cluster.devices]
    plan = place_ops(graph.op_names, [0] * graph.num_ops, devices)
    timeline = simulate(graph, cluster, plan)
    memory: Footprint = footprint(graph, cluster, timeline)
    rows: list[Any] = screen_rows(cluster, plan, timeline, memory, None)
    assert [row.name for row in rows] == devices
    assert [row.work for row in rows] == ["30 ops", "-"]
    assert rows[0].peak_bytes == timeline.peak_bytes[0]
    assert rows[1].busy == 0
    assert math.isclose(rows[0].busy, timeline.device_utilisation[0], abs_tol=0.01)


def test_what_stands_for_rows_that_are_left_out_takes_no_room_of_charts() -> None:
    """Its words are longer than the names of the rows that are shown."""
    graph = read_shipped("mlp")
    cluster = fully_connected(num_devices=9, device_type="v100-32", bytes_per_second=1e10)
    names = [device.name for device in cluster.devices]
    timeline = simulate(graph, cluster, place_ops(graph.op_names, [0] * graph.num_ops, names[:1]))
    rows = [
        ScreenRow(
            name=name, device=number, busy=0.5, peak_bytes=1e9, limit_bytes=3e10, work="w" * 30
        )
        for number, name in enumerate(names)
    ]
    text = io.StringIO()
    show_rows(Console(file=text, width=COLUMNS), rows, timeline, 12)
    shown = text.getvalue().splitlines()
    assert max(map(len, shown)) <= COLUMNS
    # Heads, a rule, two rows, what is left out, the legend: no row takes two lines.
    assert [line.split()[0] for line in shown[2:-1]] == [*names[:2], "..."]
    assert shown[0].split()[-1] == "runs"
