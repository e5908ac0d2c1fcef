"""The bars of a timeline: what every device and every link does when.

Devices that do the same at the same times share one set of bars, so that a thousand of them take no
more room than one. A timeline with too many bars is shown as coarsely as a trace of it would be.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from meshwright.array import Longs
from meshwright.cluster.cluster import Cluster
from meshwright.explain.cause import Cause, cause_codes
from meshwright.export.perfetto.link import assign_lanes, name_links
from meshwright.export.perfetto.span import Spans, find_spans, nanoseconds
from meshwright.export.perfetto.trace import LANE_NAMES, name_devices
from meshwright.export.perfetto.view import Route, TraceView, choose_view, whole_view
from meshwright.plan.plan import Plan
from meshwright.program.collective import Lane, find_lanes
from meshwright.program.program import Program
from meshwright.simulate.timeline import Timeline

MAX_BARS = 700_000
"""Different bars of a timeline: about five megabytes of the page."""
_MAX_DRAWN = 6_000_000
"""Bars with those of equal devices, before any are compared."""
_MAX_LINKS = 10_000
"""Links with rows of their own; where more are used, one of each kind has."""
_COARSER = (400_000, 100_000, 25_000)
"""Events of a trace that coarser views are chosen for, one after the other."""
_MOST_TICKS = 2**31
"""Times are whole ticks, of a nanosecond unless the step is longer than two seconds."""
CAUSES = (*Cause, "collectives inside")
"""What bars are coloured by; the last: collectives within an action, of which the sum is known."""
_INSIDE = len(CAUSES) - 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BarSet:
    """The bars of a track, the first first; no two overlap."""

    start: Longs
    """Ticks."""
    finish: Longs
    label: Longs
    """Places in the labels of the timeline."""
    microbatch: Longs
    cause: Longs
    """Places in `CAUSES`."""

    @property
    def key(self) -> bytes:
        """What equal sets have in common."""
        columns = (self.start, self.finish, self.label, self.microbatch, self.cause)
        return b"".join(each.tobytes() for each in columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Track:
    """A row of a timeline."""

    name: str
    is_link: bool
    bars: int
    """Which set of bars it has."""
    device: int
    """The device whose compute or collectives it shows; -1: a link's."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bars:
    """A timeline as rows of bars."""

    tick_seconds: float
    num_ticks: int
    """The length of the step, or until the last bar ends."""
    labels: tuple[str, ...]
    tracks: tuple[Track, ...]
    sets: tuple[BarSet, ...]
    path: BarSet
    """The critical path: each bar waited for the one before it."""
    path_track: Longs
    """By bar of the path the track that shows it; -1: none does."""
    has_microbatches: bool
    remarks: tuple[str, ...]
    """How it is coarser than the timeline; none: all of it is shown."""

    @property
    def num_bars(self) -> int:
        """How many bars there are to draw, those of equal devices counted."""
        return sum(len(self.sets[track.bars].start) for track in self.tracks)


class _Labels:
    """The texts of bars: the ops' names, then what others are called."""

    def __init__(self, program: Program) -> None:
        self.program = program
        self.texts = list(program.graph.op_names)
        self._place: dict[str, int] = {}
        rows = program.instructions
        others = np.flatnonzero(rows["op"] < 0)
        fields = rows[["kind", "tensor", "peer"]][others]
        _, which = np.unique(fields, return_inverse=True)
        self._alike = np.full(len(rows), -1, dtype=np.int64)
        """By instruction that is no op those that have its text."""
        self._alike[others] = which
        self._label_of = np.full(int(which.max(initial=-1)) + 1, -1, dtype=np.int64)
        """The number of the text of these; -1: none of them has been drawn."""

    def of(self, spans: Spans, causes: Longs) -> Longs:
        """The label of each span; by `causes` where several instructions are one."""
        found: Longs = self.program.instructions["op"][spans.row].astype(np.int64)
        others = np.flatnonzero((found < 0) & (spans.count == 1))
        alike = self._alike[spans.row[others]]
        fresh = np.flatnonzero(self._label_of[alike] < 0)
        if len(fresh):
            kinds, first = np.unique(alike[fresh], return_index=True)
            for kind, each in zip(kinds.tolist(), fresh[first].tolist(), strict=True):
                text = self.program.name_of(int(spans.row[others[each]]))
                self._label_of[kind] = self.place(text)
        found[others] = self._label_of[alike]
        for each in np.flatnonzero(spans.count > 1).tolist():
            name = str(CAUSES[causes[spans.row[each]]])
            found[each] = self.place(f"{spans.count[each]:,} x {name}")
        return found

    def place(self, text: str) -> int:
        """The number of a text."""
        if text not in self._place:
            self._place[text] = len(self.texts)
            self.texts.append(text)
        return self._place[text]


def draw_bars(timeline: Timeline, cluster: Cluster, plan: Plan) -> Bars:
    """The bars of a timeline of a plan, whose parts hold ops."""
    causes = cause_codes(timeline.program, plan)
    for view in _views(timeline, cluster):
        found = _Drawing(timeline, cluster, view, causes).draw()
        if sum(len(each.start) for each in found.sets) <= MAX_BARS:
            break
    return found


def _views(timeline: Timeline, cluster: Cluster) -> Iterator[TraceView]:
    """All of a timeline, unless that is hopeless, then less and less of it."""
    view = whole_view(timeline, cluster)
    crossings = sum(len(route.rows) * len(route.links) for route in view.routes)
    is_small = timeline.program.num_instructions + crossings <= _MAX_DRAWN
    if is_small and len(view.links) <= _MAX_LINKS:
        yield view
    for most in _COARSER:
        yield choose_view(timeline, cluster, most)


class _Drawing:
    """Collects the tracks of one view of a timeline."""

    def __init__(
        self, timeline: Timeline, cluster: Cluster, view: TraceView, causes: Longs
    ) -> None:
        self.timeline, self.cluster, self.view = timeline, cluster, view
        self.program = timeline.program
        self.causes = causes
        self.labels = _Labels(self.program)
        last = nanoseconds(np.array([timeline.step_seconds, timeline.device_seconds])).max()
        self.tick = int(last) // _MOST_TICKS + 1
        self.num_ticks = int(last) // self.tick
        self.tracks: list[Track] = []
        self.sets: list[BarSet] = []
        self._known: dict[bytes, int] = {}
        self.track_of_task = np.full(len(timeline.cause), -1, dtype=np.int64)

    def draw(self) -> Bars:
        """The bars of all tracks, with the names that they share."""
        self._add_devices()
        self._add_links()
        path, places = self._find_path()
        return Bars(
            tick_seconds=self.tick * 1e-9,
            num_ticks=self.num_ticks,
            labels=tuple(self.labels.texts),
            tracks=tuple(self.tracks),
            sets=tuple(self.sets),
            path=path,
            path_track=places,
            has_microbatches=self.program.microbatches > 1,
            remarks=self.view.remarks,
        )

    def _add_devices(self) -> None:
        """For each device its compute and its collectives, lane by lane."""
        rows, lanes = self.program.instructions, find_lanes(self.program)
        shown = np.flatnonzero((lanes >= 0) & self.view.shown(self.program))
        spans = find_spans(self.timeline, shown, merges=self.view.merges)
        key = rows["device"][spans.row].astype(np.int64) * len(Lane) + lanes[spans.row]
        calls = self._calls()
        order = np.argsort(key, kind="stable")
        bounds = np.searchsorted(key[order], np.arange(self.program.num_devices * len(Lane) + 1))
        for device, name in name_devices(self.program, self.view).items():
            for lane, suffix in LANE_NAMES.items():
                place = device * len(Lane) + lane
                own = _picked(spans, order[bounds[place] : bounds[place + 1]])
                if len(own.row) or lane == Lane.COMPUTE:
                    self._add(f"{name}{suffix}", own, device=device)
                if lane == Lane.TEAM and device in calls:
                    self._add_inside(f"{name}{suffix}", calls[device], device)

    def _calls(self) -> Mapping[int, Longs]:
        """By device the instructions within which its team talks, where only the sum is known."""
        program = self.program
        if program.call_seconds is None:
            return {}
        rows = np.flatnonzero((program.call_seconds > 0) & self.view.shown(program))
        rows = rows[np.argsort(self.timeline.start[rows], kind="stable")]
        device = program.instructions["device"][rows]
        return {each: rows[device == each] for each in np.unique(device).tolist()}

    def _add_inside(self, name: str, rows: Longs, device: int) -> None:
        """Collectives within actions, at the end of each."""
        assert self.program.call_seconds is not None
        finish = nanoseconds(self.timeline.finish[rows])
        begin = nanoseconds(self.timeline.start[rows])
        start = np.maximum(finish - nanoseconds(self.program.call_seconds[rows]), begin)
        spans = Spans(row=rows, start=start, finish=finish, count=np.ones_like(rows))
        self._add(name, spans, device=device, cause=_INSIDE)

    def _add_links(self) -> None:
        """For each link what crosses it; transfers at one time are on tracks of their own."""
        names = name_links(self.timeline, self.cluster)
        spans = [
            find_spans(self.timeline, route.rows, merges=self.view.merges)
            for route in self.view.routes
        ]
        crossing = _crossing(self.view.routes)
        busy: dict[tuple[int, ...], int] = {}
        for routes in set(crossing.values()):
            busy[routes] = sum(
                int((spans[each].finish - spans[each].start).sum()) for each in routes
            )
        shown = [link for link in crossing if link in self.view.links]
        known: dict[tuple[int, ...], list[int]] = {}
        for link in sorted(shown, key=lambda link: (-busy[crossing[link]], link)):
            routes, others = crossing[link], self.view.links[link] - 1
            name = names[link] + (f" (as {others} others)" if others else "")
            if routes in known:  # its bars are another link's
                self._name_tracks(name, known[routes], device=-1)
                continue
            first = len(self.tracks)
            self._add(name, _joined([spans[each] for each in routes]), device=-1)
            known[routes] = [track.bars for track in self.tracks[first:]]

    def _add(self, name: str, spans: Spans, *, device: int, cause: int = -1) -> None:
        """A track, or several where spans overlap."""
        lanes = list(_lanes(spans))
        for number, lane in enumerate(lanes):
            task = self.program.instructions["task"][lane.row]
            if cause < 0:
                fresh = self.track_of_task[task] < 0
                self.track_of_task[task[fresh]] = len(self.tracks) + number
        self._name_tracks(
            name, [self._number(self._make(lane, cause)) for lane in lanes], device=device
        )

    def _name_tracks(self, name: str, sets: Sequence[int], *, device: int) -> None:
        """Tracks with these sets of bars."""
        for number, bars in enumerate(sets):
            text = f"{name} ({number + 1})" if number else name
            self.tracks.append(Track(name=text, is_link=device < 0, bars=bars, device=device))

    def _make(self, spans: Spans, cause: int = -1) -> BarSet:
        rows = self.program.instructions
        start = spans.start // self.tick
        return BarSet(
            start=start,
            finish=np.maximum(spans.finish // self.tick, start),
            label=self.labels.of(spans, self.causes),
            microbatch=rows["microbatch"][spans.row].astype(np.int64),
            cause=self.causes[spans.row] if cause < 0 else np.full_like(start, cause),
        )

    def _number(self, bars: BarSet) -> int:
        """The place of equal bars, or of new ones."""
        key = bars.key
        if key not in self._known:
            self._known[key] = len(self.sets)
            self.sets.append(bars)
        return self._known[key]

    def _find_path(self) -> tuple[BarSet, Longs]:
        """The critical path, and the track of each of its instructions."""
        rows = np.array(self.timeline.critical_path, dtype=np.int64)
        finish = nanoseconds(self.timeline.finish[rows])
        # Clocks of a measured run agree to some microseconds only.
        finish = np.maximum.accumulate(finish) if len(finish) else finish
        before = np.concatenate(([0], finish[:-1])) if len(finish) else finish
        start = np.minimum(np.maximum(nanoseconds(self.timeline.start[rows]), before), finish)
        spans = Spans(row=rows, start=start, finish=finish, count=np.ones_like(rows))
        return self._make(spans), self.track_of_task[self.program.instructions["task"][rows]]


def _crossing(routes: Sequence[Route]) -> dict[int, tuple[int, ...]]:
    """By link the routes that cross it."""
    found: dict[int, list[int]] = {}
    for number, route in enumerate(routes):
        for link in route.links:
            found.setdefault(link, []).append(number)
    return {link: tuple(each) for link, each in found.items()}


def _joined(several: Sequence[Spans]) -> Spans:
    """All spans in the order of their starts."""
    names = ("row", "start", "finish", "count")
    columns = {name: np.concatenate([getattr(each, name) for each in several]) for name in names}
    order = np.lexsort((columns["finish"], columns["start"]))
    return Spans(**{name: column[order] for name, column in columns.items()})


def _picked(spans: Spans, places: Longs) -> Spans:
    """Some of the spans."""
    own = (spans.row, spans.start, spans.finish, spans.count)
    row, start, finish, count = (each[places] for each in own)
    return Spans(row=row, start=start, finish=finish, count=count)


def _is_apart(spans: Spans) -> bool:
    """Whether spans, in the order of their starts, do not overlap."""
    return bool((spans.start[1:] >= spans.finish[:-1]).all())


def _lanes(spans: Spans) -> Iterator[Spans]:
    """The spans in as few rows as can be without overlaps."""
    order = np.lexsort((spans.finish, spans.start))
    sorted_spans = _picked(spans, order)
    if _is_apart(sorted_spans):
        yield sorted_spans
        return
    lane = np.array(assign_lanes(sorted_spans.start.tolist(), sorted_spans.finish.tolist()))
    for number in range(int(lane.max()) + 1):
        yield _picked(sorted_spans, np.flatnonzero(lane == number))
