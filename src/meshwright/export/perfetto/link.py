"""The links of a trace: tracks of those that are used, and counters of their rates."""

from collections import Counter
from collections.abc import Iterator, Mapping

import numpy as np
import numpy.typing as npt

from meshwright.array import Floats, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.export.perfetto.event import LINKS, Event, counter, name_process, name_thread
from meshwright.export.perfetto.span import Spans, categories, find_spans, title
from meshwright.export.perfetto.view import TraceView
from meshwright.simulate.timeline import Timeline

_NEGLIGIBLE_SHARE = 1e-9
"""A link's rate below this share of its capacity is what adding up floats leaves behind."""


def link_events(timeline: Timeline, cluster: Cluster, view: TraceView) -> Iterator[Event]:
    """Tracks of links. Transfers that share a link overlap, so a link has as many lanes as it has
    transfers at once: events of one track must nest, in both viewers."""
    yield from name_process(LINKS, "links")
    program, names = timeline.program, name_links(timeline, cluster)
    kinds, size, thread = categories(program), program.instructions["bytes"], 0
    for link, spans in _spans_of_links(timeline, view):
        lanes = assign_lanes(spans.start.tolist(), spans.finish.tolist())
        others = f" (as {view.links[link] - 1} others)" if view.links[link] > 1 else ""
        for lane in range(max(lanes) + 1):
            suffix = f" ({lane + 1})" if lane else ""
            yield from name_thread(LINKS, thread + 1 + lane, names[link] + others + suffix)
        for lane, (row, count, start, length) in zip(lanes, spans.microseconds(), strict=True):
            yield {
                "ph": "X",
                "name": title(program, row, count, kinds[row]),
                "cat": "link",
                "pid": LINKS,
                "tid": thread + 1 + lane,
                "ts": start,
                "dur": length,
                "args": {"bytes": float(size[row]) * count},
            }
        thread += max(lanes) + 1
    for link, when, rate in link_rates(timeline, view.links):
        name = f"{names[link]} rate"
        yield from counter(LINKS, name, "bytes/s", when, rate, view.max_points)


def _spans_of_links(timeline: Timeline, view: TraceView) -> Iterator[tuple[int, Spans]]:
    """For each link that is shown what crosses it, in the order of starts."""
    found: dict[int, list[Spans]] = {link: [] for link in sorted(view.links)}
    for route in view.routes:
        spans = find_spans(timeline, route.rows, merges=view.merges)
        for link in route.links:
            if link in found:
                found[link].append(spans)
    for link, several in found.items():
        columns = {
            name: np.concatenate([getattr(each, name) for each in several])
            for name in ("row", "start", "finish", "count")
        }
        order = np.lexsort((columns["finish"], columns["start"]))
        yield link, Spans(**{name: column[order] for name, column in columns.items()})


def name_links(timeline: Timeline, cluster: Cluster) -> list[str]:
    """Of the cluster's links, numbered where several join the same nodes, then of allocations."""
    names: list[str] = []
    seen: Counter[str] = Counter()
    for link in cluster.links:
        name = f"{link.source} -> {link.target}"
        seen[name] += 1
        names.append(f"{name} #{seen[name]}" if seen[name] > 1 else name)
    allocations = timeline.program.allocations
    return names + [f"allocation {each.source} -> {each.target}" for each in allocations]


def assign_lanes(starts: list[int], finishes: list[int]) -> list[int]:
    """The first lane that is free when each begins; sorted by start."""
    free_at: list[int] = []
    lanes = []
    for start, finish in zip(starts, finishes, strict=True):
        lane = next((k for k, free in enumerate(free_at) if free <= start), len(free_at))
        if lane == len(free_at):
            free_at.append(finish)
        free_at[lane] = finish
        lanes.append(lane)
    return lanes


def link_rates(
    timeline: Timeline, links: Mapping[int, int]
) -> Iterator[tuple[int, Floats, Floats]]:
    """Each used link's rate over time: from each moment on so many bytes a second."""
    if timeline.log is None:
        return
    changes: dict[int, list[tuple[Longs, Floats]]] = {}
    for number, entries, change in _rate_changes(timeline.log):
        flow_class = timeline.network.classes[number]
        for link, weight in zip(
            flow_class.links.tolist(), flow_class.weights.tolist(), strict=True
        ):
            if link in links:
                changes.setdefault(link, []).append((entries, change * weight))
    for link, parts in sorted(changes.items()):
        entries = np.concatenate([part[0] for part in parts])
        in_time = np.argsort(entries, kind="stable")
        used = np.cumsum(np.concatenate([part[1] for part in parts])[in_time])
        used[used < _NEGLIGIBLE_SHARE * timeline.network.link_bytes_per_second[link]] = 0.0
        when = timeline.log["seconds"][entries[in_time]]
        yield link, np.append(0.0, when), np.append(0.0, used)


def _rate_changes(log: npt.NDArray[np.void]) -> Iterator[tuple[int, Longs, Floats]]:
    """For each flow class its entries in the log, and by how much each changed its rate."""
    order = np.argsort(log["flow_class"], kind="stable")
    classes, firsts = np.unique(log["flow_class"][order], return_index=True)
    bounds = [*firsts.tolist(), len(order)]
    for place, number in enumerate(classes.tolist()):
        entries = order[bounds[place] : bounds[place + 1]]
        yield number, entries, np.diff(log["rate"][entries], prepend=0.0)
