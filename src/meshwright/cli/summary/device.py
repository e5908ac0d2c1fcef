"""What each device does, for people: a table and a chart, in which devices that are alike are one
line."""

from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import groupby
from typing import NamedTuple

from rich.console import Console, Group

from meshwright.cli.console import Cell, Words
from meshwright.cli.gantt import GLYPHS, Activity, draw_activities
from meshwright.cli.sheet import Sheet
from meshwright.cluster.cluster import Cluster
from meshwright.cost.memory import Footprint
from meshwright.errors import printable
from meshwright.plan.plan import Plan
from meshwright.report.hybrid_facts import name_runs
from meshwright.simulate.timeline import Timeline
from meshwright.units import GIB, format_count, format_percent, format_seconds

MAX_DEVICES = 32
"""Devices, or groups of devices that are alike, that get lines of their own."""
_BAR = 8
MAX_LABEL = 24
"""Characters before each line of a chart."""
_STYLES = ("green", "dodger_blue2", "magenta", "yellow", "bright_black")
"""The colours of a chart, one for each `Activity`."""


class Detail(IntEnum):
    """How much is shown."""

    SHORT = 0
    """Only the facts are shown, as --quiet asks for."""
    USUAL = 1
    """Rows that are equal are one, and long tables are cut."""
    WHOLE = 2
    """All rows are shown, as --verbose asks for."""

    @staticmethod
    def of(arguments: Namespace) -> "Detail":
        """What the options of a command ask for."""
        return Detail.SHORT if arguments.quiet else Detail(Detail.USUAL + arguments.verbose)


class _DeviceRow(NamedTuple):
    """What the table says of a device, besides its name."""

    type: str
    work: str
    busy_percent: int
    sizes: str
    eighths: int
    """Of its memory, that are full."""
    style: str
    is_over: bool
    shown: str
    """What nvidia-smi shows; empty where it is the peak."""
    own: int
    """The device itself where each has a row, else -1."""


Rows = Mapping[_DeviceRow, Sequence[int]]
"""The devices of each row."""


def find_rows(
    cluster: Cluster,
    plan: Plan,
    timeline: Timeline,
    memory: Footprint,
    detail: Detail = Detail.USUAL,
) -> Rows:
    """What devices do, those of whom the same is said together."""
    shown = memory.shown_bytes
    work, busy = _work_of_devices(plan), timeline.device_utilisation.tolist()
    rows: dict[_DeviceRow, list[int]] = {}
    for number, device in enumerate(cluster.devices):
        peak = timeline.peak_bytes[number]
        full = peak / device.memory_bytes
        row = _DeviceRow(
            type=device.type,
            work=work.get(device.name, "-"),
            busy_percent=round(100 * busy[number]),
            sizes=f"{peak / GIB:5.2f} of {device.memory_bytes / GIB:.3g} GiB",
            eighths=min(_BAR, round(full * _BAR)),
            style="red" if full > 1 else "yellow" if full > 0.9 else "green",
            is_over=full > 1,
            shown=f"{shown[number] / GIB:.2f} GiB" if shown[number] > peak else "",
            own=number if detail is Detail.WHOLE else -1,
        )
        rows.setdefault(row, []).append(number)
    if detail is not Detail.WHOLE and len(rows) > MAX_DEVICES:
        rows = dict(list(rows.items())[:MAX_DEVICES])
    return rows


def device_table(cluster: Cluster, rows: Rows) -> Sheet:
    """A line for each row, and how many devices there are besides."""
    beside = ["as nvidia-smi shows"] if any(row.shown for row in rows) else []
    lines: list[Sequence[Cell]] = []
    for row, devices in rows.items():
        busy = _bar(round(row.busy_percent / 100 * _BAR))
        memory = _bar(row.eighths)
        lines.append(
            (
                _name(cluster, devices),
                row.type,
                row.work,
                Words.assemble((busy, "green"), f" {row.busy_percent:3} %"),
                Words.assemble((memory, row.style), f" {row.sizes}", *([" OVER"] * row.is_over)),
                *([row.shown] if beside else []),
            )
        )
    left = cluster.num_devices - sum(map(len, rows.values()))
    if left:
        lines.append((f"... {left:,} more",))
    heads = ("device", "type", "work", "busy", "peak memory", *beside)
    return Sheet(heads, lines, wraps=("device", "work"))


def show_devices(
    console: Console, cluster: Cluster, rows: Rows, timeline: Timeline, detail: Detail
) -> None:
    """A chart of the step; devices that do the same are one line."""
    groups = [list(devices) for devices in rows.values()]
    if cluster.num_devices <= MAX_DEVICES and timeline.step_seconds:  # few enough to look
        devices = [device for group in groups for device in group]
        lines = draw_activities(timeline, devices, _width(console, 0))
        alike: dict[object, list[int]] = {}
        for device, line in zip(devices, lines, strict=True):
            alike.setdefault(device if detail is Detail.WHOLE else line, []).append(device)
        groups = list(alike.values())
    show_chart(console, timeline, {short_name(cluster, group): group[0] for group in groups})


def show_chart(console: Console, timeline: Timeline, devices: Mapping[str, int]) -> None:
    """What some devices do over the step, by what they are called."""
    margin = min(max(len(printable(name)) for name in devices), MAX_LABEL) + 2
    width = _width(console, margin)
    numbers = list(devices.values())
    lines = draw_activities(timeline, numbers, width) if timeline.step_seconds else []
    end = format_seconds(timeline.step_seconds)
    console.print(Group(*_chart(list(devices), lines, margin, end.rjust(width - 1))))


def _width(console: Console, margin: int) -> int:
    return max(20, min(80, console.width - margin - 1))


def _chart(names: Sequence[str], lines: Sequence[str], margin: int, end: str) -> Iterator[Words]:
    for name, line in zip(names, lines, strict=False):
        text = Words(f"{printable(name)[: margin - 2]:<{margin}}")
        text.append_text(paint_activities(line))
        yield text
    yield Words(" " * margin + "0" + end, style="bright_black")
    yield legend(margin)


def paint_activities(line: str) -> Words:
    """A line of a chart in the colours of its activities."""
    text = Words()
    for glyph, run in groupby(line):
        text.append("".join(run), style=_STYLES[GLYPHS.index(glyph)])
    return text


def legend(margin: int) -> Words:
    """What the signs of a chart mean."""
    text = Words(" " * margin)
    for activity in Activity:
        text.append(GLYPHS[activity], style=_STYLES[activity])
        text.append(f" {activity.name.lower()}{'' if activity is Activity.IDLE else '   '}")
    return text


def _name(cluster: Cluster, devices: Sequence[int]) -> str:
    """Devices, by the names of whole hosts where they are, and how many."""
    names = [cluster.devices[device].name for device in devices]
    return names[0] if len(names) == 1 else f"{name_runs(cluster, names, 1)} ({len(names):,})"


def short_name(cluster: Cluster, devices: Sequence[int]) -> str:
    """The same, or by the first device alone where a chart has no room for it."""
    name = _name(cluster, devices)
    if len(name) <= MAX_LABEL or len(devices) == 1:
        return name
    return f"{cluster.devices[devices[0]].name} +{len(devices) - 1:,}"


def _bar(filled: int) -> str:
    return "█" * min(_BAR, filled) + "░" * (_BAR - min(_BAR, filled))


def _work_of_devices(plan: Plan) -> dict[str, str]:
    """By device how many ops it runs, in which stages, and for which share of the batch."""
    num_ops: dict[str, int] = {}
    stages: dict[str, list[str]] = {}
    shares: dict[str, set[float]] = {}
    for number, part in enumerate(plan.parts):
        for team, (low, high) in zip(part.teams(), part.rows(), strict=True):
            for device in team:
                num_ops[device] = num_ops.get(device, 0) + len(part.ops)
                stages.setdefault(device, []).append(str(number))
                shares.setdefault(device, set()).add(round(high - low, 9))
    return {
        device: " · ".join(_describe_work(plan, count, stages[device], shares[device]))
        for device, count in num_ops.items()
    }


def _describe_work(
    plan: Plan, num_ops: int, stages: list[str], shares: set[float]
) -> Iterator[str]:
    if plan.schedule is not None and len(plan.parts) > 1:
        yield f"stage {', '.join(stages)}"
    yield format_count(num_ops, "op")
    if min(shares) < 1:
        low, high = format_percent(min(shares)), format_percent(max(shares))
        yield f"{low} of batch" if low == high else f"{low[:-2]} to {high} of batch"
