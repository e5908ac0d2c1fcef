"""Entries of a report as plain objects, which the page draws. What is a figure here stands in an
answer, a timeline or an explanation; texts are worded here, pixels are the page's."""

from collections import Counter
from collections.abc import Iterator, Sequence
from math import inf, isfinite
from typing import Any

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.errors import printable
from meshwright.files import finite
from meshwright.page.bar import CAUSES, Bars, BarSet, draw_bars
from meshwright.page.drawn import (
    bar_table,
    device_table,
    link_table,
    part_table,
    path_table,
)
from meshwright.page.entry import NO_SEARCH, PageEntry
from meshwright.page.memory import KINDS, MemoryView, draw_memory
from meshwright.page.network import NetworkView, draw_network
from meshwright.page.pack import Blobs
from meshwright.page.strip import Strip, draw_strips
from meshwright.page.table import (
    PageTable,
    comparison_tables,
    explanation_tables,
    history_table,
    whatif_table,
)
from meshwright.plan.answer import PROVEN, STOP_MEANINGS, Answer
from meshwright.plan.plan import Plan
from meshwright.simulate.timeline import Timeline
from meshwright.units import format_bytes, format_number, format_percent, format_seconds

MAX_NAME = 200
"""Characters of a name."""
_SHOWN_SHARES = 8
_LEAST_SHARE = 0.001
"""Shares below this are summed on the first screen."""
_MOST_REST = 0.75
"""So much of a step is told of at the least, where that is by places."""
_METHOD_SUFFIX = "_seconds"


def page_document(entries: Sequence[PageEntry], blobs: Blobs) -> dict[str, Any]:
    """The report of some plans; long columns are put into `blobs`."""
    return {
        "causes": [str(each) for each in CAUSES],
        "kinds": list(KINDS),
        "plans": [_describe_entry(entry, blobs) for entry in entries],
        "compared": plans_table(entries).document if len(entries) > 1 else None,
        "steps": [
            {
                "name": _name(entry.name),
                "predicted": finite(entry_seconds(entry)),
                "measured": None
                if entry.comparison is None
                else finite(entry.comparison.measured_seconds),
                "bound": finite(entry.answer.bound_seconds),
                "shares": {
                    str(cause): seconds for cause, seconds in causes_of(entry).items() if seconds
                },
            }
            for entry in entries
        ],
    }


def entry_seconds(entry: PageEntry) -> float:
    """The simulated step; infinity without a plan."""
    return inf if entry.timeline is None else entry.timeline.step_seconds


def causes_of(entry: PageEntry) -> dict[str, float]:
    """Seconds of the step by what they are spent on; they add up to it."""
    found: dict[str, float] = {}
    for each in entry.explanation.shares:
        found[str(each.cause)] = found.get(str(each.cause), 0.0) + each.seconds
    return found


def _name(text: str) -> str:
    return printable(text, MAX_NAME)


def _describe_entry(entry: PageEntry, blobs: Blobs) -> dict[str, Any]:
    tables: dict[str, list[dict[str, Any]]] = {
        "why": [each.document for each in explanation_tables(entry.explanation)],
        "whatif": [] if entry.whatif is None else [whatif_table(entry.whatif).document],
        "search": [history_table(entry.answer).document] if entry.answer.history else [],
    }
    found: dict[str, Any] = {
        "name": _name(entry.name),
        "summary": describe_summary(entry),
        "search": _describe_search(entry.answer),
        "tables": tables,
        "timelines": [],
    }
    if entry.plan is None or entry.timeline is None:
        return found
    graph, cluster, plan, timeline = entry.graph, entry.cluster, entry.plan, entry.timeline
    shown = [("predicted", timeline)]
    if entry.case is not None and entry.comparison is not None:
        shown.append(("measured", entry.case.measured))
        tables["run"] = [each.document for each in comparison_tables(entry.comparison)]
    for title, each in shown:
        bars = draw_bars(each, cluster, plan)
        found["timelines"].append({"title": title} | _describe_bars(bars, each, blobs))
    memory = draw_memory(graph, cluster, plan, timeline, entry.answer.hybrid)
    network = draw_network(cluster, timeline)
    strips = draw_strips(graph, plan)
    tables["device"] = [device_table(cluster, plan, memory, network).document]
    tables["link"] = [link_table(cluster, network).document]
    tables["part"] = [part_table(graph, cluster, plan, strips).document]
    return found | {
        "memory": _describe_memory(memory, blobs),
        "network": _describe_network(network, memory, cluster, blobs),
        "strips": _describe_strips(strips, blobs),
    }


def describe_summary(entry: PageEntry) -> dict[str, Any]:
    """What stands on the first screen: the figures, what limits the step, what to do next."""
    answer, graph, cluster = entry.answer, entry.graph, entry.cluster
    facts = [
        ("model", f"{graph.name} · batch {graph.facts['batch']} · {graph.num_ops:,} ops"),
        ("cluster", " · ".join((cluster.name, *cluster.facts.values()))),
    ]
    if entry.plan is not None:
        facts.append(("plan", answer.plan.description if answer.plan else ""))
        if entry.plan.runtime:
            facts.append(("runs on", entry.plan.runtime))
    if answer.method == NO_SEARCH:
        facts.append(("method", "no search: a plan that was run"))
    else:
        took = format_seconds(answer.search_seconds)
        facts.append(("method", f"{answer.method}, searched for {took}"))
        facts.append(("stop", f"{answer.stop.value}: {STOP_MEANINGS[answer.stop]}"))
    binding = answer.binding or (answer.hybrid.binding if answer.hybrid else "")
    facts.append(("binding", binding))
    facts.append(("times", answer.provenance))
    facts += [("note", each) for each in (*answer.notes, *entry.remarks)]
    return {
        "title": f"{_name(graph.name)} on {_name(cluster.name)}",
        "fits": entry.plan is not None,
        "figures": [
            dict(zip(("name", "value", "note"), each, strict=True)) for each in _figures(entry)
        ],
        "facts": [[name, printable(text, 600)] for name, text in facts if text],
        "limits": _limits(entry),
        "anchor": _name(entry.explanation.anchor),
        "commands": [printable(line, 2000) for line in entry.commands if line],
    }


def _figures(entry: PageEntry) -> Iterator[tuple[str, str, str]]:
    """The figures that people look for first: a name, a value, and what it means."""
    answer, timeline = entry.answer, entry.timeline
    if timeline is None:
        yield "step", "no plan fits", answer.binding or "the search names no constraint"
        return
    step = timeline.step_seconds
    launches = "hosts launch kernels for longer than devices run them"
    yield "step", format_seconds(step), launches if timeline.is_launch_bound else "simulated"
    if entry.comparison is not None:
        measured = entry.comparison
        kind = "emulated" if entry.case and entry.case.run.is_emulated else "measured"
        note = f"the prediction is {format_percent(abs(measured.error))} off"
        yield kind, format_seconds(measured.measured_seconds), note
    rate = answer.batch / step if step else inf
    tokens = answer.hybrid.tokens_per_second if answer.hybrid and answer.hybrid.tokens else 0.0
    more = f"{format_number(tokens)} tokens/s" if tokens else f"batch {answer.batch:,.10g}"
    yield "throughput", f"{format_number(rate)} samples/s", more
    if answer.bound_seconds > 0:
        yield "bound", format_seconds(answer.bound_seconds), PROVEN
        gap = max(0.0, step / answer.bound_seconds - 1)
        yield "gap", format_percent(gap), "at most so much slower than the best"
    elif answer.method != NO_SEARCH:
        yield "bound", "none", "the search proved no bound"
    error = answer.expected_error
    if error is not None:
        if error.mean is None:
            yield "trust", "unknown", "no measured steps of this kind were held out"
        else:
            about = format_percent(float(f"{error.mean:.2g}"))
            known = format_percent(float(f"{error.known_share:.3g}"))
            yield "trust", f"about {about} off", f"by held-out steps, for {known} of the time"
    if answer.memory is not None:
        used = answer.memory.peak_bytes / np.maximum(answer.memory.usable_bytes, 1.0)
        fullest = int(np.argmax(used))
        usable = float(answer.memory.usable_bytes[fullest])
        yield (
            "memory",
            format_bytes(float(answer.memory.peak_bytes[fullest])),
            f"{format_percent(float(used[fullest]))} of {format_bytes(usable)} that it may be, "
            f"on {_name(entry.cluster.devices[fullest].name)}",
        )
    if answer.hybrid is not None and answer.hybrid.mfu > 0:
        peak = f"of the {answer.hybrid.precision} peak of {answer.hybrid.num_devices:,} devices"
        yield "MFU", format_percent(answer.hybrid.mfu), peak


def _limits(entry: PageEntry) -> list[dict[str, Any]]:
    """What the step is spent on, the largest first, the small ones as one; where too much of it
    would be small, all places of a cause together."""
    step = entry.explanation.step_seconds or 1.0
    shares = [(str(each.cause), each.where, each.seconds) for each in entry.explanation.shares]
    shown = [each for each in shares[:_SHOWN_SHARES] if each[2] >= _LEAST_SHARE * step]
    if sum(seconds for *_, seconds in shown) < _MOST_REST * step:
        places = Counter(cause for cause, *_ in shares)
        shares = [
            (cause, f"{places[cause]:,} places", seconds)
            for cause, seconds in sorted(causes_of(entry).items(), key=lambda each: -each[1])
        ]
        shown = [each for each in shares[:_SHOWN_SHARES] if each[2] >= _LEAST_SHARE * step]
    rest = sum(seconds for *_, seconds in shares[len(shown) :])
    if rest > 0:
        shown = [*shown, ("the rest", "", rest)]
    return [
        {
            "cause": cause,
            "where": _name(where),
            "seconds": seconds,
            "share": seconds / step,
            "text": format_seconds(seconds),
            "part": format_percent(seconds / step),
        }
        for cause, where, seconds in shown
    ]


def _describe_search(answer: Answer) -> dict[str, Any]:
    """The moments of a search, and what each method found."""
    methods = {
        name.removesuffix(_METHOD_SUFFIX): finite(seconds)
        for name, seconds in answer.statistics.items()
        if name.endswith(_METHOD_SUFFIX) and name.removesuffix(_METHOD_SUFFIX) != "uniform"
    }
    return {
        "bound": finite(answer.bound_seconds),
        "step": finite(answer.step_seconds),
        "seconds": finite(answer.search_seconds),
        "history": [
            [each.seconds, each.method, finite(each.step_seconds), each.bound_seconds, each.claim]
            for each in answer.history
        ],
        "methods": methods if answer.method.startswith("auto") else {},
        "others": [
            [printable(each.description, 300), finite(each.step_seconds)]
            for each in answer.runner_ups
        ],
    }


def _describe_bars(bars: Bars, timeline: Timeline, blobs: Blobs) -> dict[str, Any]:
    counts = [len(each.start) for each in bars.sets]
    sets = _pack_bars(bars.sets, blobs)
    path = _pack_bars((bars.path,), blobs)
    path["track"] = blobs.add_whole(bars.path_track + 1)  # 0: none
    return {
        "step": timeline.step_seconds,
        "tick": bars.tick_seconds,
        "ticks": bars.num_ticks,
        "labels": blobs.add_texts([printable(each, MAX_NAME) for each in bars.labels]),
        "counts": counts,
        "sets": sets,
        "names": blobs.add_texts([printable(each.name, MAX_NAME) for each in bars.tracks]),
        "tracks": blobs.add_whole([each.bars for each in bars.tracks]),
        "links": [place for place, each in enumerate(bars.tracks) if each.is_link][:1],
        "bars": bars.num_bars,
        "path": path,
        "microbatches": bars.has_microbatches,
        "remarks": list(bars.remarks),
        "tables": [bar_table(bars).document, path_table(bars).document],
    }


def _pack_bars(sets: Sequence[BarSet], blobs: Blobs) -> dict[str, Any]:
    """Columns of all sets one after the other."""

    def column(name: str) -> Any:
        return np.concatenate([getattr(each, name) for each in sets] or [np.zeros(0, np.int64)])

    return {
        "start": blobs.add_whole(column("start"), is_rising=True),
        "length": blobs.add_whole(column("finish") - column("start")),
        "label": blobs.add_whole(column("label"), is_rising=True),
        "microbatch": blobs.add_whole(np.maximum(column("microbatch"), 0)),
        "cause": blobs.add_whole(column("cause")),
    }


def _describe_memory(memory: MemoryView, blobs: Blobs) -> dict[str, Any]:
    devices = list(memory.curve_of)
    kinds = [
        kind
        for kind in range(len(KINDS))
        if any(each.held[:, kind].any() for each in memory.curves)
    ]
    held = [each.held[:, kind] for each in memory.curves for kind in kinds]
    return {
        "kinds": kinds,
        "points": [len(each.when) for each in memory.curves],
        "when": blobs.add_floats(np.concatenate([each.when for each in memory.curves])),
        "held": blobs.add_floats(np.concatenate(held) if held else np.zeros(0)),
        "devices": devices,
        "curve": [memory.curve_of[device] for device in devices],
        "peak": [float(memory.peak_bytes[device]) for device in devices],
        "usable": [float(memory.usable_bytes[device]) for device in devices],
        "total": [float(memory.total_bytes[device]) for device in devices],
    }


def _describe_network(
    network: NetworkView, memory: MemoryView, cluster: Cluster, blobs: Blobs
) -> dict[str, Any]:
    full = memory.peak_bytes / np.maximum(memory.usable_bytes, 1.0)
    cables = network.cables
    return {
        "nodes": blobs.add_texts([printable(each, MAX_NAME) for each in cluster.nodes]),
        "devices": cluster.num_devices,
        "hosts": len(cluster.hosts),
        "tier": blobs.add_whole(network.tier),
        "home": blobs.add_whole(network.home),
        "types": [_name(each) for each in cluster.type_names],
        "type": blobs.add_whole(cluster.type_of),
        "busy": blobs.add_floats(network.device_busy),
        "calls": blobs.add_floats(network.device_calls),
        "full": blobs.add_floats(full),
        "link": blobs.add_floats(network.busiest_at(cluster)),
        "cables": [
            [*each.ends, *each.count, *each.bytes_per_second, *(round(b, 6) for b in each.busy)]
            for each in cables
        ],
    }


def _describe_strips(strips: Sequence[Strip], blobs: Blobs) -> list[dict[str, Any]]:
    return [
        {
            "phase": each.phase,
            "ops": each.num_ops,
            "whole": each.is_whole,
            "part": blobs.add_whole([stretch.part for stretch in each.stretches]),
            "count": blobs.add_whole([stretch.count for stretch in each.stretches]),
            "where": blobs.add_texts([_name(stretch.where) for stretch in each.stretches]),
        }
        for each in strips
    ]


def plans_table(entries: Sequence[PageEntry]) -> PageTable:
    """The plans beside each other, a column a plan."""
    names = [entry.name for entry in entries]
    columns = [_column(entry) for entry in entries]
    heads = list(dict.fromkeys(head for column in columns for head in column))
    rows = [(head, *(column.get(head, "-") for column in columns)) for head in heads]
    return PageTable(
        title="Plans side by side",
        heads=("", *(printable(name, MAX_NAME) for name in names)),
        rows=tuple(rows),
        right=(),
    )


def _column(entry: PageEntry) -> dict[str, str]:
    """What is compared of a plan."""
    figures = {name: value for name, value, _ in _figures(entry)}
    plan: Plan | None = entry.plan
    found = {
        "model": entry.graph.name,
        "cluster": entry.cluster.name,
        "plan": "" if plan is None else plan.description,
        "method": entry.answer.method,
        **figures,
    }
    if plan is not None:
        used = {device for part in plan.parts for device in part.devices}
        found["devices"] = f"{len(used):,} of {entry.cluster.num_devices:,}"
    step = entry_seconds(entry)
    for cause, seconds in sorted(causes_of(entry).items(), key=lambda each: -each[1]):
        if isfinite(step) and seconds >= _LEAST_SHARE * step:
            found[f"spent on {cause}"] = (
                f"{format_seconds(seconds)} ({format_percent(seconds / step)})"
            )
    return found
