"""Traces of hybrid plans have all that happens, and above a size show less and say so."""

from collections import Counter, defaultdict
from functools import cache
from typing import Any

import numpy as np
import pytest
from test_export_perfetto import Event, check_trace

from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.export.perfetto.event import DEVICES, LINKS, counter
from meshwright.export.perfetto.trace import trace_document
from meshwright.export.perfetto.view import choose_view
from meshwright.plan.plan import Plan
from meshwright.program.program import Kind
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline
from meshwright.source import load_graph

DEVICE_COUNT = 16


@cache
def hybrid(granularity: str, sharing: str = "fair") -> tuple[Timeline, Cluster]:
    """Two stages of two replicas in tensor groups of four, two microbatches, sharded optimiser."""
    graph, cluster = load_graph("gpt2"), find_cluster("h100-x8x2")
    plan = Plan.from_degrees(graph, cluster, data=2, tensor=4, pipeline=2, microbatches=2)
    timeline = simulate(
        graph, cluster, plan, granularity=granularity, sharing=sharing, with_links=True
    )
    return timeline, cluster


def content(document: dict[str, Any]) -> list[Event]:
    return [event for event in document["traceEvents"] if event["ph"] != "M"]


def tracks(document: dict[str, Any], process: int) -> dict[str, list[Event]]:
    """The slices of each named track of a process."""
    names = {
        event["tid"]: event["args"]["name"]
        for event in document["traceEvents"]
        if event["name"] == "thread_name" and event["pid"] == process
    }
    found: dict[str, list[Event]] = {name: [] for name in names.values()}
    for event in document["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == process:
            found[names[event["tid"]]].append(event)
    return found


@pytest.mark.parametrize("sharing", ["fair", "none"])
@pytest.mark.parametrize("granularity", ["op", "part", "layer"])
def test_a_hybrid_plan_has_collectives_transfers_and_links(granularity: str, sharing: str) -> None:
    timeline, cluster = hybrid(granularity, sharing)
    document = trace_document(timeline, cluster)
    events = check_trace(document)
    assert "coarser" not in document["otherData"]
    own = tracks(document, DEVICES)
    for suffix in ("collectives", "group collectives"):  # of data and of tensor parallelism
        assert any(slices for name, slices in own.items() if name.endswith(f" {suffix}"))
    reading = np.unique(timeline.program.reads["first"])  # tied gradients are sent of no buffer
    num_sends = int((timeline.program.instructions["kind"][reading] == Kind.SEND).sum())
    assert len(events["s"]) == num_sends > 0
    crossing = {each["name"].split()[0] for each in events["X"] if each["pid"] == LINKS}
    assert "send" in crossing
    assert (crossing > {"send"}) == (sharing == "fair")  # else collectives have no links


def test_collectives_inside_an_action_take_what_the_program_says() -> None:
    timeline, cluster = hybrid("layer")
    document = trace_document(timeline, cluster)
    slices = [each for each in content(document) if each.get("cat") == "collective"]
    calls = timeline.program.call_seconds
    assert calls is not None
    assert sum(each["dur"] for each in slices) == pytest.approx(calls.sum() * 1e6, rel=1e-4)
    assert "drawn at its end" in document["otherData"]["collectives"]


@pytest.mark.parametrize("granularity", ["op", "part"])
@pytest.mark.parametrize("share", [0.9, 0.4, 0.1, 0.03])
def test_a_trace_has_no_more_events_than_it_may(granularity: str, share: float) -> None:
    timeline, cluster = hybrid(granularity)
    whole = trace_document(timeline, cluster)
    most = int(len(content(whole)) * share)
    view = choose_view(timeline, cluster, most)
    document = trace_document(timeline, cluster, view)
    check_trace(document)
    assert len(content(document)) <= most or len(view.devices) == 1
    assert document["otherData"]["coarser"] == "; ".join(view.remarks) != ""
    assert document["otherData"]["step_seconds"] == whole["otherData"]["step_seconds"]
    ends = [each["ts"] + each["dur"] for each in content(document) if each["ph"] == "X"]
    assert max(ends) == pytest.approx(timeline.device_seconds * 1e6, rel=0.05)


def test_one_of_equal_devices_and_links_is_shown_as_it_was() -> None:
    timeline, cluster = hybrid("op")
    whole = trace_document(timeline, cluster)
    view = choose_view(timeline, cluster, int(len(content(whole)) * 0.9))
    assert not view.merges
    assert sum(view.devices.values()) == DEVICE_COUNT
    assert len(view.devices) == 2  # one of each stage
    coarse = trace_document(timeline, cluster, view)
    before, after = tracks(whole, DEVICES), tracks(coarse, DEVICES)
    for name, slices in after.items():
        assert slices == before[name.replace(" (as 7 others)", "")]


def test_merged_slices_stand_for_all_ops() -> None:
    timeline, cluster = hybrid("op")
    view = choose_view(timeline, cluster, 1500)
    assert view.merges
    rows = timeline.program.instructions
    expected = Counter(rows["device"][(rows["kind"] == Kind.COMPUTE)].tolist())
    counts: dict[int, int] = defaultdict(int)
    for each in content(trace_document(timeline, cluster, view)):
        if each["ph"] == "X" and each["pid"] == DEVICES and (each["tid"] - 1) % 4 == 0:
            head = each["name"].split(" x ")[0]
            counts[(each["tid"] - 1) // 4] += int(head) if head.isdigit() else 1
    assert counts == {device: expected[device] for device in view.devices}


def test_a_thinned_counter_keeps_its_peak_and_its_end() -> None:
    value = np.random.default_rng(0).random(5000)
    value[-1] = 0.0
    points = list(counter(1, "c", "bytes", np.arange(5000.0) * 1e-6, value, 100))
    assert len(points) <= 100
    assert max(each["args"]["bytes"] for each in points) == value.max()
    assert (points[-1]["ts"], points[-1]["args"]["bytes"]) == (4999.0, 0.0)
