"""What `plan` says of an answer on one screen: the facts, then what devices do, a line each.

What there is no room for is left to --verbose, to `explain` and to the report.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from meshwright.cli.console import Cell, Words
from meshwright.cli.gantt import draw_activities
from meshwright.cli.sheet import GAP, Sheet
from meshwright.cli.summary.device import (
    MAX_LABEL,
    find_rows,
    legend,
    paint_activities,
    short_name,
)
from meshwright.cli.summary.hybrid import name_degrees, name_layers
from meshwright.cluster.cluster import Cluster
from meshwright.cost.memory import Footprint
from meshwright.plan.facts import HybridFacts, StageFacts
from meshwright.plan.plan import Plan
from meshwright.report.hybrid_facts import FULL
from meshwright.simulate.timeline import Timeline
from meshwright.units import GIB, format_bytes, format_seconds

MAX_LINES = 20
"""Lines of the facts and the devices; of the 24 of a usual terminal four are left for where the
rest is, what to do next, what was written, and the prompt."""
_FRAME = 4
"""Columns of a panel's frame."""
_EDGES = 2
"""Lines of a panel's frame."""
_HEADS = 3
"""Lines of the table of devices beside its rows: heads, a rule, and the legend."""
_LEAST_ROWS = 2
_MOST_FACTS = MAX_LINES - _EDGES - _HEADS - _LEAST_ROWS
"""Lines of facts."""
_LEAST_TELLING = ("methods", "path", "stop")
"""The facts that are left out first where there are too many."""
_LONG = "times"
"""The fact that may take the lines that are left."""
_MOST_WORK = 30
"""Columns of what a device does, in words."""
_LEAST_TEXT = 10
"""The columns of a fact on the narrowest terminal that is cared for."""
_LEAST_CHART, _MOST_CHART = 16, 60
_BESIDE = ("", "busy", "peak GiB", "runs")
"""The heads of the columns beside the chart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScreenRow:
    """Devices that do the same, or those of a stage."""

    name: str
    device: int
    """The first of them, whose step is drawn."""
    busy: float
    """The part of the step that it is busy for."""
    peak_bytes: float
    limit_bytes: float
    work: str
    """What it runs, in words."""


def screen_rows(
    cluster: Cluster,
    plan: Plan,
    timeline: Timeline,
    memory: Footprint,
    facts: HybridFacts | None,
) -> list[ScreenRow]:
    """A row for each stage where stages are known, else for devices that do the same."""
    return [
        *(
            _device_rows(cluster, plan, timeline, memory)
            if facts is None
            else _stage_rows(cluster, facts.stages)
        )
    ]


def _stage_rows(cluster: Cluster, stages: Sequence[StageFacts]) -> Iterator[ScreenRow]:
    """Stages that share their devices are one row."""
    numbers: dict[int, list[int]] = {}
    for number, stage in enumerate(stages):
        numbers.setdefault(cluster.index[stage.part.devices[0]], []).append(number)
    for device, several in numbers.items():
        stage = stages[several[0]]
        part = stage.part
        zero = f" zero {part.zero}" if part.zero else ""
        yield ScreenRow(
            name=f"stage{'s' * (len(several) > 1)} {', '.join(map(str, several))}",
            device=device,
            busy=stage.busy,
            peak_bytes=stage.peak_bytes,
            limit_bytes=stage.usable_bytes,
            work=f"{name_layers(stage)}; {name_degrees(part)}{zero}",
        )


def _device_rows(
    cluster: Cluster, plan: Plan, timeline: Timeline, memory: Footprint
) -> Iterator[ScreenRow]:
    for row, devices in find_rows(cluster, plan, timeline, memory).items():
        device = cluster.devices[devices[0]]
        yield ScreenRow(
            name=short_name(cluster, devices),
            device=devices[0],
            busy=row.busy_percent / 100,
            peak_bytes=timeline.peak_bytes[devices[0]],
            limit_bytes=device.memory_bytes,
            work=row.work,
        )


def peak_text(cluster: Cluster, timeline: Timeline, memory: Footprint) -> str:
    """How full the fullest device is."""
    fullest = max(
        range(cluster.num_devices),
        key=lambda device: timeline.peak_bytes[device] / cluster.devices[device].memory_bytes,
    )
    device, peak = cluster.devices[fullest], timeline.peak_bytes[fullest]
    text = f"{format_bytes(peak)} of {format_bytes(device.memory_bytes)} on the fullest device"
    shown = memory.shown_bytes[fullest]
    return f"{text}; nvidia-smi shows {format_bytes(shown)}" if shown > peak else text


def fit_facts(console: Console, rows: Mapping[str, Words]) -> tuple[Table, int]:
    """A line for each fact, and how many lines these are.

    What is cut off ends with an ellipsis. Where there are too many, those that say least go.
    """
    kept = dict(rows)
    for name in _LEAST_TELLING:
        if len(kept) > _MOST_FACTS:
            kept.pop(name, None)
    left = _MOST_FACTS - len(kept)
    margin = max(map(len, kept)) + GAP
    width = max(_LEAST_TEXT, console.width - _FRAME - margin)
    table, count = Table.grid(padding=(0, GAP)), 0
    for name, text in kept.items():
        lines = text.wrap(console, width)
        most = 1 + (left if name == _LONG else 0)
        if len(lines) > most:
            lines[most - 1].truncate(width - 1)
            lines[most - 1].rstrip()
            lines[most - 1].append("…")
        for place, line in enumerate(lines[:most]):
            table.add_row(Words("" if place else name, style="cyan"), line)
            count += 1
    return table, count


def show_rows(
    console: Console, rows: Sequence[ScreenRow], timeline: Timeline, num_facts: int
) -> None:
    """A table of as many rows as there is room for below the facts, with the step of each drawn."""
    room = _LEAST_ROWS + max(0, _MOST_FACTS - num_facts)
    shown = rows if len(rows) <= room else rows[: room - 1]
    cells = [_cells(row) for row in shown]
    more = f"... {len(rows) - len(shown):,} more" if len(shown) < len(rows) else ""
    columns = zip(_BESIDE, *cells, (more, "", "", ""), strict=True)
    others = sum(max(map(len, column)) + GAP for column in columns)
    width = max(_LEAST_CHART, min(_MOST_CHART, console.width - others))
    devices = [row.device for row in shown]
    drawn = draw_activities(timeline, devices, width) if timeline.step_seconds else []
    charts: list[Cell] = [paint_activities(line) for line in drawn] or [""] * len(shown)
    lines: list[Sequence[Cell]] = [
        (name, chart, busy, Words(peak, style=_style(row)), work)
        for row, (name, busy, peak, work), chart in zip(shown, cells, charts, strict=True)
    ]
    if more:
        lines.append((more,))
    end = format_seconds(timeline.step_seconds)
    name, *beside = _BESIDE
    heads = (name, "0" + end.rjust(width - 1), *beside)
    console.print(Sheet(heads, lines))
    console.print(legend(0))


def _cells(row: ScreenRow) -> tuple[str, str, str, str]:
    work = Words(row.work)
    work.truncate(_MOST_WORK, overflow="ellipsis")
    is_over = row.peak_bytes > row.limit_bytes
    peak = f"{row.peak_bytes / GIB:.2f} of {row.limit_bytes / GIB:.3g}{' OVER' * is_over}"
    return row.name[:MAX_LABEL], f"{100 * row.busy:.0f} %", peak, work.plain


def _style(row: ScreenRow) -> str:
    share = row.peak_bytes / max(row.limit_bytes, 1.0)
    return "red" if share > 1 else "yellow" if share > FULL else "green"
