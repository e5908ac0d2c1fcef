"""Figures of a report as SVG and PNG, by matplotlib, which is optional: the data of the page,
drawn once for paper."""

import re
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from math import isfinite
from pathlib import Path
from typing import Any

import numpy as np

from meshwright.errors import InputError, printable
from meshwright.page.bar import CAUSES, Bars, draw_bars
from meshwright.page.document import causes_of, entry_seconds
from meshwright.page.entry import PageEntry
from meshwright.page.memory import KINDS, MemoryView, draw_memory
from meshwright.page.network import draw_network
from meshwright.page.strip import draw_strips
from meshwright.units import format_seconds
from meshwright.whatif.plot import PLOTS, need_plots

CAUSE_COLORS = (
    "#4c8fe0", "#8c6bd1", "#c06bc9", "#2f9e68", "#8794a3", "#e8832a", "#d9484b", "#b83b6c",
    "#e57fa0", "#c29a1f", "#8f8a2c", "#cf6f52", "#9aa3ad", "#7f8994", "#b0b7bf", "#96705a",
    "#c4c9cf", "#b58f2d",
)  # fmt: skip
"""As the page has them."""
KIND_COLORS = (
    "#4c8fe0", "#8c6bd1", "#8794a3", "#5f7fa8", "#d9484b", "#c29a1f", "#2f9e68", "#e8832a",
)  # fmt: skip
MAX_TRACKS = 32
"""Rows of a printed timeline."""
_WIDTH = 9.0
"""Inches."""
_COLUMNS = 2000
"""Bars shorter than the step over so many are drawn together with their neighbours."""
_GIB = 2.0**30

Figure = Any
Draw = Callable[[PageEntry], Figure | None]


def write_figures(entries: Sequence[PageEntry], folder: Path) -> list[Path]:
    """Write the figures of each plan into a folder, which may exist; the files."""
    need_plots()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: cannot be made ({error.strerror or error})") from None
    written: list[Path] = []
    for prefix, entry in zip(_prefixes(entries), entries, strict=True):
        for name, figure in _list_figures(entry):
            written += _save(figure, folder / f"{prefix}{name}")
    if len(entries) > 1:
        written += _save(_draw_plans(entries), folder / "plans")
    return written


def _prefixes(entries: Sequence[PageEntry]) -> Iterator[str]:
    """What the files of each plan begin with; nothing for one plan."""
    for number, entry in enumerate(entries, start=1):
        plain = re.sub(r"[^A-Za-z0-9._-]+", "-", entry.name).strip("-.")[:40]
        yield f"{number}-{plain}-" if len(entries) > 1 else ""


def _list_figures(entry: PageEntry) -> Iterator[tuple[str, Figure]]:
    if entry.answer.history:
        yield "search", _draw_search(entry)
    if entry.plan is None or entry.timeline is None:
        return
    yield "timeline", _draw_timeline(entry, draw_bars(entry.timeline, entry.cluster, entry.plan))
    if entry.case is not None:
        bars = draw_bars(entry.case.measured, entry.cluster, entry.plan)
        yield "measured", _draw_timeline(entry, bars)
    yield (
        "memory",
        _draw_memory(
            entry,
            draw_memory(
                entry.graph, entry.cluster, entry.plan, entry.timeline, entry.answer.hybrid
            ),
        ),
    )
    yield "cluster", _draw_cluster(entry)
    yield "model", _draw_model(entry)


def _open(height: float) -> tuple[Figure, Any]:
    # Not pyplot, which keeps figures and looks for a display.
    figure = import_module("matplotlib.figure").Figure(
        figsize=(_WIDTH, height), layout="constrained"
    )
    return figure, figure.add_subplot()


def _save(figure: Figure, path: Path) -> list[Path]:
    files = [path.with_name(path.name + suffix) for suffix in PLOTS]
    for file in files:
        try:
            figure.savefig(file, dpi=160)
        except OSError as error:
            raise InputError(f"{file}: cannot be written ({error.strerror or error})") from None
    return files


def _text(text: str, most: int = 48) -> str:
    """A name as it stands: `$` begins no formula."""
    return printable(text, most).replace("$", r"\$")


def _draw_timeline(entry: PageEntry, bars: Bars) -> Figure:
    """The first rows, with the critical path on top."""
    tracks = bars.tracks[:MAX_TRACKS]
    figure, axes = _open(1.2 + 0.24 * (len(tracks) + 1))
    present: set[int] = set()
    rows = [bars.path, *(bars.sets[track.bars] for track in tracks)]
    for place, each in enumerate(rows):
        for cause, spans in _merge(each, bars.num_ticks):
            present.add(cause)
            color = CAUSE_COLORS[cause % len(CAUSE_COLORS)]
            times = [(low * bars.tick_seconds * 1e3, wide * 1e3) for low, wide in spans]
            scaled = [(low, wide * bars.tick_seconds) for low, wide in times]
            axes.broken_barh(scaled, (place - 0.4, 0.8), facecolors=color, linewidth=0)
    axes.set_yticks(range(len(rows)), ["critical path", *(_text(each.name) for each in tracks)])
    axes.tick_params(axis="y", labelsize=7)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, bars.num_ticks * bars.tick_seconds * 1e3)
    axes.set_xlabel("ms")
    more = len(bars.tracks) - len(tracks)
    axes.set_title(_title(entry) + (f", {len(tracks)} of {len(bars.tracks):,} rows" * (more > 0)))
    _add_legend(axes, [(str(CAUSES[each]), CAUSE_COLORS[each]) for each in sorted(present)])
    return figure


def _merge(each: Any, ticks: int) -> Iterator[tuple[int, list[tuple[int, int]]]]:
    """By cause the spans of bars, those that nearly touch as one."""
    least = ticks / _COLUMNS
    for cause in np.unique(each.cause).tolist():
        own = each.cause == cause
        spans: list[list[int]] = []
        for low, high in zip(each.start[own].tolist(), each.finish[own].tolist(), strict=True):
            if spans and low - spans[-1][1] < least:
                spans[-1][1] = max(spans[-1][1], high)
            else:
                spans.append([low, high])
        yield cause, [(low, high - low) for low, high in spans]


def _add_legend(axes: Any, items: Sequence[tuple[str, str]]) -> None:
    patch = import_module("matplotlib.patches").Patch
    handles = [patch(color=color, label=name) for name, color in items]
    axes.figure.legend(handles=handles, loc="outside lower center", ncols=4, fontsize=8)


def _title(entry: PageEntry) -> str:
    step = format_seconds(entry_seconds(entry))
    return f"{_text(entry.graph.name)} on {_text(entry.cluster.name)}: {step} a step"


def _draw_memory(entry: PageEntry, memory: MemoryView) -> Figure:
    """Draw the memory of the fullest device over time, by kind of bytes."""
    devices = list(memory.curve_of)
    fill = memory.peak_bytes[devices] / np.maximum(memory.usable_bytes[devices], 1.0)
    device = devices[int(np.argmax(fill))]
    curve = memory.curves[memory.curve_of[device]]
    figure, axes = _open(3.6)
    kinds = np.flatnonzero(curve.held.any(axis=0)).tolist()
    assert entry.timeline is not None
    when = np.append(curve.when, max(entry.timeline.step_seconds, curve.when[-1])) * 1e3
    held = np.vstack((curve.held, curve.held[-1:])) / _GIB
    axes.stackplot(
        when,
        *(held[:, kind] for kind in kinds),
        labels=[KINDS[kind] for kind in kinds],
        colors=[KIND_COLORS[kind] for kind in kinds],
        step="post",
    )
    for label, size, style in (
        ("may be", memory.usable_bytes[device], "--"),
        ("device has", memory.total_bytes[device], ":"),
    ):
        axes.axhline(float(size) / _GIB, color="black", linestyle=style, linewidth=1, label=label)
    axes.set_xlabel("ms")
    axes.set_ylabel("GiB")
    axes.set_xlim(0, float(when[-1]) or 1.0)
    axes.set_title(f"{_title(entry)}, memory of {_text(entry.cluster.devices[device].name)}")
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _draw_cluster(entry: PageEntry) -> Figure:
    """How busy each device is, host by host."""
    assert entry.timeline is not None
    cluster, network = entry.cluster, draw_network(entry.cluster, entry.timeline)
    widest = max(len(each) for each in cluster.devices_of_host)
    shares = np.full((len(cluster.hosts), widest), np.nan)
    for host, devices in enumerate(cluster.devices_of_host):
        shares[host, : len(devices)] = network.device_busy[list(devices)]
    figure, axes = _open(min(9.0, 1.8 + 0.22 * len(cluster.hosts)))
    image = axes.imshow(shares, cmap="YlOrRd", vmin=0, vmax=1, aspect="auto")
    if len(cluster.hosts) <= MAX_TRACKS:
        axes.set_yticks(range(len(cluster.hosts)), [_text(each, 24) for each in cluster.hosts])
    axes.set_xlabel("device of its host")
    axes.set_title(f"{_title(entry)}, the part that devices are busy")
    figure.colorbar(image, ax=axes)
    return figure


def _draw_model(entry: PageEntry) -> Figure:
    """Which part runs which ops."""
    assert entry.plan is not None
    strips = draw_strips(entry.graph, entry.plan)
    figure, axes = _open(1.4 + 0.5 * len(strips))
    colors = import_module("matplotlib").colormaps["tab20"]
    for row, strip in enumerate(strips):
        for stretch in strip.stretches:
            low, wide = stretch.first / strip.num_ops, stretch.count / strip.num_ops
            axes.broken_barh([(low, wide)], (row - 0.4, 0.8), facecolors=colors(stretch.part % 20))
            if wide > 0.04:
                axes.text(low + wide / 2, row, str(stretch.part), ha="center", va="center", size=8)
    axes.set_yticks(range(len(strips)), [each.phase for each in strips])
    axes.invert_yaxis()
    axes.set_xlim(0, 1)
    axes.set_xlabel("ops, in the order of the model; numbers are parts of the plan")
    axes.set_title(_title(entry))
    return figure


def _draw_search(entry: PageEntry) -> Figure:
    """The best step and the bounds over the time of the search."""
    history = entry.answer.history
    figure, axes = _open(3.6)
    end = max(entry.answer.search_seconds, history[-1].seconds)
    found = [each for each in history if isfinite(each.step_seconds)]
    if found:
        when = [each.seconds for each in found] + [end]
        steps = [each.step_seconds for each in found] + [found[-1].step_seconds]
        axes.step(when, steps, where="post", label="best step", color=CAUSE_COLORS[0])
        for method in dict.fromkeys(each.method for each in found):
            own = [each for each in found if each.method == method]
            axes.plot(
                [each.seconds for each in own],
                [each.step_seconds for each in own],
                linestyle="",
                marker="o",
                label=_text(method),
            )
    for claim in dict.fromkeys(each.claim for each in history if each.bound_seconds > 0):
        own = [each for each in history if each.claim == claim and each.bound_seconds > 0]
        axes.step(
            [each.seconds for each in own] + [end],
            [each.bound_seconds for each in own] + [own[-1].bound_seconds],
            where="post",
            linestyle="--",
            label=f"bound: {_text(claim)}",
        )
    axes.set_xlabel("seconds of search")
    axes.set_ylabel("seconds a step")
    axes.set_ylim(bottom=0)
    axes.grid(visible=True, alpha=0.3)
    axes.set_title(_title(entry))
    figure.legend(loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _draw_plans(entries: Sequence[PageEntry]) -> Figure:
    """What the step of each plan is spent on, with its bound."""
    figure, axes = _open(1.6 + 0.45 * len(entries))
    present: dict[str, None] = {}
    for row, entry in enumerate(entries):
        left = 0.0
        for cause, seconds in causes_of(entry).items():
            color = CAUSE_COLORS[[str(each) for each in CAUSES].index(cause)]
            axes.barh(row, seconds, left=left, color=color, height=0.7)
            present[cause] = None
            left += seconds
        if entry.answer.bound_seconds > 0:
            bound = entry.answer.bound_seconds
            axes.plot([bound, bound], [row - 0.42, row + 0.42], color="black")
        if entry.comparison is not None:
            axes.plot([entry.comparison.measured_seconds], [row], marker="D", color="black")
    axes.set_yticks(range(len(entries)), [_text(entry.name) for entry in entries])
    axes.invert_yaxis()
    axes.set_xlabel("seconds a step; lines are bounds, diamonds measured steps")
    names = [str(each) for each in CAUSES]
    _add_legend(axes, [(each, CAUSE_COLORS[names.index(each)]) for each in present])
    return figure
