"""A Timeline as a Chrome trace (JSON), which ui.perfetto.dev and chrome://tracing open.

Two processes: "devices" has a track for each device's compute, one for each lane of its collectives
and a counter of its memory; "links" has a track for each link that is used and a counter of its
rate. Arrows lead from the op that made a tensor to the first op that uses it on another device.
Knows nothing about plans.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from meshwright.array import Longs
from meshwright.cluster.cluster import Cluster
from meshwright.export.perfetto.event import DEVICES, Event, counter, name_process, name_thread
from meshwright.export.perfetto.link import link_events
from meshwright.export.perfetto.span import categories, find_spans, nanoseconds, title
from meshwright.export.perfetto.view import TraceView, choose_view
from meshwright.files import write_bytes
from meshwright.program.collective import Lane, find_lanes
from meshwright.program.program import Kind, Program
from meshwright.simulate.timeline import Timeline

LANE_NAMES = {
    Lane.COMPUTE: "",
    Lane.SYNC: " collectives",
    Lane.GATHER: " weight gathers",
    Lane.TEAM: " group collectives",
}
_WITHIN = "collectives inside a stage's action are drawn at its end: only their sum is known"
_EVENTS_BETWEEN = 20_000
"""Progress is told after so many events."""


def write_trace(
    timeline: Timeline,
    cluster: Cluster,
    path: str | Path,
    progress: Callable[[str], None] = lambda _: None,
) -> str:
    """Write the trace of a timeline; gzip when the name ends in .gz (Perfetto opens both).

    Returns in one line how it is coarser than the timeline, "" where it is not.
    """
    document = trace_document(timeline, cluster, progress=progress)
    progress("writing the trace")
    return write_events(document, path)


def write_events(document: dict[str, Any], path: str | Path) -> str:
    """Write a trace; gzip when the name ends in .gz. Returns how it is coarser than what it shows,
    "" where it is not."""
    write_bytes(path, msgspec.json.encode(document) + b"\n")
    return str(document["otherData"].get("coarser", ""))


def trace_document(
    timeline: Timeline,
    cluster: Cluster,
    view: TraceView | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Any]:
    """The trace as plain objects. Times are in microseconds, as the format has them. `view`: how
    much is shown; None: as much as a viewer can open."""
    view = choose_view(timeline, cluster) if view is None else view
    about: dict[str, Any] = {
        "cluster": cluster.name,
        "graph": timeline.program.graph.name,
        "sharing": timeline.sharing,
        "step_seconds": timeline.step_seconds,
    }
    if view.remarks:
        about["coarser"] = "; ".join(view.remarks)
    if timeline.program.call_seconds is not None and timeline.program.call_seconds.any():
        about["collectives"] = _WITHIN
    events: list[Event] = []
    for event in _all_events(timeline, cluster, view):
        events.append(event)
        if len(events) % _EVENTS_BETWEEN == 0:
            progress(f"{len(events):,} events of the trace")
    return {"displayTimeUnit": "ms", "otherData": about, "traceEvents": events}


def _all_events(timeline: Timeline, cluster: Cluster, view: TraceView) -> Iterator[Event]:
    yield from _name_devices(timeline.program, view)
    yield from _device_slices(timeline, view)
    yield from _calls(timeline, view)
    yield from _arrows(timeline, view)
    yield from _memory_counters(timeline, view)
    yield from link_events(timeline, cluster, view)


def _track(program: Program) -> Longs:
    """The track of each instruction: 0 for transfers, which stand on links only."""
    lane, device = find_lanes(program), program.instructions["device"].astype(np.int64)
    return np.where(lane < 0, 0, _first_track(device) + lane)


def _first_track(device: Any) -> Any:
    """The track of a device's compute; those of its collectives follow."""
    return len(Lane) * device + 1


def _name_devices(program: Program, view: TraceView) -> Iterator[Event]:
    yield from name_process(DEVICES, "devices")
    used = set(_track(program).tolist())
    if program.call_seconds is not None:
        calling = program.instructions["device"][program.call_seconds > 0]
        used |= set((_first_track(calling.astype(np.int64)) + Lane.TEAM).tolist())
    for device, name in name_devices(program, view).items():
        for lane, suffix in LANE_NAMES.items():
            track = _first_track(device) + lane
            if lane == Lane.COMPUTE or track in used:
                yield from name_thread(DEVICES, track, name + suffix)


def name_devices(program: Program, view: TraceView) -> dict[int, str]:
    """What the devices with tracks are called, with how many others each stands for."""
    sizes = {team[0]: len(team) for team in program.teams}
    found = {}
    for device, number in view.devices.items():
        name, size = program.device_names[device], sizes.get(device, 1)
        if size > 1:
            name = f"{name} (group of {size})"
        if number > size:
            name = f"{name} (as {number - size} others)"
        found[device] = name
    return found


def _device_slices(timeline: Timeline, view: TraceView) -> Iterator[Event]:
    program = timeline.program
    tracks, names = _track(program), categories(program)
    rows = np.flatnonzero((tracks > 0) & view.shown(program))
    for row, count, start, length in find_spans(timeline, rows, merges=view.merges).microseconds():
        yield {
            "ph": "X",
            "name": title(program, row, count, names[row]),
            "cat": names[row],
            "pid": DEVICES,
            "tid": int(tracks[row]),
            "ts": start,
            "dur": length,
        }


def _calls(timeline: Timeline, view: TraceView) -> Iterator[Event]:
    """What the members of a team say to each other within an action, where only its sum is known:
    at the action's end."""
    program = timeline.program
    if program.call_seconds is None:
        return
    rows = np.flatnonzero((program.call_seconds > 0) & view.shown(program))
    finish = nanoseconds(timeline.finish[rows])
    length = nanoseconds(program.call_seconds[rows])
    length = np.minimum(length, finish - nanoseconds(timeline.start[rows]))
    for row, end, took in zip(rows.tolist(), finish.tolist(), length.tolist(), strict=True):
        yield {
            "ph": "X",
            "name": f"collectives of {program.describe(row)}",
            "cat": "collective",
            "pid": DEVICES,
            "tid": _first_track(int(program.instructions["device"][row])) + Lane.TEAM,
            "ts": (end - took) / 1000,
            "dur": took / 1000,
        }


def _arrows(timeline: Timeline, view: TraceView) -> Iterator[Event]:
    """A flow from the slice that wrote what a transfer sends to the first that reads it there."""
    program = timeline.program
    rows, tracks = program.instructions, np.where(view.shown(program), _track(program), 0)
    # Inside both slices, so that both viewers bind; of rounded ends, as the slices are.
    middle = (nanoseconds(timeline.start) + nanoseconds(timeline.finish)) / 2000
    reader = _first_reader(timeline, tracks)
    writer = _sent_writer(program, tracks)
    received = {
        task: row
        for row, task in _pairs(np.flatnonzero(rows["kind"] == Kind.RECEIVE), rows["task"])
    }
    for row, task in _pairs(np.flatnonzero(rows["kind"] == Kind.SEND), rows["task"]):
        ends = writer.get(row), reader.get(received.get(task, -1))
        if ends[0] is None or ends[1] is None:
            continue
        name = program.describe(row)
        for phase, end in zip("sf", ends, strict=True):
            event: Event = {
                "ph": phase,
                "name": name,
                "cat": "transfer",
                "id": task,
                "pid": DEVICES,
                "tid": int(tracks[end]),
                "ts": float(middle[end]),
            }
            yield event | ({"bp": "e"} if phase == "f" else {})


def _pairs(rows: Longs, values: Longs) -> Iterator[tuple[int, int]]:
    return zip(rows.tolist(), values[rows].tolist(), strict=True)


def _first_reader(timeline: Timeline, tracks: Longs) -> dict[int, int]:
    """For each RECEIVE the slice that is the first to read what it wrote."""
    program = timeline.program
    reads, buffers = program.reads, program.buffers
    writer = buffers["writer"][reads["second"]]
    kinds = program.instructions["kind"]
    picked = (kinds[writer] == Kind.RECEIVE) & (tracks[reads["first"]] > 0)
    readers, writers = reads["first"][picked], writer[picked]
    latest_first = np.argsort(-timeline.start[readers], kind="stable")  # the last entry stays
    return dict(zip(writers[latest_first].tolist(), readers[latest_first].tolist(), strict=True))


def _sent_writer(program: Program, tracks: Longs) -> dict[int, int]:
    """For each SEND the slice that wrote what it reads."""
    reads, buffers = program.reads, program.buffers
    writer = buffers["writer"][reads["second"]]
    kinds = program.instructions["kind"]
    picked = (kinds[reads["first"]] == Kind.SEND) & (tracks[writer] > 0)
    return dict(zip(reads["first"][picked].tolist(), writer[picked].tolist(), strict=True))


def _memory_counters(timeline: Timeline, view: TraceView) -> Iterator[Event]:
    for device in view.devices:
        when, size = timeline.memory(device)
        name = f"{timeline.program.device_names[device]} memory"
        yield from counter(DEVICES, name, "bytes", when, size, view.max_points)
