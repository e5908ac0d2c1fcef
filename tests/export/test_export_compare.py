"""Two timelines in one trace: each whole, apart from the other, and side by side."""

import gzip
import json
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from measured_run import chain, hosts, run_of
from meshwright.cluster.cluster import Cluster
from meshwright.export.perfetto.compare import comparison_document, write_comparison
from meshwright.export.perfetto.trace import trace_document
from meshwright.plan.plan import Part, Plan, Schedule, ScheduleKind
from meshwright.simulate.measured import measured_timeline
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline

MB = 1e6


def both() -> tuple[Timeline, Timeline, Cluster]:
    """Two stages of two replicas, simulated and measured with noise."""
    graph = chain([0.01] * 4, [MB] * 4, gradient=MB)
    cluster = hosts(100 * MB, 1e-4, count=4)
    names = [device.name for device in cluster.devices]
    members = [tuple(name for name in graph.op_names if int(name[1:]) // 2 == k) for k in (0, 1)]
    parts = tuple(
        Part(ops=ops, devices=tuple(names[2 * k : 2 * k + 2])) for k, ops in enumerate(members)
    )
    schedule = Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=3)
    predicted = simulate(graph, cluster, Plan(parts=parts, schedule=schedule), with_links=True)
    noise = np.random.default_rng(0).uniform(0, 2e-3, (2, predicted.program.num_instructions))
    start, finish = np.sort(np.stack((predicted.start, predicted.finish)) * 1.1 + noise, axis=0)
    run = run_of(predicted, start=start, finish=finish)
    return predicted, measured_timeline(predicted.program, run), cluster


def names_of(document: dict[str, Any], kind: str) -> dict[int, Any]:
    key = {"process_name": "name", "process_sort_index": "sort_index"}[kind]
    return {
        event["pid"]: event["args"][key]
        for event in document["traceEvents"]
        if event["name"] == kind
    }


def test_four_processes_stand_in_pairs() -> None:
    document = comparison_document(*both())
    assert names_of(document, "process_name") == {
        1: "devices (predicted)",
        2: "links (predicted)",
        3: "devices (measured)",
        4: "links (measured)",
    }
    places = names_of(document, "process_sort_index")
    assert sorted(places, key=lambda process: places[process]) == [1, 3, 2, 4]
    predicted, measured, cluster = both()
    assert document["otherData"] == {
        "cluster": cluster.name,
        "graph": "chain",
        "sharing": "fair",
        "predicted_seconds": predicted.step_seconds,
        "measured_seconds": measured.step_seconds,
    }


def test_each_half_has_the_events_of_its_own_trace() -> None:
    predicted, measured, cluster = both()
    events = comparison_document(predicted, measured, cluster)["traceEvents"]
    for place, timeline in enumerate((predicted, measured)):
        own = trace_document(timeline, cluster)["traceEvents"]
        half = [event for event in events if (event["pid"] - 1) // 2 == place]
        assert len(half) == len(own)
        for event, original in zip(half, own, strict=True):
            same = set(original) - {"pid", "args", "id"}
            assert {key: event[key] for key in same} == {key: original[key] for key in same}


def test_arrows_stay_within_their_half() -> None:
    events = comparison_document(*both())["traceEvents"]
    ends = defaultdict(list)
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"]].append(event["pid"])
    assert len(ends) > 10
    assert all(len(pids) == 2 and len(set(pids)) == 1 for pids in ends.values())


def test_slices_of_a_measured_track_never_overlap() -> None:
    tracks = defaultdict(list)
    for event in comparison_document(*both())["traceEvents"]:
        if event["ph"] == "X":
            start = round(event["ts"] * 1000)
            tracks[event["pid"], event["tid"]].append((start, start + round(event["dur"] * 1000)))
    assert {process for process, _ in tracks} == {1, 2, 3, 4}
    for slices in tracks.values():
        for (_, finish), (start, _) in pairwise(sorted(slices)):
            assert finish <= start


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_a_comparison_is_written_whole(tmp_path: Path, name: str) -> None:
    write_comparison(*both(), tmp_path / name)
    data = (tmp_path / name).read_bytes()
    text = gzip.decompress(data) if name.endswith(".gz") else data
    assert json.loads(text) == json.loads(json.dumps(comparison_document(*both())))
