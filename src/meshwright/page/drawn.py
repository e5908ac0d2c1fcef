"""Tables of what the figures show: bars, devices, links and parts."""

from collections.abc import Sequence
from math import inf

import numpy as np

from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.page.bar import CAUSES, Bars, BarSet
from meshwright.page.memory import MemoryView
from meshwright.page.network import NetworkView
from meshwright.page.strip import Strip
from meshwright.page.table import MAX_ROWS, NONE, PageTable
from meshwright.plan.plan import Plan
from meshwright.report.hybrid_facts import name_devices
from meshwright.units import (
    format_bytes,
    format_percent,
    format_rate,
    format_seconds,
)


def device_table(
    cluster: Cluster, plan: Plan, memory: MemoryView, network: NetworkView
) -> PageTable:
    """How busy and how full every device is that the plan uses."""
    rows = []
    parts: dict[str, list[int]] = {}
    for number, part in enumerate(plan.parts):
        for name in part.devices:
            parts.setdefault(name, []).append(number)
    for device in memory.curve_of:
        own = cluster.devices[device]
        peak, usable = float(memory.peak_bytes[device]), float(memory.usable_bytes[device])
        rows.append(
            (
                own.name,
                own.type,
                own.host,
                ", ".join(map(str, parts[own.name][:8])),
                format_percent(float(network.device_busy[device])),
                format_percent(float(network.device_calls[device])),
                format_bytes(peak),
                format_bytes(usable),
                format_percent(peak / usable if usable else inf),
            )
        )
    heads: tuple[str, ...] = (
        "device",
        "type",
        "host",
        "part",
        "busy",
        "waits for its team",
        "peak",
    )
    heads += ("may be", "full")
    unused = cluster.num_devices - len(rows)
    return PageTable(
        title="Devices",
        heads=heads,
        right=heads[4:],
        rows=tuple(rows),
        note=f"{unused:,} devices are not used" if unused else "",
    )


def link_table(cluster: Cluster, network: NetworkView) -> PageTable:
    """Links, the busiest first."""
    order = np.argsort(-network.link_busy, kind="stable")
    used = [place for place in order.tolist() if network.link_busy[place] > 0]
    rates = cluster.link_bytes_per_second
    rows = (
        (
            f"{cluster.links[place].source} -> {cluster.links[place].target}",
            format_rate(float(rates[place])),
            format_percent(float(network.link_busy[place])),
        )
        for place in used
    )
    return PageTable(
        title="Links, the busiest first",
        heads=("link", "reaches", "busy at its full rate"),
        right=("reaches", "busy at its full rate"),
        rows=tuple(rows),
        note=f"{len(cluster.links) - len(used):,} of {len(cluster.links):,} links are not used",
    )


def part_table(graph: Graph, cluster: Cluster, plan: Plan, strips: Sequence[Strip]) -> PageTable:
    """What each part holds, and where it runs."""
    where: dict[int, list[str]] = {}
    for strip in strips[:1]:
        for stretch in strip.stretches:
            where.setdefault(stretch.part, []).append(stretch.where)
    rows = []
    for number, part in enumerate(plan.parts):
        own = where.get(number, [])
        modules = ", ".join(own[:4]) + (f" and {len(own) - 4:,} more" if len(own) > 4 else "")
        rows.append(
            (
                str(number),
                modules or part.what,
                f"{len(part.ops):,}",
                name_devices(cluster, part.devices),
                str(part.num_replicas),
                str(part.tensor),
                str(part.context),
                str(part.expert),
                str(part.zero),
                str(part.recompute),
            )
        )
    heads: tuple[str, ...] = (
        "part",
        "of the model",
        "ops",
        "devices",
        "replicas",
        "tensor",
        "context",
    )
    heads += ("expert", "ZeRO", "recompute")
    return PageTable(
        title=f"Parts of the plan of {graph.name}",
        heads=heads,
        right=("part", "ops", "replicas", "tensor", "context", "expert", "ZeRO"),
        rows=tuple(rows),
    )


def bar_table(bars: Bars, most: int = 200) -> PageTable:
    """What takes longest on all tracks together, by name."""
    weights = np.bincount([track.bars for track in bars.tracks], minlength=len(bars.sets))
    seconds, counts = np.zeros(len(bars.labels)), np.zeros(len(bars.labels))
    cause = np.zeros(len(bars.labels), dtype=np.int64)
    for each, times in zip(bars.sets, weights.tolist(), strict=True):
        length = (each.finish - each.start) * bars.tick_seconds
        size = len(bars.labels)
        seconds += times * np.bincount(each.label, weights=length, minlength=size)
        counts += times * np.bincount(each.label, minlength=size)
        cause[each.label] = each.cause
    order = [each for each in np.argsort(-seconds, kind="stable").tolist() if counts[each]]
    return PageTable(
        title="What takes longest, on all devices and links together",
        heads=("what", "kind", "times", "time"),
        right=("times", "time"),
        rows=tuple(
            (
                bars.labels[each],
                str(CAUSES[cause[each]]),
                f"{int(counts[each]):,}",
                format_seconds(float(seconds[each])),
            )
            for each in order[:most]
        ),
        note=f"of {len(order):,} names" if len(order) > most else "",
    )


def path_table(bars: Bars) -> PageTable:
    """The critical path, bar by bar."""
    own: BarSet = bars.path
    rows = []
    for place in range(min(len(own.start), MAX_ROWS + 1)):
        track = int(bars.path_track[place])
        mark = f" [mb {own.microbatch[place]}]" if bars.has_microbatches else ""
        rows.append(
            (
                format_seconds(float(own.start[place]) * bars.tick_seconds),
                format_seconds(float(own.finish[place] - own.start[place]) * bars.tick_seconds),
                f"{bars.labels[own.label[place]]}{mark}",
                str(CAUSES[own.cause[place]]),
                bars.tracks[track].name if track >= 0 else NONE,
            )
        )
    more = len(own.start) - MAX_ROWS
    return PageTable(
        title="The critical path",
        heads=("from", "for", "what", "kind", "where"),
        right=("from", "for"),
        rows=tuple(rows[:MAX_ROWS]),
        note=f"{more:,} more steps of the path are left out" if more > 0 else "",
    )
