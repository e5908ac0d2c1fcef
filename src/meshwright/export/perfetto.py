"""A Timeline as a Chrome trace (JSON), which ui.perfetto.dev and chrome://tracing open.

Two processes: "devices" has a track for each device's compute, one for its collectives and a
counter of its memory; "links" has a track for each link that is used and a counter of its rate.
Arrows lead from the op that made a tensor to the first op that uses it on another device. Knows
nothing about plans.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from meshwright.cluster.cluster import Cluster
from meshwright.files import write_bytes
from meshwright.graph.graph import Phase
from meshwright.program.program import Kind, Program
from meshwright.simulate.allocation import crossed_links
from meshwright.simulate.timeline import Timeline

Event = dict[str, Any]
Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

DEVICES, LINKS = 1, 2
"""Process numbers of the two halves of the trace."""

_NEGLIGIBLE_SHARE = 1e-9
"""A link's rate below this share of its capacity is what adding up floats leaves behind."""


def write_trace(timeline: Timeline, cluster: Cluster, path: str | Path) -> None:
    """Write the trace of a timeline; gzip when the name ends in .gz (Perfetto opens both)."""
    write_bytes(path, msgspec.json.encode(trace_document(timeline, cluster)) + b"\n")


def trace_document(timeline: Timeline, cluster: Cluster) -> dict[str, Any]:
    """The trace as plain objects. Times are in microseconds, as the format has them."""
    times = _Times.of(timeline)
    events = [
        *_name_devices(timeline.program),
        *_device_slices(timeline.program, times),
        *_arrows(timeline.program, times),
        *_memory_counters(timeline),
        *_link_events(timeline, cluster, times),
    ]
    return {
        "displayTimeUnit": "ms",
        "otherData": {
            "cluster": cluster.name,
            "graph": timeline.program.graph.name,
            "sharing": timeline.sharing,
            "step_seconds": timeline.step_seconds,
        },
        "traceEvents": events,
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class _Times:
    """Start and finish of every instruction in whole nanoseconds.

    Perfetto keeps nanoseconds: rounding both ends here, not start and length, keeps slices that
    touch from overlapping.
    """

    start: Ints
    finish: Ints

    @staticmethod
    def of(timeline: Timeline) -> "_Times":
        return _Times(start=_nanoseconds(timeline.start), finish=_nanoseconds(timeline.finish))

    def microseconds(self, rows: Ints) -> Iterator[tuple[int, float, float]]:
        """Number, start and length of these instructions."""
        begin, end = self.start[rows], self.finish[rows]
        lists = rows.tolist(), (begin / 1000).tolist(), ((end - begin) / 1000).tolist()
        return zip(*lists, strict=True)


def _nanoseconds(seconds: Floats) -> Ints:
    return np.rint(seconds * 1e9).astype(np.int64)


def _metadata(kind: str, process: int, thread: int, **args: object) -> Event:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": args}


def _name_thread(process: int, thread: int, name: str) -> list[Event]:
    return [
        _metadata("thread_name", process, thread, name=name),
        _metadata("thread_sort_index", process, thread, sort_index=thread),
    ]


def _name_process(process: int, name: str) -> list[Event]:
    return [
        _metadata("process_name", process, 0, name=name),
        _metadata("process_sort_index", process, 0, sort_index=process),
    ]


def _compute_track(device: int) -> int:
    """The track of a device's compute; that of its collectives is the next."""
    return 2 * device + 1


def _track(program: Program) -> Ints:
    """The track of each instruction: 0 for transfers, which stand on links only."""
    rows = program.instructions
    is_collective = rows["group"] >= 0
    is_transfer = np.isin(rows["kind"], (Kind.SEND, Kind.RECEIVE))
    return np.where(is_transfer, 0, 2 * rows["device"].astype(np.int64) + 1 + is_collective)


def _name_devices(program: Program) -> list[Event]:
    events = _name_process(DEVICES, "devices")
    rows = program.instructions
    has_collectives = set(rows["device"][rows["group"] >= 0].tolist())
    sizes = {team[0]: len(team) for team in program.teams}
    for device, name in enumerate(program.device_names):
        if program.leader[device] != device:
            continue  # as the first of its team, which has the track
        if sizes.get(device, 1) > 1:
            name = f"{name} (group of {sizes[device]})"
        events += _name_thread(DEVICES, _compute_track(device), name)
        if device in has_collectives:
            events += _name_thread(DEVICES, _compute_track(device) + 1, f"{name} collectives")
    return events


def _device_slices(program: Program, times: _Times) -> Iterator[Event]:
    tracks = _track(program)
    rows = np.flatnonzero(tracks)
    rows = rows[np.lexsort((times.finish[rows], times.start[rows], tracks[rows]))]
    tracks_of_rows = tracks[rows].tolist()
    categories = _categories(program)
    for track, (row, start, length) in zip(tracks_of_rows, times.microseconds(rows), strict=True):
        yield {
            "ph": "X",
            "name": program.describe(row),
            "cat": categories[row],
            "pid": DEVICES,
            "tid": track,
            "ts": start,
            "dur": length,
        }


def _categories(program: Program) -> list[str]:
    """The phase of an instruction that computes, the kind of any other."""
    phases = [phase.name.lower() for phase in Phase]
    kinds = [kind.name.lower() for kind in Kind]
    rows = program.instructions
    phase_of_row = program.graph.phase[rows["op"]].tolist()
    return [
        phases[phase] if kind == Kind.COMPUTE else kinds[kind]
        for kind, phase in zip(rows["kind"].tolist(), phase_of_row, strict=True)
    ]


def _arrows(program: Program, times: _Times) -> Iterator[Event]:
    """A flow from the slice that wrote what a transfer sends to the first that reads it there."""
    rows, tracks = program.instructions, _track(program)
    middle = (times.start + times.finish) / 2000  # inside both slices, so that both viewers bind
    reader = _first_reader(program, times, tracks)
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


def _pairs(rows: Ints, values: Ints) -> Iterator[tuple[int, int]]:
    return zip(rows.tolist(), values[rows].tolist(), strict=True)


def _first_reader(program: Program, times: _Times, tracks: Ints) -> dict[int, int]:
    """For each RECEIVE the slice that is the first to read what it wrote."""
    reads, buffers = program.reads, program.buffers
    writer = buffers["writer"][reads["second"]]
    kinds = program.instructions["kind"]
    picked = (kinds[writer] == Kind.RECEIVE) & (tracks[reads["first"]] > 0)
    readers, writers = reads["first"][picked], writer[picked]
    latest_first = np.argsort(-times.start[readers], kind="stable")  # the last entry stays
    return dict(zip(writers[latest_first].tolist(), readers[latest_first].tolist(), strict=True))


def _sent_writer(program: Program, tracks: Ints) -> dict[int, int]:
    """For each SEND the slice that wrote what it reads."""
    reads, buffers = program.reads, program.buffers
    writer = buffers["writer"][reads["second"]]
    kinds = program.instructions["kind"]
    picked = (kinds[reads["first"]] == Kind.SEND) & (tracks[writer] > 0)
    return dict(zip(reads["first"][picked].tolist(), writer[picked].tolist(), strict=True))


def _memory_counters(timeline: Timeline) -> Iterator[Event]:
    for device, name in enumerate(timeline.program.device_names):
        if timeline.program.leader[device] != device:
            continue
        when, size = timeline.memory(device)
        yield from _counter(DEVICES, f"{name} memory", "bytes", when, size)


def _counter(process: int, name: str, unit: str, when: Floats, value: Floats) -> Iterator[Event]:
    """The last value of each nanosecond, where it differs from the one before."""
    moments = _nanoseconds(when)
    is_last = np.append(moments[1:] != moments[:-1], True)
    moments, value = moments[is_last], value[is_last]
    changes = np.append(True, value[1:] != value[:-1])
    pairs = zip((moments[changes] / 1000).tolist(), value[changes].tolist(), strict=True)
    for moment, amount in pairs:
        yield {"ph": "C", "name": name, "pid": process, "ts": moment, "args": {unit: amount}}


def _link_events(timeline: Timeline, cluster: Cluster, times: _Times) -> Iterator[Event]:
    """Tracks of links. Transfers that share a link overlap, so a link has as many lanes as it has
    transfers at once: events of one track must nest, in both viewers."""
    yield from _name_process(LINKS, "links")
    names = _link_names(timeline, cluster)
    thread = 0
    for link, rows in _rows_of_links(timeline, cluster):
        rows = rows[np.lexsort((times.finish[rows], times.start[rows]))]
        lanes = _assign_lanes(times.start[rows].tolist(), times.finish[rows].tolist())
        for lane in range(max(lanes) + 1):
            suffix = f" ({lane + 1})" if lane else ""
            yield from _name_thread(LINKS, thread + 1 + lane, names[link] + suffix)
        for lane, (row, start, length) in zip(lanes, times.microseconds(rows), strict=True):
            yield {
                "ph": "X",
                "name": timeline.program.describe(row),
                "cat": "link",
                "pid": LINKS,
                "tid": thread + 1 + lane,
                "ts": start,
                "dur": length,
                "args": {"bytes": float(timeline.program.instructions["bytes"][row])},
            }
        thread += max(lanes) + 1
    for link, when, rate in _link_rates(timeline):
        yield from _counter(LINKS, f"{names[link]} rate", "bytes/s", when, rate)


def _link_names(timeline: Timeline, cluster: Cluster) -> list[str]:
    """Of the cluster's links, numbered where several join the same nodes, then of allocations."""
    names: list[str] = []
    seen: Counter[str] = Counter()
    for link in cluster.links:
        name = f"{link.source} -> {link.target}"
        seen[name] += 1
        names.append(f"{name} #{seen[name]}" if seen[name] > 1 else name)
    allocations = timeline.program.allocations
    return names + [f"allocation {each.source} -> {each.target}" for each in allocations]


def _assign_lanes(starts: list[int], finishes: list[int]) -> list[int]:
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


def _rows_of_links(timeline: Timeline, cluster: Cluster) -> Iterator[tuple[int, Ints]]:
    """For each link that is used the SENDs and collectives that cross it, one row a task."""
    rows = timeline.program.instructions
    firsts = np.unique(rows["task"], return_index=True)[1]
    sends = np.flatnonzero(rows["kind"] == Kind.SEND)
    moves = np.concatenate((sends, firsts[rows["group"][firsts] >= 0]))
    found: dict[int, list[Ints]] = {}
    for links, members in _routes(timeline, cluster, moves):
        for link in links:
            found.setdefault(link, []).append(members)
    for link in sorted(found):
        yield link, np.concatenate(found[link])


def _routes(timeline: Timeline, cluster: Cluster, moves: Ints) -> Iterator[tuple[list[int], Ints]]:
    """Links with the rows that cross all of them; without sharing, collectives have none."""
    rows = timeline.program.instructions
    classes = timeline.flow_class[rows["task"][moves]]
    for number in np.unique(classes[classes >= 0]).tolist():
        yield timeline.network.classes[number].links.tolist(), moves[classes == number]
    alone = moves[(classes < 0) & (rows["peer"][moves] >= 0)]
    pair = rows["device"][alone] * np.int64(cluster.num_devices) + rows["peer"][alone]
    pairs = [divmod(each, cluster.num_devices) for each in np.unique(pair).tolist()]
    crossed = crossed_links(cluster, timeline.program.allocations, pairs)
    for source, target in pairs:
        key = source * cluster.num_devices + target
        yield list(crossed[source, target]), alone[pair == key]


def _link_rates(timeline: Timeline) -> Iterator[tuple[int, Floats, Floats]]:
    """Each used link's rate over time, as `Timeline.link_use` has it, for all links at once."""
    if timeline.log is None:
        return
    changes: dict[int, list[tuple[Ints, Floats]]] = {}
    for number, entries, change in _rate_changes(timeline.log):
        flow_class = timeline.network.classes[number]
        for link, weight in zip(
            flow_class.links.tolist(), flow_class.weights.tolist(), strict=True
        ):
            changes.setdefault(link, []).append((entries, change * weight))
    for link, parts in sorted(changes.items()):
        entries = np.concatenate([part[0] for part in parts])
        in_time = np.argsort(entries, kind="stable")
        used = np.cumsum(np.concatenate([part[1] for part in parts])[in_time])
        used[used < _NEGLIGIBLE_SHARE * timeline.network.link_bytes_per_second[link]] = 0.0
        when = timeline.log["seconds"][entries[in_time]]
        yield link, np.append(0.0, when), np.append(0.0, used)


def _rate_changes(log: npt.NDArray[np.void]) -> Iterator[tuple[int, Ints, Floats]]:
    """For each flow class its entries in the log, and by how much each changed its rate."""
    order = np.argsort(log["flow_class"], kind="stable")
    classes, firsts = np.unique(log["flow_class"][order], return_index=True)
    bounds = [*firsts.tolist(), len(order)]
    for place, number in enumerate(classes.tolist()):
        entries = order[bounds[place] : bounds[place + 1]]
        yield number, entries, np.diff(log["rate"][entries], prepend=0.0)
