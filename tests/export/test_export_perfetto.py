"""The trace against the rules of its format and against the timeline it was made from."""

import gzip
import json
from collections import Counter, defaultdict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from link_use import link_use
from meshwright.cluster.catalogue import find_cluster
from meshwright.cluster.cluster import Cluster
from meshwright.export.perfetto.event import DEVICES, LINKS
from meshwright.export.perfetto.trace import trace_document, write_trace
from meshwright.graph.build import GraphBuilder
from meshwright.graph.graph import Graph, Phase
from meshwright.plan.plan import Allocation, Part, Plan, Schedule, ScheduleKind, place_ops
from meshwright.program.program import Kind
from meshwright.simulate.simulate import simulate
from meshwright.simulate.timeline import Timeline
from meshwright.source import load_graph
from meshwright.zoo.shipped import read_shipped
from small import dag, rails
from work import count_lines

Event = dict[str, Any]


def by_phase(document: dict[str, Any]) -> dict[str, list[Event]]:
    events: dict[str, list[Event]] = defaultdict(list)
    for event in document["traceEvents"]:
        events[event["ph"]].append(event)
    return events


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1000)


def check_trace(document: dict[str, Any]) -> dict[str, list[Event]]:
    """Every rule that a viewer relies on."""
    events = by_phase(document)
    assert set(events) <= set("MXsfC")
    named = {(each["pid"], each["tid"]) for each in events["M"] if each["name"] == "thread_name"}
    tracks: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for event in events["X"]:
        assert event["name"]
        assert event["dur"] >= 0
        start = nanoseconds(event["ts"])
        tracks[event["pid"], event["tid"]].append((start, start + nanoseconds(event["dur"])))
    assert set(tracks) <= named
    for slices in tracks.values():
        slices.sort()
        for (_, finish), (start, _) in pairwise(slices):
            assert finish <= start, "slices of one track overlap"
    check_arrows(events, tracks)
    for name, moments in counters(events).items():
        assert moments == sorted(moments), name
    return events


def check_arrows(
    events: dict[str, list[Event]], tracks: dict[tuple[int, int], list[tuple[int, int]]]
) -> None:
    starts = {event["id"]: event for event in events["s"]}
    ends = {event["id"]: event for event in events["f"]}
    assert len(starts) == len(events["s"])
    assert starts.keys() == ends.keys()
    for number, start in starts.items():
        assert start["ts"] <= ends[number]["ts"]
        assert start["tid"] != ends[number]["tid"]
        for event in (start, ends[number]):
            moment = event["ts"] * 1000
            slices = tracks[event["pid"], event["tid"]]
            assert any(low <= moment <= high for low, high in slices), "an arrow without a slice"


def counters(events: dict[str, list[Event]]) -> dict[str, list[float]]:
    moments: dict[str, list[float]] = defaultdict(list)
    for event in events["C"]:
        moments[event["name"]].append(event["ts"])
    return moments


def names(cluster: Cluster) -> tuple[str, ...]:
    return tuple(device.name for device in cluster.devices)


def place_randomly(graph: Graph, cluster: Cluster, seed: int) -> Plan:
    """Each op anywhere, ops of one group together."""
    draw = np.random.default_rng(seed).integers(0, cluster.num_devices, 2 * graph.num_ops)
    keys = np.where(graph.group >= 0, graph.num_ops + graph.group % graph.num_ops, 0)
    device = np.where(graph.group >= 0, draw[keys], draw[: graph.num_ops])
    return place_ops(graph.op_names, device.tolist(), names(cluster))


@pytest.fixture(scope="module")
def two_ops() -> tuple[Timeline, Cluster]:
    """One second on each of two devices, and a tensor of two seconds between them."""
    cluster = find_cluster("v100-32-x2")
    builder = GraphBuilder("pair", batch=1)
    first = builder.add_op("first", phase=Phase.FORWARD, seconds={"any": 1.0})
    second = builder.add_op("second", phase=Phase.FORWARD, seconds={"any": 1.0})
    builder.add_tensor(first, 2.0 * float(cluster.bandwidth[0, 1]), [second])
    graph = builder.finish()
    plan = place_ops(graph.op_names, [0, 1], names(cluster))
    return simulate(graph, cluster, plan, with_links=True), cluster


def test_a_transfer_between_two_ops(two_ops: tuple[Timeline, Cluster]) -> None:
    timeline, cluster = two_ops
    events = check_trace(trace_document(timeline, cluster))
    slices = {each["name"]: each for each in events["X"] if each["pid"] == DEVICES}
    assert (slices["first"]["ts"], slices["first"]["dur"]) == (0.0, 1e6)
    assert slices["second"]["ts"] == pytest.approx(3e6, rel=1e-4)
    assert slices["first"]["cat"] == "forward"
    route = cluster.routing.links(0, 1).tolist()
    crossings = [each for each in events["X"] if each["pid"] == LINKS]
    assert len(crossings) == len(route)
    assert all(each["dur"] == pytest.approx(2e6, rel=1e-4) for each in crossings)
    (start,), (end,) = events["s"], events["f"]
    assert (start["tid"], end["tid"]) == (slices["first"]["tid"], slices["second"]["tid"])
    assert end["bp"] == "e"


def test_tracks_are_named_and_sorted(two_ops: tuple[Timeline, Cluster]) -> None:
    timeline, cluster = two_ops
    events = check_trace(trace_document(timeline, cluster))
    titles = [each["args"].get("name") for each in events["M"]]
    assert {"devices", "links", *names(cluster)} <= set(titles)
    link = cluster.links[int(cluster.routing.links(0, 1)[0])]
    assert f"{link.source} -> {link.target}" in titles
    kinds = Counter(each["name"] for each in events["M"])
    assert kinds["thread_name"] == kinds["thread_sort_index"]
    assert kinds["process_name"] == kinds["process_sort_index"] == 2


def test_counters_repeat_the_timeline(two_ops: tuple[Timeline, Cluster]) -> None:
    timeline, cluster = two_ops
    events = check_trace(trace_document(timeline, cluster))
    for device, name in enumerate(names(cluster)):
        sizes = [each["args"]["bytes"] for each in events["C"] if each["name"] == f"{name} memory"]
        assert max(sizes) == timeline.peak_bytes[device]
    link = int(cluster.routing.links(0, 1)[0])
    title = f"{cluster.links[link].source} -> {cluster.links[link].target} rate"
    rates = [each["args"]["bytes/s"] for each in events["C"] if each["name"] == title]
    assert rates[0] == rates[-1] == 0.0
    assert max(rates) == pytest.approx(float(link_use(timeline, link)[1].max()))


@pytest.mark.parametrize("sharing", ["none", "fair"])
def test_a_transfer_over_several_ways_stands_on_the_links_of_each(sharing: str) -> None:
    # 1 and 0.5 B/s on two ways for 4 s; a second link of h0 to s1, which is not taken.
    cluster = rails(2)
    more = [link for link in cluster.links if {link.source, link.target} == {"h0", "s1"}]
    cluster = replace(cluster, links=(*cluster.links, *more))
    graph = dag([0, 0], {(0, 1): 6})
    limit = Allocation(source="h0", target="h1", bytes_per_second=1.5, shares=(2 / 3, 1 / 3))
    plan = replace(place_ops(graph.op_names, [0, 1], ["d0", "d1"]), allocations=(limit,))
    timeline = simulate(graph, cluster, plan, sharing=sharing, with_links=True)
    events = check_trace(trace_document(timeline, cluster))
    threads = {
        each["tid"]: each["args"]["name"]
        for each in events["M"]
        if each["pid"] == LINKS and each["name"] == "thread_name"
    }
    crossed = {threads[each["tid"]] for each in events["X"] if each["pid"] == LINKS}
    ends = {"d0 -> h0", "h0 -> s0", "s0 -> h1", "h0 -> s1", "s1 -> h1", "h1 -> d1"}
    assert crossed == (ends | {"allocation h0 -> h1"} if sharing == "fair" else ends)
    highest = {
        each["name"]: max(
            other["args"]["bytes/s"] for other in events["C"] if other["name"] == each["name"]
        )
        for each in events["C"]
        if each["pid"] == LINKS
    }
    if sharing == "fair":
        assert highest["h0 -> s0 rate"] == pytest.approx(1.0)
        assert highest["s1 -> h1 rate"] == pytest.approx(0.5)
        assert highest["allocation h0 -> h1 rate"] == pytest.approx(1.5)


def test_parallel_links_have_names_of_their_own() -> None:
    cluster = rails(2, num_rails=1)
    cluster = replace(cluster, links=(*cluster.links, *cluster.links[4:]))  # every cable twice
    graph = dag([0, 0], {(0, 1): 6})
    limit = Allocation(source="h0", target="h1", bytes_per_second=1.5, shares=(2 / 3, 1 / 3))
    plan = replace(place_ops(graph.op_names, [0, 1], ["d0", "d1"]), allocations=(limit,))
    timeline = simulate(graph, cluster, plan, with_links=True)
    names = {each["name"] for each in by_phase(trace_document(timeline, cluster))["C"]}
    assert {"h0 -> s0 rate", "h0 -> s0 #2 rate", "s0 -> h1 rate", "s0 -> h1 #2 rate"} <= names


def test_data_parallel_collectives_have_tracks() -> None:
    graph, cluster = read_shipped("mlp"), find_cluster("v100-32-x4")
    plan = Plan(parts=(Part(ops=graph.op_names, devices=names(cluster)),))
    timeline = simulate(graph, cluster, plan, with_links=True)
    events = check_trace(trace_document(timeline, cluster))
    titles = {each["args"].get("name") for each in events["M"]}
    assert {f"{name} collectives" for name in names(cluster)} <= titles
    collectives = [each for each in events["X"] if each["cat"] == "all_reduce"]
    rows = timeline.program.instructions
    assert len(collectives) == int((rows["kind"] == Kind.ALL_REDUCE).sum()) > 0


@pytest.mark.parametrize("sharing", ["fair", "none"])
@pytest.mark.parametrize("with_links", [True, False])
def test_every_instruction_that_computes_has_a_slice(sharing: str, with_links: bool) -> None:
    graph, cluster = read_shipped("inception-v3", 64), find_cluster("tag-testbed")
    plan = place_randomly(graph, cluster, 0)
    timeline = simulate(graph, cluster, plan, sharing=sharing, with_links=with_links)
    events = check_trace(trace_document(timeline, cluster))
    rows = timeline.program.instructions
    moves = np.isin(rows["kind"], (Kind.SEND, Kind.RECEIVE))
    assert sum(each["pid"] == DEVICES for each in events["X"]) == int((~moves).sum())
    assert len(events["s"]) == int((rows["kind"] == Kind.SEND).sum())
    has_rates = any(each["name"].endswith(" rate") for each in events["C"])
    assert has_rates == (sharing == "fair" and with_links)


@settings(max_examples=20)
@given(seed=st.integers(0, 2**16), name=st.sampled_from(["dgx1", "tag-testbed", "mesh2d-2x3"]))
def test_rules_hold_for_random_placements(seed: int, name: str) -> None:
    graph, cluster = read_shipped("unet"), find_cluster(name)
    timeline = simulate(graph, cluster, place_randomly(graph, cluster, seed), with_links=True)
    events = check_trace(trace_document(timeline, cluster))
    for link in range(len(cluster.links)):
        when, rate = link_use(timeline, link)
        end = cluster.links[link]
        title = f"{end.source} -> {end.target} rate"
        shown = [each["args"]["bytes/s"] for each in events["C"] if each["name"] == title]
        assert max(shown, default=0.0) == pytest.approx(float(rate.max()), rel=1e-6)
        assert len(when) == len(rate)


@pytest.mark.parametrize("granularity", ["op", "part"])
def test_a_pipeline_has_a_trace(granularity: str) -> None:
    graph, cluster = read_shipped("mlp"), find_cluster("v100-32-x2")
    plan = halves(graph, cluster)
    timeline = simulate(graph, cluster, plan, granularity=granularity, with_links=True)
    events = check_trace(trace_document(timeline, cluster))
    assert any("[mb 3]" in each["name"] for each in events["X"])
    assert events["s"]


def halves(graph: Graph, cluster: Cluster) -> Plan:
    """Two stages: forward ops by half, each other op with its group, else with its partner."""
    forward = np.flatnonzero(graph.phase == Phase.FORWARD)
    middle = int(forward[len(forward) // 2])
    home = {int(graph.group[op]): int(op >= middle) for op in forward[::-1] if graph.group[op] >= 0}
    stage = []
    for op in range(graph.num_ops):
        base = op if graph.phase[op] == Phase.FORWARD else int(graph.partner[op])
        stage.append(home.get(int(graph.group[op]), int(base >= middle)))
    parts = [
        Part(
            ops=tuple(graph.op_names[op] for op in range(graph.num_ops) if stage[op] == number),
            devices=(names(cluster)[number],),
        )
        for number in range(2)
    ]
    schedule = Schedule(kind=ScheduleKind.ONE_F_ONE_B, microbatches=4)
    return Plan(parts=tuple(parts), schedule=schedule)


def test_gzip_by_suffix(tmp_path: Path, two_ops: tuple[Timeline, Cluster]) -> None:
    timeline, cluster = two_ops
    write_trace(timeline, cluster, tmp_path / "t.json")
    write_trace(timeline, cluster, tmp_path / "t.json.gz")
    plain = (tmp_path / "t.json").read_bytes()
    assert gzip.decompress((tmp_path / "t.json.gz").read_bytes()) == plain
    assert json.loads(plain) == trace_document(timeline, cluster)


@pytest.mark.parametrize(
    ("model", "on", "least"),
    [
        ("gpt2", "h100-x8", 6_000),
        pytest.param("gpt2-xl", "h100-x8x8", 100_000, marks=pytest.mark.slow),
    ],
)
def test_writing_takes_as_many_lines_for_each_of_many_instructions(
    tmp_path: Path, model: str, on: str, least: int
) -> None:
    graph, cluster = load_graph(model), find_cluster(on)
    plan = Plan(parts=(Part(ops=graph.op_names, devices=names(cluster)),))
    timeline = simulate(graph, cluster, plan, with_links=True)
    count = timeline.program.num_instructions
    assert count > least
    _, lines = count_lines(lambda: write_trace(timeline, cluster, tmp_path / "t.json"))
    assert lines < 50 * count  # 33 when counted (2026-11)


def test_what_zero_moves_beside_layers_has_tracks() -> None:
    graph = load_graph("gpt:hidden=64,heads=4,layers=3,sequence=32,vocabulary=128,batch=8")
    cluster = find_cluster("h100-x2")
    plan = Plan.from_degrees(graph, cluster, data=2, zero=3)
    timeline = simulate(graph, cluster, plan, granularity="layer")
    events = check_trace(trace_document(timeline, cluster))
    ours = {phase: [e for e in events[phase] if e["pid"] == DEVICES] for phase in ("M", "X")}
    named = {e["tid"]: e["args"]["name"] for e in ours["M"] if e["name"] == "thread_name"}
    slices = ours["X"]
    tracks = {each["name"].split()[0]: named[each["tid"]] for each in slices}
    assert tracks["all_gather"].endswith(" weight gathers")
    assert tracks["reduce_scatter"].endswith(" collectives")
