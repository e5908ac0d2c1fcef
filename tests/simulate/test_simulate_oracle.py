"""The engine against slow, plain implementations of the same rules, on random instances."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from link_use import link_use
from meshwright.cluster.cluster import Cluster
from meshwright.graph.graph import Graph
from meshwright.plan.plan import Discipline, Plan, place_ops
from meshwright.program.lower import lower
from meshwright.program.program import Kind, freeze_order
from meshwright.simulate.simulate import run_program, simulate
from small import connected, dag, star

times = st.integers(0, 9).map(float)
sizes = st.integers(0, 12).map(float)


@st.composite
def graphs(draw: st.DrawFn, max_ops: int = 7) -> Graph:
    num_ops = draw(st.integers(1, max_ops))
    pairs = list(itertools.combinations(range(num_ops), 2))
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=10)) if pairs else []
    return dag(draw(st.lists(times, min_size=num_ops, max_size=num_ops)), {
        pair: draw(sizes) for pair in chosen
    })  # fmt: skip


def placements(graph: Graph, num_devices: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, num_devices - 1), min_size=graph.num_ops, max_size=graph.num_ops)


def edges_of(graph: Graph) -> list[tuple[int, int, float]]:
    return [
        (int(graph.tensor_source[t]), int(op), float(graph.tensor_bytes[t]))
        for t, op in zip(graph.use_tensor, graph.use_op, strict=True)
    ]


def longest_path_seconds(
    graph: Graph, cluster: Cluster, devices: Sequence[int], order: Sequence[int]
) -> float:
    """Makespan when each device runs its ops in this order: relax until nothing changes."""
    seconds = graph.seconds["any"]
    finish = [0.0] * graph.num_ops
    for _ in range(graph.num_ops + 1):
        free = [0.0] * cluster.num_devices
        for op in order:
            start = free[devices[op]]
            for source, target, size in edges_of(graph):
                if target == op:
                    there = finish[source]
                    if devices[source] != devices[op]:
                        a, b = devices[source], devices[op]
                        there += cluster.latency[a, b] + size / cluster.bandwidth[a, b]
                    start = max(start, there)
            finish[op] = start + seconds[op]
            free[devices[op]] = finish[op]
    return max(finish)


def linear_extensions(graph: Graph) -> list[tuple[int, ...]]:
    edges = [(a, b) for a, b, _ in edges_of(graph)]
    return [
        order
        for order in itertools.permutations(range(graph.num_ops))
        if all(order.index(a) < order.index(b) for a, b in edges)
    ]


def ordered(graph: Graph, devices: Sequence[int], order: Sequence[int]) -> Plan:
    priority = [0.0] * graph.num_ops
    for place, op in enumerate(order):
        priority[op] = -float(place)
    names = [f"d{i}" for i in range(max(devices) + 1)]
    return place_ops(graph.op_names, devices, names, priority, Discipline.ORDER)


@given(st.data())
@settings(max_examples=60)
def test_every_order_takes_what_brute_force_says_and_so_does_the_best(data: st.DataObject) -> None:
    graph = data.draw(graphs(max_ops=7))
    cluster = connected(2, latency=data.draw(st.sampled_from([0.0, 1.0])))
    devices = data.draw(placements(graph, 2))
    seen: dict[tuple[tuple[int, ...], ...], float] = {}
    for order in linear_extensions(graph):
        per_device = tuple(tuple(op for op in order if devices[op] == d) for d in range(2))
        if per_device in seen:
            continue
        expected = longest_path_seconds(graph, cluster, devices, order)
        simulated = simulate(graph, cluster, ordered(graph, devices, order), sharing="none")
        assert simulated.step_seconds == pytest.approx(expected)
        seen[per_device] = simulated.step_seconds
    # No way of picking by priority or readiness beats the best fixed order.
    names = ["d0", "d1"]
    for discipline in (Discipline.PRIORITY, Discipline.FIFO):
        picked = simulate(
            graph,
            cluster,
            place_ops(graph.op_names, devices, names, (), discipline),
            sharing="none",
        )
        assert picked.step_seconds >= min(seen.values()) - 1e-9


def list_schedule_seconds(
    graph: Graph,
    cluster: Cluster,
    devices: Sequence[int],
    priority: Sequence[float],
    discipline: Discipline,
) -> float:
    """List scheduling, moment by moment: whenever a device is free it takes its best ready op."""
    seconds = graph.seconds["any"].tolist()
    edges = edges_of(graph)
    finish: dict[int, float] = {}
    free = [0.0] * cluster.num_devices

    def ready(op: int) -> float | None:
        latest = 0.0
        for source, target, size in edges:
            if target == op:
                if source not in finish:
                    return None
                a, b = devices[source], devices[op]
                moved = cluster.latency[a, b] + size / cluster.bandwidth[a, b] if a != b else 0.0
                latest = max(latest, finish[source] + moved)
        return latest

    while len(finish) < graph.num_ops:
        waiting = [op for op in range(graph.num_ops) if op not in finish]
        moments = [
            (max(when, free[devices[op]]), op) for op in waiting if (when := ready(op)) is not None
        ]
        now = min(moments)[0]
        device = min(devices[op] for when, op in moments if when == now)
        choice = [op for when, op in moments if when == now and devices[op] == device]
        if discipline is Discipline.PRIORITY:
            best = min(choice, key=lambda op: (-priority[op], op))
        else:
            best = min(choice, key=lambda op: (ready(op), op))
        finish[best] = now + seconds[best]
        free[device] = finish[best]
    return max(finish.values())


@given(st.data())
def test_priority_and_fifo_equal_a_plain_list_scheduler(data: st.DataObject) -> None:
    graph = data.draw(graphs(max_ops=9))
    # Positive times: at one moment, the order of taking in and picking then cannot matter.
    graph = dag([each + 1 for each in graph.seconds["any"]], edges_of(graph))
    num_devices = data.draw(st.integers(1, 3))
    cluster = connected(num_devices, bandwidth=0.75, latency=0.25)
    devices = data.draw(placements(graph, num_devices))
    priority = data.draw(st.permutations(range(graph.num_ops)))
    names = [f"d{i}" for i in range(num_devices)]
    for discipline in (Discipline.PRIORITY, Discipline.FIFO):
        plan = place_ops(graph.op_names, devices, names, priority, discipline)
        expected = list_schedule_seconds(graph, cluster, devices, priority, discipline)
        simulated = simulate(graph, cluster, plan, sharing="none").step_seconds
        assert simulated == pytest.approx(expected)


@given(st.data())
def test_a_frozen_order_repeats_the_run_that_made_it(data: st.DataObject) -> None:
    graph = data.draw(graphs(max_ops=9))
    cluster = connected(3)
    plan = place_ops(graph.op_names, data.draw(placements(graph, 3)), ["d0", "d1", "d2"])
    program = lower(graph, cluster, plan)
    for sharing in ("none", "fair"):
        first = run_program(program, cluster, sharing=sharing)
        frozen = freeze_order(program, first.start, first.finish)
        again = run_program(frozen, cluster, sharing=sharing)
        assert again.step_seconds == pytest.approx(first.step_seconds)
        np.testing.assert_allclose(again.start, first.start, atol=1e-9)


def max_min_rates(routes: Sequence[Sequence[int]], capacity: Sequence[float]) -> list[float]:
    """Progressive filling, flow by flow."""
    rate = [0.0] * len(routes)
    room = list(capacity)
    unfixed = {flow for flow in range(len(routes)) if routes[flow]}
    while unfixed:
        shares = {
            link: room[link] / sum(link in routes[flow] for flow in unfixed)
            for link in range(len(capacity))
            if any(link in routes[flow] for flow in unfixed)
        }
        link = min(shares, key=lambda each: (shares[each], each))
        for flow in [each for each in unfixed if link in routes[each]]:
            rate[flow] = shares[link]
            unfixed.discard(flow)
            for each in routes[flow]:
                room[each] = max(0.0, room[each] - shares[link])
    return rate


def fluid_finishes(
    starts: Sequence[float], volumes: Sequence[float], routes: Sequence[Sequence[int]],
    capacity: Sequence[float],
) -> list[float]:  # fmt: skip
    """When each flow is through, with rates worked out anew at every start and finish.

    Flows of one route go one after the other, in the order of their starts.
    """
    left = list(volumes)
    finish = [start if not volume else -1.0 for start, volume in zip(starts, volumes, strict=True)]
    now = 0.0
    while any(each < 0 for each in finish):
        ready = [f for f in range(len(left)) if finish[f] < 0 and starts[f] <= now]
        ready.sort(key=lambda f: starts[f])
        first = {tuple(routes[f]): f for f in reversed(ready)}
        active = sorted(first.values())
        rates = max_min_rates([routes[f] for f in active], capacity)
        soonest = [s for f, s in enumerate(starts) if finish[f] < 0 and s > now]
        soonest += [now + left[f] / rate for f, rate in zip(active, rates, strict=True)]
        then = min(soonest)
        for f, rate in zip(active, rates, strict=True):
            left[f] -= rate * (then - now)
            if left[f] <= 1e-9 * volumes[f]:
                finish[f] = then
        now = then
    return finish


@given(st.data())
def test_shared_links_equal_a_plain_fluid_model_and_stay_within_capacity(
    data: st.DataObject,
) -> None:
    num_devices = data.draw(st.integers(2, 4))
    rates = data.draw(
        st.lists(st.sampled_from([1.0, 2.0, 5.0]), min_size=num_devices, max_size=num_devices)
    )
    cluster = star(rates)
    flows = data.draw(
        st.lists(
            st.tuples(
                st.integers(0, num_devices - 1), st.integers(0, num_devices - 1),
                st.integers(0, 5), st.integers(0, 20),
            ).filter(lambda flow: flow[0] != flow[1]),
            min_size=1, max_size=6,
        )
    )  # fmt: skip
    # One op a flow to make it at its time, on a device of its own pair, and one to read it.
    seconds, edges, devices = [], [], []
    for number, (source, target, start, size) in enumerate(flows):
        seconds += [float(start), 0.0]
        edges.append((2 * number, 2 * number + 1, float(size)))
        devices += [source, target]
    graph = dag(seconds, edges)
    names = [f"d{i}" for i in range(num_devices)]
    plan = place_ops(graph.op_names, devices, names)
    timeline = simulate(graph, cluster, plan, sharing="fair", with_links=True)
    program = timeline.program
    sends = np.flatnonzero(program.instructions["kind"] == Kind.SEND)
    routes = [
        cluster.routing.links(int(row["device"]), int(row["peer"])).tolist()
        for row in program.instructions[sends]
    ]
    starts = timeline.start[sends].tolist()
    volumes = program.instructions["bytes"][sends].tolist()
    capacity = cluster.link_bytes_per_second.tolist()
    expected = fluid_finishes(starts, volumes, routes, capacity)
    np.testing.assert_allclose(timeline.finish[sends], expected, rtol=1e-9, atol=1e-9)
    for link in range(len(cluster.links)):
        _, used = link_use(timeline, link)
        assert used.max() <= capacity[link] * (1 + 1e-9)


@given(st.data())
def test_fair_equals_none_when_no_two_transfers_share_a_link(data: st.DataObject) -> None:
    graph = data.draw(graphs(max_ops=8))
    # A chain of transfers: at most one tensor is under way between any two devices at a time when
    # every op has a device of its own.
    cluster = connected(graph.num_ops, bandwidth=0.7, latency=0.1)
    names = [f"d{i}" for i in range(graph.num_ops)]
    plan = place_ops(graph.op_names, range(graph.num_ops), names)
    none = simulate(graph, cluster, plan, sharing="none")
    fair = simulate(graph, cluster, plan, sharing="fair")
    np.testing.assert_allclose(fair.start, none.start, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(fair.finish, none.finish, rtol=1e-9, atol=1e-9)


@given(st.data())
def test_two_runs_are_identical_and_never_beat_the_trivial_bounds(data: st.DataObject) -> None:
    graph = data.draw(graphs(max_ops=9))
    cluster = star([1.0, 2.0, 3.0], latency=0.5)
    plan = place_ops(graph.op_names, data.draw(placements(graph, 3)), ["d0", "d1", "d2"])
    for sharing in ("none", "fair"):
        first = simulate(graph, cluster, plan, sharing=sharing)
        again = simulate(graph, cluster, plan, sharing=sharing)
        assert (first.start == again.start).all()
        assert (first.finish == again.finish).all()
        assert first.step_seconds >= max(first.busy_seconds) - 1e-9
