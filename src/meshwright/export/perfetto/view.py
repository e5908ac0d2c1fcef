"""Decides how much of a timeline a trace shows, so that its size is bounded.

A timeline with too many events is shown coarser: of devices and links that do the same one each,
then one slice for all ops of a stage's action, then some devices only. Makes no events itself.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from meshwright.array import Bools, Longs
from meshwright.cluster.cluster import Cluster
from meshwright.export.perfetto.span import find_spans
from meshwright.program.program import Kind, Program
from meshwright.simulate.allocation import crossed_links
from meshwright.simulate.timeline import Timeline

MAX_EVENTS = 400_000
"""Events of a trace, so that a file has tens of megabytes, which a browser's memory holds."""
MAX_POINTS = 1000
"""Points of a counter in a coarse trace: about as many as a screen has columns."""
_MERGED = "ops that a device runs in a row for one microbatch and phase are one slice"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Route:
    """Transfers and collectives that cross the same links."""

    links: tuple[int, ...]
    rows: Longs
    """Their instructions, one a task."""
    flow_class: int
    """In the timeline's network; -1: they share with nobody."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TraceView:
    """What of a timeline is shown."""

    devices: Mapping[int, int]
    """Those with tracks, and how many devices each stands for."""
    links: Mapping[int, int]
    """The same of links."""
    routes: tuple[Route, ...]
    """Of the transfers and collectives that devices with tracks take part in."""
    merges: bool = False
    """Whether the ops that a device runs in a row for one action are one slice."""
    remarks: tuple[str, ...] = ()
    """How it is coarser than the timeline; none: all of it is shown."""

    @property
    def max_points(self) -> int | None:
        """Points that a counter may have; None: all."""
        return MAX_POINTS if self.merges else None

    def shown(self, program: Program) -> Bools:
        """By instruction: whether its device has tracks."""
        has_tracks = np.zeros(program.num_devices, dtype=bool)
        has_tracks[list(self.devices)] = True
        found: Bools = has_tracks[program.instructions["device"]]
        return found


def choose_view(timeline: Timeline, cluster: Cluster, max_events: int | None = None) -> TraceView:
    """All of a timeline, or as much as makes so many events; None: `MAX_EVENTS`."""
    max_events = MAX_EVENTS if max_events is None else max_events
    program = timeline.program
    leaders = np.unique(program.leader).tolist()
    view = whole_view(timeline, cluster)
    if _count_events(timeline, view) <= max_events:
        return view
    equal = _equal_devices(program, leaders)
    view = _narrowed(timeline, view, equal)
    if _count_events(timeline, view) <= max_events:
        return view
    view = replace(view, merges=True, remarks=(*view.remarks, _MERGED))
    while _count_events(timeline, view) > max_events and len(view.devices) > 1:
        # Neighbours, as the first stages of a pipeline are: arrows need both of their ends.
        half = list(view.devices.items())[: len(view.devices) // 2]
        view = _narrowed(timeline, view, dict(half))
        some = f"of {len(equal)} kinds of devices {len(view.devices)} are shown"
        view = replace(view, remarks=(*view.remarks, _MERGED, some))
    return view


def whole_view(timeline: Timeline, cluster: Cluster) -> TraceView:
    """All of a timeline."""
    routes = tuple(list_routes(timeline, cluster))
    return TraceView(
        devices=dict.fromkeys(np.unique(timeline.program.leader).tolist(), 1),
        links={link: 1 for route in routes for link in route.links},
        routes=routes,
    )


def _narrowed(timeline: Timeline, view: TraceView, devices: Mapping[int, int]) -> TraceView:
    """The view with the tracks of some devices, and of each kind of links that they use one."""
    program = timeline.program
    narrow = replace(view, devices=devices)
    rows = program.instructions
    is_shown = np.zeros(len(timeline.cause), dtype=bool)
    is_shown[rows["task"][narrow.shown(program)]] = True
    routes = tuple(
        replace(route, rows=mine)
        for route in view.routes
        if len(mine := route.rows[is_shown[rows["task"][route.rows]]])
    )
    crossing: dict[int, list[int]] = {}
    for number, route in enumerate(routes):
        for link in route.links:
            crossing.setdefault(link, []).append(number)
    alike: dict[tuple[int, ...], list[int]] = {}
    for link in sorted(crossing):
        alike.setdefault(tuple(crossing[link]), []).append(link)
    links = {each[0]: len(each) for each in alike.values()}
    remark = (
        f"of {program.num_devices:,} devices {len(devices):,} have tracks, of {len(crossing):,} "
        f"links {len(links):,}: one of each kind that does the same"
    )
    return replace(narrow, routes=routes, links=links, remarks=(remark,))


def _equal_devices(program: Program, leaders: list[int]) -> dict[int, int]:
    """Of the devices that run the same at the same speed the first, and how many they are."""
    rows = program.instructions
    order = np.argsort(rows["device"], kind="stable")
    bounds = np.searchsorted(rows["device"][order], np.arange(program.num_devices + 1))
    team_sizes = np.bincount(program.leader, minlength=program.num_devices)
    first: dict[tuple[bytes, ...], int] = {}
    counts: dict[int, int] = {}
    for device in leaders:
        mine = rows[order[bounds[device] : bounds[device + 1]]]
        fields = ("kind", "op", "tensor", "microbatch", "seconds")
        key = tuple(mine[field].tobytes() for field in fields)
        found = first.setdefault(key, device)
        counts[found] = counts.get(found, 0) + int(team_sizes[device])
    return counts


def list_routes(timeline: Timeline, cluster: Cluster) -> Iterator[Route]:
    """SENDs and collectives by their links; without sharing, collectives have none."""
    rows = timeline.program.instructions
    firsts = np.unique(rows["task"], return_index=True)[1]
    sends = np.flatnonzero(rows["kind"] == Kind.SEND)
    moves = np.concatenate((sends, firsts[rows["group"][firsts] >= 0]))
    classes = timeline.flow_class[rows["task"][moves]]
    for number, own in _by_value(moves[classes >= 0], classes[classes >= 0]):
        links = timeline.network.classes[number].links.tolist()
        yield Route(links=tuple(links), rows=own, flow_class=number)
    alone = moves[(classes < 0) & (rows["peer"][moves] >= 0)]
    pair = rows["device"][alone] * np.int64(cluster.num_devices) + rows["peer"][alone]
    pairs = [(*divmod(key, cluster.num_devices), own) for key, own in _by_value(alone, pair)]
    ends = [(source, target) for source, target, _ in pairs]
    crossed = crossed_links(cluster, timeline.program.allocations, ends)
    for source, target, own in pairs:
        yield Route(links=tuple(crossed[source, target]), rows=own, flow_class=-1)


def _by_value(rows: Longs, values: Longs) -> Iterator[tuple[int, Longs]]:
    """Each value with its rows, in one pass: there may be as many values as rows."""
    order = np.argsort(values, kind="stable")
    found, firsts = np.unique(values[order], return_index=True)
    bounds = [*firsts.tolist(), len(rows)]
    for place, value in enumerate(found.tolist()):
        yield value, rows[order[bounds[place] : bounds[place + 1]]]


def _count_events(timeline: Timeline, view: TraceView) -> int:
    """How many events a view makes at most."""
    program = timeline.program
    rows, shown = program.instructions, view.shown(program)
    is_slice = shown & ~np.isin(rows["kind"], (Kind.SEND, Kind.RECEIVE))
    slices = np.flatnonzero(is_slice)
    num_slices = len(find_spans(timeline, slices, merges=view.merges).row)
    if program.call_seconds is not None:
        num_slices += int(np.count_nonzero(program.call_seconds[is_slice]))
    arrows = 2 * int(np.count_nonzero(shown & (rows["kind"] == Kind.SEND)))
    return num_slices + arrows + _count_points(timeline, view) + _count_crossings(timeline, view)


def _count_points(timeline: Timeline, view: TraceView) -> int:
    """How many points the memory counters of devices have at most."""
    program = timeline.program
    works = program.instructions["workspace_bytes"] > 0
    size = np.bincount(program.buffers["device"], minlength=program.num_devices)
    size += np.bincount(program.instructions["device"][works], minlength=program.num_devices)
    points = 2 * size[list(view.devices)] + 1
    return int(np.minimum(points, view.max_points or points.max(initial=0)).sum())


def _count_crossings(timeline: Timeline, view: TraceView) -> int:
    """How many slices and points the tracks of links have at most."""
    entries = np.zeros(len(timeline.network.classes) + 1, dtype=np.int64)
    if timeline.log is not None:
        entries[:-1] = np.bincount(timeline.log["flow_class"], minlength=len(entries) - 1)
    slices: dict[int, int] = {}
    points: dict[int, int] = {}
    for route in view.routes:
        own = len(find_spans(timeline, route.rows, merges=view.merges).row)
        for link in route.links:
            if link in view.links:
                slices[link] = slices.get(link, 0) + own
                points[link] = points.get(link, 0) + int(entries[route.flow_class])
    most = view.max_points
    return sum(slices.values()) + sum(min(each, most or each) for each in points.values())
